//! The machine as a whole: what the adoption's plan is made of, and what `mesh init` writes down.

use crate::adapters::config::Loaded;
use crate::adapters::custody_fs;
use crate::apply::openings;
use crate::layout::Layout;
use crate::plan::adopt::{Found, StopUnit};
use crate::probe::{listeners, units};
use anyhow::Context as _;
use mesh_model::failure::{Failure, Kind};
use mesh_model::flow::{Carried, Flow};
use mesh_model::manifest::{PortNumber, PortScope};
use mesh_model::node::{FoundationPort, Node, Role};
use mesh_model::opening::Opening;
use mesh_model::state::State;
use mesh_model::unit::{Scope, UnitName};
use std::net::{IpAddr, Ipv4Addr};

/// Whether the foundation's ports are checked and opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foundation {
    /// As the role says.
    With,
    /// Not at all (`--without-foundation`).
    Without,
}

/// Units that load a found firewall at boot, in the order in which they are asked (facts: the distribution's own).
const LOADERS: [&str; 5] =
    ["nftables.service", "firewalld.service", "ufw.service", "netfilter-persistent.service", "iptables.service"];

/// Everything that the adoption's plan is made of.
pub fn found(layout: &Layout, loaded: &Loaded, earlier: &State, foundation: Foundation) -> anyhow::Result<Found> {
    let node = &loaded.node;
    let mut found = Found {
        control: units::control(&node.predecessor).context("looking at the declared control")?,
        graphs: units::graphs(&node.predecessor).context("looking at what hangs on control")?,
        cron: units::cron(&node.predecessor, layout.root())?,
        processes: units::processes(&node.predecessor.processes)?,
        loader: loader(node)?,
        covered: earlier.covered.iter().map(|c| (c.file.clone(), c.mtime_ns)).collect(),
        earlier: earlier
            .control
            .iter()
            .map(|c| StopUnit {
                scope: c.scope.clone(),
                unit: c.unit.clone(),
                running: c.was == "active",
                stand_in: earlier.stand_ins.iter().any(|s| s.scope == c.scope && s.unit == c.unit),
            })
            .collect(),
        ..Found::default()
    };
    let declared = node.predecessor.files.iter().chain(node.files.iter().map(|f| &f.path));
    for path in declared.chain(node.predecessor.cron.iter().map(|c| &c.file)) {
        if let Err(e) = custody_fs::look(layout.root(), &crate::apply::found_path(path)?) {
            found.unkeepable.push((path.clone(), format!("{e:#}")));
        }
    }
    if node.role == Role::Control && foundation == Foundation::With {
        found.held = held(loaded, &found)?;
        found.foundation_openings = foundation_openings(loaded);
        found.absent_packages = absent_packages(layout, loaded);
    }
    let mut wanted: Vec<Opening> =
        node.openings.iter().map(|o| Opening { module: o.module.clone(), flow: o.flow.clone() }).collect();
    wanted.extend(found.foundation_openings.iter().cloned());
    match openings::preview(layout, &wanted) {
        Ok(rules) => found.opening_rules = rules,
        Err(e) => {
            let f = crate::failure::of(&e);
            found.unopenable = Some((f.kind, f.what, f.remedy));
        }
    }
    Ok(found)
}

/// The unit that loads the found firewall: as declared, else the first known one that is active.
pub fn loader(node: &Node) -> anyhow::Result<Option<UnitName>> {
    if let Some(unit) = &node.predecessor.firewall.loader {
        return Ok(Some(unit.clone()));
    }
    detected_loader()
}

/// The first known loader unit that is active.
pub fn detected_loader() -> anyhow::Result<Option<UnitName>> {
    let units: Vec<UnitName> = LOADERS.iter().filter_map(|n| UnitName::new(*n).ok()).collect();
    let states = crate::adapters::systemd::states(&Scope::System, &units)?;
    Ok(states.into_iter().find(|s| s.active == "active").map(|s| s.unit))
}

