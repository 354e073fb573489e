//! What `node.toml` says, validated: what this node is, what the predecessor is here, what the mesh may open.

use crate::document::Origins;
use crate::flow::{Flow, PortProtocol};
use crate::manifest::{FileDeclaration, ModuleName};
use crate::unit::{Scope, UnitName};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

mod read;
pub use read::{assigned, read};
pub(crate) use read::{can_be_control, is_firewall_table};

/// Which part of the mesh this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Raises the foundation.
    Control,
    /// Uses another node's foundation.
    Node,
}

/// The foundation's ports. Each is the node's to give, never a manifest's (DESIGN §8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum FoundationPort {
    /// `store.sql`
    StoreSql,
    /// `bus.amqp`
    BusAmqp,
    /// `bus.management`
    BusManagement,
    /// `bus.epmd`
    BusEpmd,
    /// `bus.dist`
    BusDist,
    /// `registry.http`
    RegistryHttp,
    /// `overlay.wg`
    OverlayWg,
}

impl FoundationPort {
    /// All of them, in the order of DESIGN §5.
    pub const ALL: [FoundationPort; 7] = [
        FoundationPort::StoreSql,
        FoundationPort::BusAmqp,
        FoundationPort::BusManagement,
        FoundationPort::BusEpmd,
        FoundationPort::BusDist,
        FoundationPort::RegistryHttp,
        FoundationPort::OverlayWg,
    ];

    /// Its key in `[foundation]`, `MODULE.PORT`.
    pub fn key(self) -> &'static str {
        match self {
            FoundationPort::StoreSql => "store.sql",
            FoundationPort::BusAmqp => "bus.amqp",
            FoundationPort::BusManagement => "bus.management",
            FoundationPort::BusEpmd => "bus.epmd",
            FoundationPort::BusDist => "bus.dist",
            FoundationPort::RegistryHttp => "registry.http",
            FoundationPort::OverlayWg => "overlay.wg",
        }
    }

    /// From its key.
    pub fn from_key(key: &str) -> Option<FoundationPort> {
        FoundationPort::ALL.into_iter().find(|p| p.key() == key)
    }

    /// The module that it belongs to: its key before the dot.
    pub fn module(self) -> &'static str {
        self.key().split_once('.').map_or("", |(module, _)| module)
    }

    /// What it carries: UDP for WireGuard, else TCP.
    pub fn protocol(self) -> PortProtocol {
        match self {
            FoundationPort::OverlayWg => PortProtocol::Udp,
            _ => PortProtocol::Tcp,
        }
    }

    /// The standard port, used where `node.toml` gives none (PostgreSQL 5432, AMQP 5672, RabbitMQ management 15672,
    /// epmd 4369, RabbitMQ distribution 25672, OCI registry 5000, WireGuard 51820).
    pub fn standard(self) -> u16 {
        match self {
            FoundationPort::StoreSql => 5432,
            FoundationPort::BusAmqp => 5672,
            FoundationPort::BusManagement => 15672,
            FoundationPort::BusEpmd => 4369,
            FoundationPort::BusDist => 25672,
            FoundationPort::RegistryHttp => 5000,
            FoundationPort::OverlayWg => 51820,
        }
    }
}

/// Where a foundation port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// 1..=65535.
    pub port: u16,
    /// The address it binds; `None` leaves it to the manifest's scope.
    pub address: Option<IpAddr>,
}

/// The private network between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overlay {
    /// Interface name; `mesh0` where not given.
    pub interface: String,
    /// This node's address with the network's prefix.
    pub address: IpNet,
    /// The others.
    pub peers: Vec<Peer>,
}

/// Another node on the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its node name.
    pub name: String,
    /// Its WireGuard public key, base64.
    pub public_key: String,
    /// Where it is reached, `ADDRESS:PORT`.
    pub endpoint: Option<String>,
    /// What is routed to it.
    pub allowed: Vec<IpNet>,
}

/// What a cron entry's file is, and which of its lines are control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CronEntry {
    /// Absolute path, for example `/etc/cron.d/fleet` or `/var/spool/cron/crontabs/fleet`.
    pub file: String,
    /// Lines that contain this text; `None` means every line of the file.
    pub lines_with: Option<String>,
}

/// A process of the predecessor's control that no unit and no cron entry starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControlProcess {
    /// Absolute path of its executable.
    pub executable: String,
    /// Its user, where only that one is meant.
    pub user: Option<String>,
}

/// The found firewall, where the operator says what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct FoundFirewall {
    /// Its tables, `FAMILY NAME`.
    pub tables: Vec<String>,
    /// The unit that loads it.
    pub loader: Option<UnitName>,
}

/// The predecessor on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Predecessor {
    /// Control units of PID 1: services, timers, paths, sockets.
    pub units: Vec<UnitName>,
    /// Control units of users' managers, by user name.
    pub users: BTreeMap<String, Vec<UnitName>>,
    /// Declared cron entries.
    pub cron: Vec<CronEntry>,
    /// Declared bare processes.
    pub processes: Vec<ControlProcess>,
    /// `[predecessor.firewall]`, or nothing: then it is detected.
    pub firewall: FoundFirewall,
    /// The files its sync writes, absolute.
    pub files: Vec<String>,
    /// `keep-dependents`: a no-op unit takes a control unit's place where something else requires it.
    pub keep_dependents: bool,
}

impl Predecessor {
    /// Every control unit with its scope, system first, in declared order.
    pub fn control(&self) -> impl Iterator<Item = (Scope, &UnitName)> {
        let system = self.units.iter().map(|u| (Scope::System, u));
        let users =
            self.users.iter().flat_map(|(name, units)| units.iter().map(move |u| (Scope::User(name.clone()), u)));
        system.chain(users)
    }
}

/// `[[opening]]`: a flow that the mesh opens through the found firewall for this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeclaredOpening {
    /// The flow.
    pub flow: Flow,
    /// For whom; `operator` where not given.
    pub module: String,
}

/// `[flip]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlipSettings {
    /// Open flows that the flip may close.
    pub drop: Vec<Flow>,
    /// Assigned modules that the flip may leave unmigrated.
    pub unmigrated: Vec<ModuleName>,
    /// The confirm window, 5 minutes where not given.
    pub confirm_within: Duration,
    /// How long a preview is good, 15 minutes where not given.
    pub preview_max_age: Duration,
}

/// `node.toml`, merged and validated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Foundation ports, each with its standard where not given.
    pub foundation: BTreeMap<FoundationPort, Endpoint>,
    /// On a `node`: the name or address of the control-node that has the foundation.
    pub foundation_at: Option<String>,
    /// The overlay, where there is one.
    pub overlay: Option<Overlay>,
    /// The predecessor.
    pub predecessor: Predecessor,
    /// Node-level files that no module owns.
    pub files: Vec<FileDeclaration>,
    /// What to open.
    pub openings: Vec<DeclaredOpening>,
    /// Modules this node is to run.
    pub modules: Vec<ModuleName>,
    /// The flip's settings.
    pub flip: FlipSettings,
    /// Where its parts stand: `modules.N`, `file.N.path`, `opening.N`, `foundation.KEY`, `predecessor.files.N`.
    #[serde(skip)]
    pub origins: Origins,
}
