//! All known modules, and what can only be checked with a node and its modules side by side.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::document::{Place, quoted};
use crate::flow::PortProtocol;
use crate::manifest::{FOUNDATION_MODULES, Manifest, ModuleName, PortNumber};
use crate::nearest::nearest;
use crate::node::{FoundationPort, Node, Role};
use std::collections::{BTreeMap, BTreeSet};

/// Known modules. A boot-time reader parses only what a node is assigned; the names of the others are enough to tell
/// an unknown module from an unread one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Catalogue {
    /// The manifests that were read.
    pub manifests: BTreeMap<ModuleName, Manifest>,
    /// The names of all manifests, read or not.
    pub known: BTreeSet<ModuleName>,
}

impl Catalogue {
    /// A catalogue of these manifests and no other names.
    pub fn new(manifests: impl IntoIterator<Item = Manifest>) -> Catalogue {
        let manifests: BTreeMap<ModuleName, Manifest> = manifests.into_iter().map(|m| (m.name.clone(), m)).collect();
        let known = manifests.keys().cloned().collect();
        Catalogue { manifests, known }
    }

    /// One manifest.
    pub fn get(&self, name: &ModuleName) -> Option<&Manifest> {
        self.manifests.get(name)
    }

    /// Every manifest, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Manifest> {
        self.manifests.values()
    }
}

/// Who claims a path or a port.
#[derive(Clone)]
struct Claim {
    who: String,
    place: Place,
}

/// Checks a node against its modules: each known and read, none claiming another's path or port, no circle of
/// dependencies. The error holds every fault.
pub fn check(node: &Node, catalogue: &Catalogue) -> Result<(), Diagnostics> {
    let mut faults = Vec::new();
    let mut assigned = Vec::new();
    for (i, name) in node.modules.iter().enumerate() {
        match catalogue.get(name) {
            Some(m) => assigned.push(m),
            None if catalogue.known.contains(name) => {}
            None => faults.push(fault(
                node.origins.place(&format!("modules.{i}"), "node.toml"),
                &quoted(name.as_str()),
                format!("module {name} is not in the catalogue"),
                match nearest(name.as_str(), catalogue.known.iter().map(ModuleName::as_str)) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("put its manifest at /etc/mesh/catalogue/{name}.toml"),
                },
            )),
        }
    }
    paths(node, &assigned, &mut faults);
    ports(node, &assigned, &mut faults);
    depends(node, catalogue, &assigned, &mut faults);
    if faults.is_empty() { Ok(()) } else { Err(Diagnostics(faults)) }
}

fn fault(place: Place, value: &str, what: String, remedy: String) -> Diagnostic {
    Diagnostic { file: place.file, line: place.line, column: place.column, value: value.into(), what, remedy }
}

/// The file of a manifest, for a part whose place was not recorded.
fn file_of(m: &Manifest) -> String {
    m.origins.0.get("file").map_or_else(|| format!("catalogue/{}.toml", m.name), |p| p.file.clone())
}

fn paths(node: &Node, assigned: &[&Manifest], faults: &mut Vec<Diagnostic>) {
    let mut claims: BTreeMap<&str, Claim> = BTreeMap::new();
    let own = node.files.iter().enumerate().map(|(i, f)| {
        (f, Claim { who: "the node itself".into(), place: node.origins.place(&format!("file.{i}.path"), "node.toml") })
    });
    let theirs = assigned.iter().flat_map(|m| {
        m.files.iter().enumerate().map(|(i, f)| {
            (
                f,
                Claim {
                    who: format!("module {}", m.name),
                    place: m.origins.place(&format!("file.{i}.path"), &file_of(m)),
                },
            )
        })
    });
    for (file, claim) in own.chain(theirs) {
        match claims.get(file.path.as_str()) {
            Some(first) => faults.push(fault(
                claim.place,
                &quoted(&file.path),
                format!("{} and {} both declare {}", first.who, claim.who, file.path),
                format!("declare it in one of them; the first is at {}", first.place),
            )),
            None => {
                claims.insert(&file.path, claim);
            }
        }
    }
}