/// The foundation's ports as this node and its catalogue have them: which, number, scope.
fn foundation_ports(loaded: &Loaded) -> Vec<(FoundationPort, u16, PortScope, String)> {
    let mut out = Vec::new();
    for manifest in loaded.manifests.iter().filter(|m| m.foundation) {
        for port in &manifest.ports {
            let PortNumber::Foundation(which) = port.number else { continue };
            let number = loaded.node.foundation.get(&which).map_or(which.standard(), |e| e.port);
            out.push((which, number, port.scope.clone(), manifest.name.as_str().to_string()));
        }
    }
    out
}

/// What each foundation port needs open: its scope, in the grammar of flows. Loopback needs nothing.
fn foundation_openings(loaded: &Loaded) -> Vec<Opening> {
    let mut out = Vec::new();
    for (which, number, scope, module) in foundation_ports(loaded) {
        let carried = Carried::Ports { protocol: which.protocol(), first: number, last: number };
        let mut flow = Flow { carried, from: None, on: None, to: None, via_forward: false };
        match (scope, &loaded.node.overlay) {
            (PortScope::Loopback, _) => continue,
            // Without an overlay nobody can come by it.
            (PortScope::Overlay, None) => continue,
            (PortScope::Overlay, Some(overlay)) => {
                flow.from = Some(overlay.address.trunc());
                flow.on = Some(overlay.interface.clone());
            }
            (PortScope::Prefix(prefix), _) => flow.from = Some(prefix),
            (PortScope::Any, _) => {}
        }
        out.push(Opening { module, flow });
    }
    out
}

/// The foundation's ports that somebody holds. What declared control holds counts as coming free.
fn held(loaded: &Loaded, found: &Found) -> anyhow::Result<Vec<(String, String)>> {
    let listeners = listeners::probe().context("looking at who listens")?;
    let mut out = Vec::new();
    for (which, number, scope, _) in foundation_ports(loaded) {
        let wanted = loaded.node.foundation.get(&which).and_then(|e| e.address).or(match scope {
            PortScope::Loopback => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            PortScope::Overlay => loaded.node.overlay.as_ref().map(|o| o.address.addr()),
            PortScope::Prefix(_) | PortScope::Any => None,
        });
        for l in listeners.iter().filter(|l| l.protocol == which.protocol().word() && l.port == number) {
            let comes_free = l.unit.as_ref().is_some_and(|u| found.control.iter().any(|c| c.unit.as_str() == u));
            if !comes_free && overlap(l, wanted) {
                out.push((format!("{} ({number}/{})", which.key(), l.protocol), l.words()));
            }
        }
    }
    Ok(out)
}

/// Whether a socket keeps another from binding `wanted` (`None`: every address of both families).
fn overlap(l: &listeners::Listener, wanted: Option<IpAddr>) -> bool {
    let Some(wanted) = wanted else { return true };
    if l.address.is_unspecified() {
        // An IPv6 wildcard takes IPv4 as well unless it is IPv6 only (ipv6(7), IPV6_V6ONLY).
        return l.address.is_ipv6() == wanted.is_ipv6() || (l.address.is_ipv6() && !l.v6_only);
    }
    l.address == wanted || wanted.is_unspecified()
}

/// Packages that foundation modules need and dpkg does not have installed. On a machine without dpkg none are known.
fn absent_packages(layout: &Layout, loaded: &Loaded) -> Vec<String> {
    let info = layout.under("/var/lib/dpkg/info");
    if !info.is_dir() {
        return Vec::new();
    }
    let mut out: Vec<String> = loaded
        .manifests
        .iter()
        .filter(|m| m.foundation)
        .flat_map(|m| &m.packages)
        .filter(|p| !info.join(format!("{p}.list")).exists())
        .cloned()
        .collect();
    out.sort();
    out.dedup();
    out
}

/// The host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A refusal for a machine without systemd.
pub fn need_systemd() -> anyhow::Result<()> {
    // sd_booted(3): this directory exists if and only if systemd is the init.
    if std::path::Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    Err(Failure::new(Kind::Refused, "this machine was not booted with systemd")
        .remedy("mesh works on systemd alone")
        .into())
}

/// What is at a declared path now, in words.
pub fn file_words(layout: &Layout, path: &str) -> String {
    let looked = crate::apply::found_path(path).and_then(|p| custody_fs::look(layout.root(), &p));
    match looked {
        Ok(seen) => seen.sight.what.word().to_string(),
        Err(e) => format!("{e:#}"),
    }
}
