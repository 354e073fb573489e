//! The verb `probe`: what is on this machine. Read-only.

use super::Context;
use crate::adapters::config;
use crate::apply::openings;
use crate::failure;
use crate::probe::listeners::{self, Listener};
use crate::probe::machine;
use crate::probe::units::{self, Candidate};
use crate::show::{json, text};
use serde::Serialize;

/// A table of the found firewall.
#[derive(Debug, Serialize)]
struct FoundTable {
    table: String,
    kind: String,
}

/// A declared file.
#[derive(Debug, Serialize)]
struct DeclaredFile {
    path: String,
    state: String,
}

/// The document `mesh.probe/1`.
#[derive(Debug, Serialize)]
struct Probe {
    listeners: Vec<Listener>,
    tables: Vec<FoundTable>,
    loader: Option<String>,
    files: Vec<DeclaredFile>,
    control: Vec<Candidate>,
    unread: Vec<String>,
}

/// Runs `mesh probe`.
pub fn run(ctx: &Context) -> anyhow::Result<()> {
    ctx.need_machine_and_root("probe")?;
    machine::need_systemd()?;
    let probe = look(ctx)?;
    if ctx.json {
        return text::out(&format!("{:#}", json::document("probe", &ctx.head(), &probe)?));
    }
    text::out(&words(&probe))
}

fn look(ctx: &Context) -> anyhow::Result<Probe> {
    let mut unread = Vec::new();
    let tables = openings::tables(&ctx.layout).unwrap_or_else(|e| {
        unread.push(format!("the packet filter: {e:#}"));
        Vec::new()
    });
    let loaded = config::load(&ctx.layout).unwrap_or_else(|e| {
        unread.push(format!("node.toml: {}", failure::of(&e)));
        None
    });
    let mut files = Vec::new();
    for path in loaded.iter().flat_map(|l| l.node.predecessor.files.iter().chain(l.node.files.iter().map(|f| &f.path)))
    {
        files.push(DeclaredFile { path: path.clone(), state: machine::file_words(&ctx.layout, path) });
    }
    Ok(Probe {
        listeners: listeners::probe()?,
        tables: tables.into_iter().map(|(table, kind)| FoundTable { table, kind }).collect(),
        loader: machine::detected_loader()?.map(|u| u.to_string()),
        files,
        control: units::candidates()?,
        unread,
    })
}

fn words(p: &Probe) -> String {
    let mut parts = Vec::new();
    let mut t = text::table(&["proto", "address", "port", "unit", "process"]);
    for l in &p.listeners {
        let process =
            l.processes.first().map(|q| format!("{} ({})", q.executable, q.pid)).unwrap_or_else(|| "kernel".into());
        t.add_row([
            l.protocol.to_string(),
            l.address.to_string(),
            l.port.to_string(),
            l.unit.clone().unwrap_or_default(),
            process,
        ]);
    }
    parts.push(format!("{}\n{t}", text::styled(text::HEAD, &format!("{} listening sockets", p.listeners.len()))));
    let mut t = text::table(&["table", "whose"]);
    for f in &p.tables {
        t.add_row([f.table.clone(), f.kind.clone()]);
    }
    let loader = p.loader.as_ref().map(|l| format!(", loaded by {l}")).unwrap_or_default();
    parts.push(format!("{}\n{t}", text::styled(text::HEAD, &format!("{} firewall tables{loader}", p.tables.len()))));
    if !p.files.is_empty() {
        let mut t = text::table(&["declared file", "now"]);
        for f in &p.files {
            t.add_row([f.path.clone(), f.state.clone()]);
        }
        parts.push(format!("{}\n{t}", text::styled(text::HEAD, &format!("{} declared files", p.files.len()))));
    }
    let mut t = text::table(&["unit", "manager", "state", "why"]);
    for c in &p.control {
        t.add_row([c.unit.to_string(), c.scope.to_string(), c.state.clone(), c.why.clone()]);
    }
    parts
        .push(format!("{}\n{t}", text::styled(text::HEAD, &format!("{} control candidates running", p.control.len()))));
    for u in &p.unread {
        parts.push(text::styled(text::WARN, &format!("not read: {u}")));
    }
    parts.join("\n\n")
}