fn ports(node: &Node, assigned: &[&Manifest], faults: &mut Vec<Diagnostic>) {
    let mut claims: BTreeMap<(PortProtocol, u16), (Claim, Option<FoundationPort>)> = BTreeMap::new();
    // A control-node raises the whole foundation, whether or not its modules are listed.
    if node.role == Role::Control {
        for (which, endpoint) in &node.foundation {
            let place = node.origins.place(&format!("foundation.{}", which.key()), "node.toml");
            let who = format!("the foundation ({})", which.key());
            claims.insert((which.protocol(), endpoint.port), (Claim { who, place }, Some(*which)));
        }
    }
    for m in assigned {
        for (i, p) in m.ports.iter().enumerate() {
            let (number, which) = match p.number {
                PortNumber::Default(n) => (n, None),
                PortNumber::Foundation(f) => (node.foundation.get(&f).map_or(f.standard(), |e| e.port), Some(f)),
            };
            let claim =
                Claim { who: format!("module {}", m.name), place: m.origins.place(&format!("port.{i}"), &file_of(m)) };
            match claims.get(&(p.protocol, number)) {
                // The foundation's own module takes the foundation's port.
                Some((_, Some(held))) if which == Some(*held) && held.module() == m.name.as_str() => {}
                Some((first, _)) => faults.push(fault(
                    claim.place,
                    &match which {
                        Some(f) => quoted(&format!("{{{{ foundation.{}.port }}}}", f.key())),
                        None => number.to_string(),
                    },
                    format!("{} and {} both have port {}/{number}", first.who, claim.who, p.protocol.word()),
                    match which {
                        Some(f) => format!("give foundation.{} another number in node.toml", f.key()),
                        None => format!("give one of them another port; the first is at {}", first.place),
                    },
                )),
                None => {
                    claims.insert((p.protocol, number), (claim, which));
                }
            }
        }
    }
}

fn depends(node: &Node, catalogue: &Catalogue, assigned: &[&Manifest], faults: &mut Vec<Diagnostic>) {
    let here: BTreeSet<&ModuleName> = node.modules.iter().collect();
    for m in assigned {
        for (i, d) in m.depends.iter().enumerate() {
            let place = || m.origins.place(&format!("depends.{i}"), &file_of(m));
            // The foundation runs on the control-node, for every node.
            if here.contains(d) || FOUNDATION_MODULES.contains(&d.as_str()) {
                continue;
            }
            let known = catalogue.known.contains(d);
            let (what, remedy) = if known {
                (
                    format!("module {} depends on {d}, which is not assigned to this node", m.name),
                    format!("add {d:?} to modules in node.toml", d = d.as_str()),
                )
            } else {
                (
                    format!("module {} depends on {d}, which is not in the catalogue", m.name),
                    match nearest(d.as_str(), catalogue.known.iter().map(ModuleName::as_str)) {
                        Some(near) => format!("did you mean {near}?"),
                        None => format!("put its manifest at /etc/mesh/catalogue/{d}.toml"),
                    },
                )
            };
            faults.push(fault(place(), &quoted(d.as_str()), what, remedy));
        }
    }
    circles(assigned, faults);
}

/// One fault for each circle that a depth-first walk closes; without recursion, so that no manifest can exhaust the
/// stack of whoever reads it.
fn circles(assigned: &[&Manifest], faults: &mut Vec<Diagnostic>) {
    let by_name: BTreeMap<&ModuleName, &Manifest> = assigned.iter().map(|m| (&m.name, *m)).collect();
    let mut done: BTreeSet<&ModuleName> = BTreeSet::new();
    for start in assigned {
        let mut path: Vec<(&Manifest, usize)> = vec![(start, 0)];
        let mut on_path: BTreeSet<&ModuleName> = BTreeSet::from([&start.name]);
        while let Some((m, next)) = path.last_mut() {
            let m: &Manifest = m;
            if done.contains(&m.name) || *next >= m.depends.len() {
                done.insert(&m.name);
                on_path.remove(&m.name);
                path.pop();
                continue;
            }
            let i = *next;
            *next += 1;
            let d = &m.depends[i];
            if on_path.contains(d) {
                let circle: Vec<&str> = path
                    .iter()
                    .map(|(m, _)| m.name.as_str())
                    .skip_while(|n| *n != d.as_str())
                    .chain([d.as_str()])
                    .collect();
                faults.push(fault(
                    m.origins.place(&format!("depends.{i}"), &file_of(m)),
                    &quoted(d.as_str()),
                    format!("modules depend on each other in a circle: {}", circle.join(" → ")),
                    "remove one of these dependencies".into(),
                ));
            } else if let Some(next) = by_name.get(d) {
                on_path.insert(&next.name);
                path.push((next, 0));
            }
        }
    }
}
