//! The commented `node.toml` that `mesh init` writes, from what was found on the machine.
//!
//! What probe is sure of stands in active lines, each with the reason; what it only suspects stands in comments.

use crate::document::quoted;
use crate::node::{FoundationPort, can_be_control};
use crate::unit::{Scope, UnitName};
use std::collections::BTreeMap;

/// How sure probe is of a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// It becomes an active line.
    Sure,
    /// It becomes a comment to be looked at.
    Maybe,
}

/// A unit that may be the predecessor's control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlCandidate {
    /// Whose manager.
    pub scope: Scope,
    /// The unit.
    pub unit: UnitName,
    /// Why it is thought to be control; one line.
    pub why: String,
    /// How sure that is.
    pub confidence: Confidence,
}

/// A file that the predecessor's sync may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCandidate {
    /// Absolute path.
    pub path: String,
    /// Why; one line.
    pub why: String,
    /// How sure that is.
    pub confidence: Confidence,
}

/// A cron file, or lines of one, that may be control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronCandidate {
    /// Absolute path of the file.
    pub file: String,
    /// A text that stands in each control line; `None` for the whole file.
    pub lines_with: Option<String>,
    /// Why; one line.
    pub why: String,
    /// How sure that is.
    pub confidence: Confidence,
}

/// A foundation port that something else holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPort {
    /// Which.
    pub port: FoundationPort,
    /// What holds it, in words.
    pub holder: String,
    /// A number that is free, 1..=65535; `None` where none was looked for.
    pub free: Option<u16>,
}

/// What probe found, as far as `node.toml` is about it. Empty lists are written as commented examples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InitFacts {
    /// The host's name; made into a node name where it is none.
    pub host_name: String,
    /// Candidates for control.
    pub control_candidates: Vec<ControlCandidate>,
    /// Candidates for control among cron's files.
    pub cron: Vec<CronCandidate>,
    /// Candidates for synced files.
    pub files: Vec<FileCandidate>,
    /// Tables of the found firewall, `FAMILY NAME`.
    pub firewall_tables: Vec<String>,
    /// The unit that loads it.
    pub loader: Option<UnitName>,
    /// Foundation ports that are taken here.
    pub held_foundation_ports: Vec<HeldPort>,
    /// Anything else worth reading before adopting, one line each: hazards, firewalls of another kind.
    pub notes: Vec<String>,
}

/// A node name made of a host name: lower case, what may not stand in one becomes `-`; `node` where nothing is left.
pub fn node_name(host: &str) -> String {
    let lower: String = host
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' { c } else { '-' })
        .collect();
    let mut labels: Vec<String> = Vec::new();
    let mut length = 0;
    for label in lower.split('.') {
        let label: String = label.trim_matches('-').chars().take(63).collect();
        let label = label.trim_matches('-');
        if label.is_empty() || length + label.len() + 1 > 64 {
            continue;
        }
        length += label.len() + 1;
        labels.push(label.to_string());
    }
    if labels.is_empty() { "node".into() } else { labels.join(".") }
}

/// A reason as a comment: one line, nothing in it that could end the comment.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_string()
}

/// One element of a list over several lines: active where sure, else commented out.
fn element(value: &str, why: &str, confidence: Confidence) -> String {
    let off = if confidence == Confidence::Sure { "" } else { "# " };
    format!("  {off}{value}, # {}\n", comment(why))
}

/// A list over several lines; `example` in a comment where there is nothing in it.
fn list(key: &str, elements: &[String], example: &str) -> String {
    if elements.is_empty() {
        return format!("# {key} = {example}\n");
    }
    format!("{key} = [\n{}]\n", elements.concat())
}

