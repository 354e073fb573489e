//! One module's declaration, `catalogue/NAME.toml`, validated.

use crate::document::Origins;
use crate::flow::PortProtocol;
use crate::node::FoundationPort;
use crate::unit::UnitName;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;

mod read;
pub use read::read;
pub(crate) use read::read_files;

/// The modules that a control-node raises first (DESIGN §2).
pub const FOUNDATION_MODULES: [&str; 4] = ["store", "bus", "registry", "overlay"];

/// A module's name: `[a-z][a-z0-9_]{0,31}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModuleName(String);

impl ModuleName {
    /// Checks a name.
    pub fn new(name: impl Into<String>) -> Result<ModuleName, String> {
        let name = name.into();
        let mut bytes = name.bytes();
        let good = bytes.next().is_some_and(|b| b.is_ascii_lowercase())
            && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && name.len() <= 32;
        if good {
            Ok(ModuleName(name))
        } else {
            Err(format!("{name:?} is not a module name; it must be a lower-case letter and up to 31 of a-z, 0-9, _"))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ModuleName {
    type Error = String;
    fn try_from(s: String) -> Result<Self, String> {
        ModuleName::new(s)
    }
}

impl From<ModuleName> for String {
    fn from(m: ModuleName) -> String {
        m.0
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who may reach a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum PortScope {
    /// This machine only.
    Loopback,
    /// The overlay's prefix, by the overlay's interface.
    Overlay,
    /// One prefix.
    Prefix(IpNet),
    /// Anybody.
    Any,
}

/// Where the number of a port comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum PortNumber {
    /// A default of the manifest's own (never for a foundation port).
    Default(u16),
    /// `{{ foundation.KEY.port }}`: the node's to give.
    Foundation(FoundationPort),
}

/// One port of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortDeclaration {
    /// Its name within the module.
    pub name: String,
    /// Its protocol.
    pub protocol: PortProtocol,
    /// Its number.
    pub number: PortNumber,
    /// Who may reach it.
    pub scope: PortScope,
}

/// Where a file's content comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum FileContent {
    /// Written in the manifest.
    Literal(String),
    /// A template, by its path below the folder that the manifest or `node.toml` is in.
    Template(String),
}

/// One declared file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDeclaration {
    /// Absolute, without `.` and `..`.
    pub path: String,
    /// Content.
    pub content: FileContent,
    /// User name or number; `root` where not given.
    pub owner: String,
    /// Group name or number; `root` where not given.
    pub group: String,
    /// Permission bits, 0..=0o7777; 0644 where not given.
    pub mode: u32,
    /// A command line that checks a staged copy, `{}` standing for its path.
    pub validator: Option<Vec<String>>,
    /// Its content is never shown.
    pub secret: bool,
}

/// What runs a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Run {
    /// A command under a generated unit.
    Command {
        /// `ExecStart=` as an argument vector; the first is absolute.
        exec: Vec<String>,
        /// `User=`.
        user: Option<String>,
        /// `Type=`: exec, notify, forking or oneshot.
        service_type: String,
        /// `Environment=`.
        environment: Vec<(String, String)>,
        /// `StateDirectory=`.
        state_directory: Option<String>,
    },
    /// A unit that a package ships.
    Unit(UnitName),
    /// A container, run by podman under a generated unit.
    Container {
        /// The image reference.
        image: String,
        /// `HOST:CONTAINER[:OPTIONS]`.
        volumes: Vec<String>,
        /// Environment.
        environment: Vec<(String, String)>,
    },
}

/// What a module takes the place of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Replaces {
    /// A found container's name.
    pub container: Option<String>,
    /// A found unit.
    pub unit: Option<UnitName>,
    /// Its data, absolute paths.
    pub data: Vec<String>,
}

/// How a module says that it is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Health {
    /// A TCP connection to this port (by name) is accepted.
    Tcp(String),
    /// HTTP GET of this path on this port answers 2xx or 3xx.
    Http(String, String),
    /// A command exits 0.
    Exec(Vec<String>),
}

/// One module's declaration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    /// The file's name without `.toml`.
    pub name: ModuleName,
    /// One line for people.
    pub summary: String,
    /// Whether a control-node raises it first; says which ports are the node's to give.
    pub foundation: bool,
    /// Ports.
    pub ports: Vec<PortDeclaration>,
    /// Files.
    pub files: Vec<FileDeclaration>,
    /// What runs it; nothing for a module that is only files.
    pub run: Option<Run>,
    /// Distribution packages it needs.
    pub packages: Vec<String>,
    /// What it replaces.
    pub replaces: Replaces,
    /// Health.
    pub health: Option<Health>,
    /// Its own data, absolute paths.
    pub data: Vec<String>,
    /// Modules that must run before it.
    pub depends: Vec<ModuleName>,
    /// Where its parts stand: `port.N`, `file.N.path`, `depends.N`; `file` is the file itself.
    #[serde(skip)]
    pub origins: Origins,
}
