//! The verb `status`: the node at a glance. Readable by anybody; what only root can read is said to be so.

use super::Context;
use crate::adapters::config;
use crate::adapters::custody_store::Store;
use crate::adapters::systemd;
use crate::apply::{openings, undo};
use crate::failure;
use crate::plan::release;
use crate::probe::units;
use crate::record::ledger::broken_ledger;
use crate::show::{json, text};
use mesh_model::mode::Mode;
use mesh_model::node::Role;
use mesh_model::state::State;
use mesh_model::unit::{Scope, UnitName, unescape_path};
use serde::Serialize;
use std::fs;

/// What cannot be read without root, in words.
const NEEDS_ROOT: &str = "readable by root only";

/// One control unit.
#[derive(Debug, Serialize)]
struct Control {
    scope: String,
    unit: String,
    state: Option<String>,
    was: String,
}

/// The document `mesh.status/1`.
#[derive(Debug, Serialize)]
struct Status {
    role: Option<Role>,
    adopted_since: Option<String>,
    pending: Option<String>,
    invalid: Option<String>,
    control: Vec<Control>,
    control_alive: Vec<String>,
    openings_wanted: usize,
    openings_in_force: Option<usize>,
    custody_paths: Option<usize>,
    custody_edited: Option<Vec<String>>,
    left_running: Vec<String>,
    loader: Option<String>,
    notes: Vec<String>,
}

/// Runs `mesh status`.
pub fn run(ctx: &Context) -> anyhow::Result<()> {
    let status = look(ctx)?;
    if ctx.json {
        return text::out(&format!("{:#}", json::document("status", &ctx.head(), &status)?));
    }
    text::out(&words(ctx, &status))
}

fn look(ctx: &Context) -> anyhow::Result<Status> {
    let root = rustix::process::geteuid().is_root();
    let live = ctx.layout.is_machine() && crate::probe::machine::need_systemd().is_ok();
    let mut invalid = None;
    let mode = config::read_mode(&ctx.layout).unwrap_or_else(|e| {
        invalid = Some(e.to_string());
        Mode::Unmanaged
    });
    let loaded = config::load(&ctx.layout).unwrap_or_else(|e| {
        invalid.get_or_insert(failure::of(&e).to_string());
        None
    });
    let state = config::read_state(&ctx.layout).unwrap_or_else(|e| {
        invalid.get_or_insert(failure::of(&e).to_string());
        State::default()
    });
    let wanted = openings::read_file(&ctx.layout).unwrap_or_else(|e| {
        invalid.get_or_insert(failure::of(&e).to_string());
        Vec::new()
    });
    if mode == Mode::Adopted && !ctx.layout.state().exists() {
        invalid.get_or_insert(format!(
            "{} is missing: somebody removed it; mesh adopt writes it anew from the ledger",
            ctx.layout.state().display()
        ));
    }
    let node = loaded.as_ref().map(|l| &l.node);
    let mut notes = Vec::new();
    if mode == Mode::Adopted && node.is_some_and(|n| n.role == Role::Control) {
        notes.push(
            "while this control-node is adopted, the predecessor's updates stop for every machine it manages".into(),
        );
    }
    if live {
        notes.extend(lowered(mode));
    }
    let (control, control_alive) = if live { control(&state, root, &mut notes) } else { (Vec::new(), Vec::new()) };
    let in_force = match (live && root, openings::in_force(&ctx.layout, &wanted)) {
        (true, Ok(n)) => Some(n),
        (true, Err(e)) => {
            notes.push(format!("the ruleset cannot be read: {:#}", e));
            None
        }
        (false, _) => None,
    };
    if root {
        match crate::record::ledger::read(&ctx.layout) {
            Ok((_, None)) => {}
            Ok((_, Some(broken))) => notes.push(broken_ledger(&ctx.layout.ledger(), &broken).to_string()),
            Err(e) => notes.push(format!("the ledger cannot be read: {e:#}")),
        }
    }
    let (custody_paths, custody_edited) = if root { custody(ctx, &mut notes) } else { (None, None) };
    let pending = match (root, config::read_pending(&ctx.layout)) {
        (true, Ok(p)) => {
            p.map(|p| format!("{:?} was cut in the middle; mesh recover finishes or undoes it", p.verb).to_lowercase())
        }
        (true, Err(e)) => Some(format!("{e:#}")),
        (false, _) => ctx.layout.pending().exists().then(|| "a verb is in the middle, or was cut".to_string()),
    };
    Ok(Status {
        role: node.map(|n| n.role),
        adopted_since: (mode == Mode::Adopted).then(|| since(ctx)).flatten(),
        pending,
        invalid,
        control,
        control_alive,
        openings_wanted: wanted.len(),
        openings_in_force: in_force,
        custody_paths,
        custody_edited,
        left_running: if live && mode == Mode::Unmanaged { left_running() } else { Vec::new() },
        loader: state.loader.as_ref().map(ToString::to_string),
        notes,
    })
}

/// What the kernel command line (PID 1's in a container) makes of the mode, where that is not what the file says.
fn lowered(mode: Mode) -> Option<String> {
    let container = std::path::Path::new("/run/systemd/container").exists();
    // A line that cannot be read lowers nothing, as for the generator.
    let line = fs::read(if container { "/proc/1/cmdline" } else { "/proc/cmdline" }).unwrap_or_default();
    let (in_force, _) = mode.lowered_by(&String::from_utf8_lossy(&line));
    (in_force != mode)
        .then(|| format!("mesh.mode= on the command line lowers the mode to {in_force} until the next boot without it"))
}