fn units(candidates: &[&ControlCandidate]) -> Vec<String> {
    // Twice the same unit would be refused, so the surer mention is kept.
    let mut best: BTreeMap<&UnitName, &ControlCandidate> = BTreeMap::new();
    for c in candidates {
        let old = best.entry(&c.unit).or_insert(c);
        if c.confidence < old.confidence {
            *old = c;
        }
    }
    best.values().map(|c| element(&quoted(c.unit.as_str()), &c.why, c.confidence)).collect()
}

/// The file's text. It always parses and validates, whatever was found.
pub fn render(facts: &InitFacts) -> String {
    let mut out = String::new();
    out.push_str(
        "# /etc/mesh/node.toml: what this node is, written by mesh init from what it found here.\n\
         # READ AND EDIT IT BEFORE ADOPTING: a list of candidates is a guess until somebody who knows has read it.\n\
         # mesh cat-config checks it; mesh adopt --dry-run shows what would be done; mesh-node.toml(5) says what each key means.\n\
         schema = 1\n\n",
    );
    for note in &facts.notes {
        out.push_str(&format!("# NOTE: {}\n", comment(note)));
    }
    out.push_str(&format!("name = {}\n", quoted(&node_name(&facts.host_name))));
    out.push_str(
        "# \"control\" has the foundation (store, bus, registry, overlay). A \"node\" uses another's:\n\
         #   role = \"node\"\n#   [foundation]\n#   at = \"NAME-or-address of the control-node\"\n\
         role = \"control\"\n\
         # Modules of the catalogue that this node is to run.\nmodules = []\n\n",
    );
    foundation(facts, &mut out);
    out.push_str(
        "# The private network between nodes.\n\
         # [overlay]\n# address = \"10.88.0.1/16\"\n# interface = \"mesh0\"\n\
         # peers = [{ name = \"beta\", public_key = \"…\", endpoint = \"192.0.2.7:51820\", allowed = [\"10.88.0.2/32\"] }]\n\n",
    );
    predecessor(facts, &mut out);
    out.push_str(
        "# A flow to open through the found firewall; each is one [[opening]].\n\
         # [[opening]]\n# flow = \"tcp/9443 from 10.0.0.0/8\"\n\n\
         # A file of the node that no module owns; it is written at the flip, not before.\n\
         # [[file]]\n# path = \"/etc/ssh/sshd_config.d/40-mesh.conf\"\n# content = \"PasswordAuthentication no\\n\"\n\
         # validator = [\"/usr/sbin/sshd\", \"-t\", \"-f\", \"{}\"]\n\n\
         [flip]\n# Open ports that nobody declares and that may close at the flip.\ndrop = []\n\
         # Assigned modules that may still be unmigrated then.\nunmigrated = []\n\
         confirm_within = \"5min\"\npreview_max_age = \"15min\"\n",
    );
    out
}

fn foundation(facts: &InitFacts, out: &mut String) {
    out.push_str("# The foundation's ports on this node. Commented lines are the standard ones.\n[foundation]\n");
    let held: BTreeMap<FoundationPort, &HeldPort> = facts.held_foundation_ports.iter().map(|h| (h.port, h)).collect();
    // A proposal must not take a number that another foundation port has: two proposals, or a standard port.
    let mut taken: Vec<(crate::flow::PortProtocol, u16)> =
        FoundationPort::ALL.into_iter().map(|p| (p.protocol(), p.standard())).collect();
    for port in FoundationPort::ALL {
        let standard = port.standard();
        let Some(h) = held.get(&port) else {
            out.push_str(&format!("# {} = {standard}\n", port.key()));
            continue;
        };
        let holder = comment(&h.holder);
        let free = h.free.filter(|n| *n != 0 && !taken.contains(&(port.protocol(), *n)));
        match free {
            Some(n) => {
                taken.push((port.protocol(), n));
                out.push_str(&format!("{} = {n} # {standard}, the standard one, is held by {holder}\n", port.key()));
            }
            None => out.push_str(&format!(
                "# HELD: {standard} is taken by {holder}; give another number, or adopt refuses (exit 69)\n# {} = {standard}\n",
                port.key()
            )),
        }
    }
    out.push('\n');
}

