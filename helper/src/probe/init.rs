//! What `mesh init` writes down: candidates, each with its reason, for a person to check.

use crate::apply::openings;
use crate::layout::Layout;
use crate::probe::{listeners, machine, units};
use mesh_model::init_template::{Confidence, ControlCandidate, CronCandidate, FileCandidate, HeldPort, InitFacts};
use mesh_model::node::FoundationPort;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file written more recently than this may be one that a sync keeps writing.
const RECENT: Duration = Duration::from_secs(120);
/// How deep and how far the search for such files goes: a hint is not worth more.
const DEPTH: usize = 4;
const ENTRIES: usize = 50_000;
/// Folders of `/etc` whose files change by themselves.
const NOT_SYNCED: [&str; 4] = ["/etc/mesh", "/etc/ssl", "/etc/systemd", "/etc/alternatives"];

/// Looks at the machine for `mesh init`.
pub fn facts(layout: &Layout) -> anyhow::Result<InitFacts> {
    machine::need_systemd()?;
    let mut notes = Vec::new();
    let tables = openings::tables(layout).unwrap_or_else(|e| {
        notes.push(format!("the packet filter could not be read: {e:#}"));
        Vec::new()
    });
    for (table, kind) in tables.iter().filter(|(_, kind)| kind != "nftables") {
        notes.push(format!("table {table} is {kind}'s"));
    }
    let listeners = listeners::probe()?;
    let control_candidates = units::candidates()?
        .into_iter()
        .map(|c| ControlCandidate {
            // What a lingering user's timers and paths run is what a user-level control looks like; a timer that the
            // admin made for the system may as well be a backup.
            confidence: match c.scope {
                mesh_model::unit::Scope::User(_) => Confidence::Sure,
                mesh_model::unit::Scope::System => Confidence::Maybe,
            },
            scope: c.scope,
            unit: c.unit,
            why: c.why,
        })
        .collect();
    Ok(InitFacts {
        host_name: machine::host_name(),
        control_candidates,
        cron: cron(layout),
        files: recent_files(layout),
        firewall_tables: tables.into_iter().filter(|(_, kind)| kind == "nftables").map(|(t, _)| t).collect(),
        loader: machine::detected_loader()?,
        held_foundation_ports: held(&listeners),
        notes,
    })
}

fn held(all: &[listeners::Listener]) -> Vec<HeldPort> {
    let taken = |p: FoundationPort, n: u16| all.iter().find(|l| l.protocol == p.protocol().word() && l.port == n);
    let mut out = Vec::new();
    for port in FoundationPort::ALL {
        let Some(holder) = taken(port, port.standard()) else { continue };
        // The next free one above the standard port is the one that people expect.
        let free = (port.standard()..=u16::MAX).skip(1).take(200).find(|n| taken(port, *n).is_none());
        out.push(HeldPort { port, holder: holder.words(), free });
    }
    out
}

/// The files of `/etc/cron.d` that no package owns.
fn cron(layout: &Layout) -> Vec<CronCandidate> {
    let mut out = Vec::new();
    let Ok(dir) = fs::read_dir(layout.under("/etc/cron.d")) else { return out };
    for entry in dir.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = format!("/etc/cron.d/{name}");
        if name.starts_with('.') || packaged(layout, &file) {
            continue;
        }
        out.push(CronCandidate {
            file,
            lines_with: None,
            why: "no package owns it".into(),
            confidence: Confidence::Maybe,
        });
    }
    out.sort_by(|a, b| a.file.cmp(&b.file));
    out
}

/// Whether dpkg lists the path as a conffile or file of a package.
fn packaged(layout: &Layout, path: &str) -> bool {
    let Ok(dir) = fs::read_dir(layout.under("/var/lib/dpkg/info")) else { return false };
    dir.flatten().filter(|e| e.path().extension().is_some_and(|x| x == "list")).any(|e| {
        // A list that cannot be read owns nothing that we know of.
        fs::read_to_string(e.path()).is_ok_and(|text| text.lines().any(|l| l == path))
    })
}

/// Files in `/etc` and in homes that were written in the last two minutes.
fn recent_files(layout: &Layout) -> Vec<FileCandidate> {
    let mut roots = vec![layout.under("/etc"), layout.under("/root")];
    if let Ok(homes) = fs::read_dir(layout.under("/home")) {
        roots.extend(homes.flatten().map(|h| h.path()));
    }
    let since = SystemTime::now() - RECENT;
    let mut left = ENTRIES;
    let mut out = Vec::new();
    for root in roots {
        search(layout, &root, DEPTH, since, &mut left, &mut out);
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}

fn search(
    layout: &Layout,
    dir: &Path,
    depth: usize,
    since: SystemTime,
    left: &mut usize,
    out: &mut Vec<FileCandidate>,
) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let path: PathBuf = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        let shown = format!("/{}", path.strip_prefix(layout.root()).unwrap_or(&path).display());
        if meta.is_dir() && depth > 1 && !NOT_SYNCED.contains(&shown.as_str()) {
            search(layout, &path, depth - 1, since, left, out);
        }
        if meta.is_file() && meta.modified().is_ok_and(|t| t > since) && path.to_str().is_some() {
            out.push(FileCandidate {
                path: shown,
                why: "it was written within the last two minutes".into(),
                confidence: Confidence::Maybe,
            });
        }
    }
}