/// When the mode file was written.
fn since(ctx: &Context) -> Option<String> {
    let modified = fs::metadata(ctx.layout.mode()).ok()?.modified().ok()?;
    let stamp = jiff::Timestamp::try_from(modified).ok()?;
    Some(stamp.round(jiff::Unit::Second).unwrap_or(stamp).to_string())
}

fn control(state: &State, root: bool, notes: &mut Vec<String>) -> (Vec<Control>, Vec<String>) {
    let what = release::plan(state, &[], "");
    let mut out = Vec::new();
    let mut alive = Vec::new();
    for c in &state.control {
        let readable = root || c.scope == Scope::System;
        let now = if readable { systemd::states(&c.scope, std::slice::from_ref(&c.unit)) } else { Ok(Vec::new()) };
        let state = match now {
            Ok(s) if state.stand_ins.iter().any(|i| i.scope == c.scope && i.unit == c.unit) => {
                s.into_iter().next().map(|s| format!("off, a no-op unit stands in ({})", s.active))
            }
            Ok(s) => match s.into_iter().next() {
                Some(s) => Some(format!("{} ({})", s.active, s.load)),
                None => readable.then(|| "off, no manager of that user runs".to_string()),
            },
            Err(e) => {
                notes.push(format!("{e:#}"));
                None
            }
        };
        out.push(Control { scope: c.scope.to_string(), unit: c.unit.to_string(), state, was: c.was.clone() });
    }
    if root {
        match units::still_up(&what.plan.units) {
            Ok(up) => alive.extend(up.iter().map(|u| format!("{} ({})", u.unit, u.scope))),
            Err(e) => notes.push(format!("{e:#}")),
        }
    }
    (out, alive)
}

fn custody(ctx: &Context, notes: &mut Vec<String>) -> (Option<usize>, Option<Vec<String>>) {
    match edited(ctx) {
        Ok((paths, edited)) => (Some(paths), Some(edited)),
        Err(e) => {
            notes.push(format!("custody cannot be read: {e:#}"));
            (None, None)
        }
    }
}

/// How many paths are in custody, and which of them differ from what custody last saw. A cron file that is covered
/// while adopted shows its cover and is no edit.
fn edited(ctx: &Context) -> anyhow::Result<(usize, Vec<String>)> {
    let store = Store::open(&ctx.layout);
    let covered: Vec<String> = undo::covers(&ctx.layout)?.iter().map(|c| unescape_path(c)).collect();
    let all = store.list()?;
    let mut edited = Vec::new();
    for path in all.iter().filter_map(|versions| versions.first()).map(|record| &record.path) {
        if covered.contains(&path.to_string()) {
            continue;
        }
        if store.compare_now(path)?.is_some_and(|d| d.last.sight.edited(&d.now.sight)) {
            edited.push(path.to_string());
        }
    }
    Ok((all.len(), edited))
}

/// Units of the mode that run on although no mode file is there: somebody deleted it by hand.
fn left_running() -> Vec<String> {
    let names = undo::RUNS_WHILE_ADOPTED.iter().filter_map(|n| UnitName::new(*n).ok());
    names.filter(|u| undo::is_up(&Scope::System, u).unwrap_or(false)).map(|u| u.to_string()).collect()
}

fn words(ctx: &Context, s: &Status) -> String {
    let head = ctx.head();
    let mut out = text::styled(text::HEAD, &head.node);
    let mut line = |name: &str, value: String| out.push_str(&format!("\n{name:>10}: {value}"));
    let mode = match head.mode.as_str() {
        "invalid" => text::styled(text::BAD, "invalid"),
        m => m.to_string(),
    };
    line(
        "mode",
        match &s.adopted_since {
            Some(t) => format!("{mode} since {t}"),
            None => mode,
        },
    );
    if let Some(e) = &s.invalid {
        line("fault", text::styled(text::BAD, e));
    }
    if let Some(p) = &s.pending {
        line("pending", text::styled(text::WARN, p));
    }
    if !s.control.is_empty() {
        let off = s.control.len() - s.control_alive.len();
        let text = format!("{off} of {} units off", s.control.len());
        line(
            "control",
            match s.control_alive.as_slice() {
                [] => text::styled(text::GOOD, &text),
                alive => text::styled(text::BAD, &format!("{text}; alive: {}", alive.join(", "))),
            },
        );
        for c in &s.control {
            line("", format!("{} ({}): {}", c.unit, c.scope, c.state.as_deref().unwrap_or(NEEDS_ROOT)));
        }
    }
    if s.openings_wanted > 0 || s.openings_in_force.is_some() {
        line(
            "openings",
            match s.openings_in_force {
                Some(n) if n >= s.openings_wanted => {
                    text::styled(text::GOOD, &format!("{n} of {} in force", s.openings_wanted))
                }
                Some(n) => text::styled(
                    text::BAD,
                    &format!("{n} of {} in force; mesh openings --assert puts them back", s.openings_wanted),
                ),
                None => format!("{} wanted; whether they are in force is {NEEDS_ROOT}", s.openings_wanted),
            },
        );
    }
    match (&s.custody_paths, &s.custody_edited) {
        (Some(n), Some(edited)) if edited.is_empty() => line("custody", format!("{n} paths, none edited since")),
        (Some(n), Some(edited)) => {
            line("custody", text::styled(text::WARN, &format!("{n} paths, edited since: {}", edited.join(", "))))
        }
        _ => line("custody", NEEDS_ROOT.to_string()),
    }
    if let Some(l) = &s.loader {
        line("firewall", format!("found one in force, loaded by {l}"));
    }
    if !s.left_running.is_empty() {
        let units = s.left_running.join(" ");
        line(
            "left",
            text::styled(
                text::WARN,
                &format!("no mode file, but these still run: {units}; stop them with systemctl stop {units}"),
            ),
        );
    }
    for n in &s.notes {
        line("note", n.clone());
    }
    out
}
