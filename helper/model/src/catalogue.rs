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

/// Who claims a path or a port; its place is only looked up where two claim one.
#[derive(Clone, Copy)]
enum Claim<'a> {
    /// A part of `node.toml`: `[[file]]` of this number.
    NodeFile(&'a Node, usize),
    /// A foundation port.
    Foundation(&'a Node, FoundationPort),
    /// A part of a manifest: `file` or `port`, of this number.
    Module(&'a Manifest, &'static str, usize),
}

impl Claim<'_> {
    fn who(self) -> String {
        match self {
            Claim::NodeFile(..) => "the node itself".into(),
            Claim::Foundation(_, which) => format!("the foundation ({})", which.key()),
            Claim::Module(m, ..) => format!("module {}", m.name),
        }
    }

    fn place(self) -> Place {
        match self {
            Claim::NodeFile(node, i) => node.origins.place(&format!("file.{i}.path"), "node.toml"),
            Claim::Foundation(node, which) => node.origins.place(&format!("foundation.{}", which.key()), "node.toml"),
            Claim::Module(m, "file", i) => m.origins.place(&format!("file.{i}.path"), &file_of(m)),
            Claim::Module(m, part, i) => m.origins.place(&format!("{part}.{i}"), &file_of(m)),
        }
    }
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
    let mut claims: BTreeMap<&str, Claim<'_>> = BTreeMap::new();
    let own = node.files.iter().enumerate().map(|(i, f)| (f, Claim::NodeFile(node, i)));
    let theirs =
        assigned.iter().flat_map(|m| m.files.iter().enumerate().map(|(i, f)| (f, Claim::Module(m, "file", i))));
    for (file, claim) in own.chain(theirs) {
        match claims.get(file.path.as_str()) {
            Some(first) => faults.push(fault(
                claim.place(),
                &quoted(&file.path),
                format!("{} and {} both declare {}", first.who(), claim.who(), file.path),
                format!("declare it in one of them; the first is at {}", first.place()),
            )),
            None => {
                claims.insert(&file.path, claim);
            }
        }
    }
}

fn ports(node: &Node, assigned: &[&Manifest], faults: &mut Vec<Diagnostic>) {
    let mut claims: BTreeMap<(PortProtocol, u16), Claim<'_>> = BTreeMap::new();
    // A control-node raises the whole foundation, whether or not its modules are listed.
    if node.role == Role::Control {
        for (which, endpoint) in &node.foundation {
            claims.insert((which.protocol(), endpoint.port), Claim::Foundation(node, *which));
        }
    }
    for m in assigned {
        for (i, p) in m.ports.iter().enumerate() {
            let (number, which) = match p.number {
                PortNumber::Default(n) => (n, None),
                PortNumber::Foundation(f) => (node.foundation.get(&f).map_or(f.standard(), |e| e.port), Some(f)),
            };
            let claim = Claim::Module(m, "port", i);
            match claims.get(&(p.protocol, number)) {
                // The foundation's own module takes the foundation's port; two of those on one number have addresses
                // of their own, or the node would have been refused.
                Some(Claim::Foundation(..)) if which.is_some_and(|f| f.module() == m.name.as_str()) => {}
                Some(first) => faults.push(fault(
                    claim.place(),
                    &match which {
                        Some(f) => quoted(&format!("{{{{ foundation.{}.port }}}}", f.key())),
                        None => number.to_string(),
                    },
                    format!("{} and {} both have port {}/{number}", first.who(), claim.who(), p.protocol.word()),
                    match which {
                        Some(f) => format!("give foundation.{} another number in node.toml", f.key()),
                        None => format!("give one of them another port; the first is at {}", first.place()),
                    },
                )),
                None => {
                    claims.insert((p.protocol, number), claim);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Source, merge};
    use crate::{manifest, node};

    fn source(text: &str) -> Source {
        Source { file: "/f".into(), text: text.into() }
    }

    fn faults(foundation: &str, modules: &[(&str, &str)]) -> Vec<String> {
        let names: Vec<String> = modules.iter().map(|(n, _)| format!("{n:?}")).collect();
        let text = format!(
            "schema = 1\nname = \"a\"\nrole = \"control\"\nmodules = [{}]\n[foundation]\n{foundation}",
            names.join(", ")
        );
        let node = node::read(&merge(vec![source(&text)]).unwrap()).unwrap_or_else(|e| panic!("{e}"));
        let manifests = modules.iter().map(|(name, text)| {
            let text = format!("schema = 1\nsummary = \"x\"\n{text}");
            manifest::read(ModuleName::new(*name).unwrap(), source(&text)).unwrap_or_else(|e| panic!("{e}"))
        });
        let all = check(&node, &Catalogue::new(manifests)).err().map(|e| e.0).unwrap_or_default();
        all.into_iter().map(|d| d.what).collect()
    }

    #[test]
    fn a_foundation_port_is_its_own_modules_alone() {
        let port = |name: &str, key: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\nprotocol = \"tcp\"\nport = \"{{{{ foundation.{key}.port }}}}\"\nscope = \"any\"\n"
            )
        };
        let bus = format!("foundation = true\n{}{}", port("amqp", "bus.amqp"), port("management", "bus.management"));
        let apart = "bus.amqp = { port = 7000, address = \"127.0.0.1\" }\n\
                     bus.management = { port = 7000, address = \"127.0.0.2\" }\n";
        assert_eq!(faults("", &[("bus", &bus)]), [] as [&str; 0]);
        assert_eq!(faults(apart, &[("bus", &bus)]), [] as [&str; 0]);
        assert_eq!(faults("", &[("pool", &port("sql", "store.sql"))]).len(), 1);
        assert_eq!(
            faults("", &[("web", &port("x", "bus.amqp").replace("\"{{ foundation.bus.amqp.port }}\"", "5672"))]).len(),
            1
        );
    }

    #[test]
    fn each_circle_is_told_once() {
        let depends = |names: &[&str]| {
            format!("depends = [{}]\n", names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", "))
        };
        let (a, b, c, d) = (depends(&["b", "c"]), depends(&["c"]), depends(&["a"]), depends(&["a", "store"]));
        let told = faults("", &[("d", &d), ("a", &a), ("b", &b), ("c", &c)]);
        assert_eq!(told, ["modules depend on each other in a circle: a → b → c → a"]);
        assert_eq!(faults("", &[("a", &depends(&["b"])), ("b", &depends(&[]))]), [] as [&str; 0]);
    }

    #[test]
    fn a_long_chain_of_dependencies_is_walked_without_the_stack() {
        let texts: Vec<(String, String)> = (0..5000)
            .map(|i| (format!("m{i}"), if i == 0 { String::new() } else { format!("depends = [\"m{}\"]\n", i - 1) }))
            .rev()
            .collect();
        let modules: Vec<(&str, &str)> = texts.iter().map(|(n, t)| (n.as_str(), t.as_str())).collect();
        assert_eq!(faults("", &modules), [] as [&str; 0]);
    }
}