fn predecessor(facts: &InitFacts, out: &mut String) {
    out.push_str(
        "# The fleet system that ran this machine before: its control is stopped while the mesh has the machine, its\n\
         # services go on untouched and are not listed here. Lines that begin with # are candidates that look less sure.\n\
         [predecessor]\n",
    );
    let system: Vec<&ControlCandidate> =
        facts.control_candidates.iter().filter(|c| c.scope == Scope::System && can_be_control(&c.unit)).collect();
    out.push_str(&list("units", &units(&system), "[\"fleet-agent.service\", \"fleet-sync.timer\"]"));
    let mut files: BTreeMap<&str, &FileCandidate> = BTreeMap::new();
    for f in facts.files.iter().filter(|f| crate::words::path(&f.path).is_ok()) {
        let old = files.entry(&f.path).or_insert(f);
        if f.confidence < old.confidence {
            *old = f;
        }
    }
    let files: Vec<String> = files.values().map(|f| element(&quoted(&f.path), &f.why, f.confidence)).collect();
    out.push_str("# The files that its sync writes: they are kept as they are, with their history.\n");
    out.push_str(&list("files", &files, "[\"/etc/ssh/sshd_config.d/50-fleet.conf\"]"));
    out.push_str(
        "# true: where something else requires a control unit, a unit that does nothing takes its place.\n\
         keep-dependents = false\n",
    );
    let mut cron: BTreeMap<(&str, Option<&str>), &CronCandidate> = BTreeMap::new();
    for c in facts.cron.iter().filter(|c| crate::words::path(&c.file).is_ok()) {
        let lines = c.lines_with.as_deref().filter(|t| !t.trim().is_empty() && !t.contains('\n'));
        cron.entry((&c.file, lines)).or_insert(c);
    }
    let cron: Vec<String> = cron
        .iter()
        .map(|((file, lines), c)| {
            let lines = lines.map(|t| format!(", lines_with = {}", quoted(t))).unwrap_or_default();
            element(&format!("{{ file = {}{lines} }}", quoted(file)), &c.why, c.confidence)
        })
        .collect();
    out.push_str(&list("cron", &cron, "[{ file = \"/etc/cron.d/fleet\" }]"));
    out.push_str("# processes = [{ executable = \"/opt/fleet/bin/agent\", user = \"fleet\" }]\n\n");

    let mut users: BTreeMap<&str, Vec<&ControlCandidate>> = BTreeMap::new();
    for c in &facts.control_candidates {
        if let Scope::User(name) = &c.scope {
            if crate::words::account(name).is_ok() && can_be_control(&c.unit) {
                users.entry(name).or_default().push(c);
            }
        }
    }
    for (name, candidates) in users {
        let key = crate::document::quoted_key(name);
        out.push_str(&format!("[predecessor.user.{key}]\n{}\n", list("units", &units(&candidates), "[]")));
    }
    let tables: Vec<&String> = facts.firewall_tables.iter().filter(|t| crate::node::is_firewall_table(t)).collect();
    if tables.is_empty() && facts.loader.is_none() {
        out.push_str("# Its firewall; detected where this is left out.\n# [predecessor.firewall]\n# tables = [\"inet filter\"]\n# loader = \"nftables.service\"\n\n");
        return;
    }
    out.push_str("# Its firewall, as detected now; it stays in force until the flip.\n[predecessor.firewall]\n");
    let mut names: Vec<String> = tables.into_iter().map(|t| quoted(t)).collect();
    names.sort();
    names.dedup();
    out.push_str(&format!("tables = [{}]\n", names.join(", ")));
    match &facts.loader {
        Some(unit) if !unit.is_template() => out.push_str(&format!("loader = {}\n\n", quoted(unit.as_str()))),
        _ => out.push_str("# loader = \"nftables.service\"\n\n"),
    }
}
