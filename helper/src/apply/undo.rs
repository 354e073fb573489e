//! The reverse of an adoption, step by step; each step does nothing where nothing is to be undone, so that it can be
//! repeated after any cut. What fails is collected, and the rest goes on.

use super::{Doing, found_path, openings};
use crate::adapters::systemd::{self, Request, UnitState};
use crate::adapters::{config, custody_fs, durable};
use crate::layout::Layout;
use crate::plan::adopt::{AdoptPlan, StopUnit};
use crate::plan::release::Undo;
use crate::record::{ledger, lost_state};
use mesh_model::diagnostic::Diagnostics;
use mesh_model::event::Event;
use mesh_model::failure::{Failure, Kind};
use mesh_model::mode::Mode;
use mesh_model::state::{StandIn, State};
use mesh_model::unit::{Scope, UnitName};
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_OMIT, statat, utimensat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Whether jobs can be waited for: early at boot they cannot, since they may be ordered after whoever waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    /// Wait until each is done.
    Wait,
    /// Queue them and go on.
    Queue,
}

/// What runs only while adopted, in the order in which it is stopped. The watcher first: it must not put back what is
/// being closed.
pub const RUNS_WHILE_ADOPTED: [&str; 4] =
    ["mesh-watch.socket", "mesh-watch.service", "mesh-firewall.service", "mesh-node.target"];

/// What an undo left.
#[derive(Debug, Default)]
pub struct Undone {
    /// What failed, in words: the undo is to be repeated.
    pub faults: Vec<String>,
    /// What ran before and did not start again, in words. Everything of the mesh is gone all the same, and repeating
    /// the undo would not help: the predecessor may have been removed meanwhile.
    pub not_started: Vec<String>,
}

/// Undoes everything; returns what failed.
pub fn undo(doing: &mut Doing<'_>, undo: &Undo, jobs: Jobs) -> Undone {
    let (mut faults, mut not_started) = (Faults::default(), Faults::default());
    let plan = &undo.plan;

    faults.0.extend(stop_all(&RUNS_WHILE_ADOPTED));
    doing.progress.step("closing openings");
    faults.take("closing openings", openings::close_all(&doing.layout, &mut doing.recorder));
    for cover in &plan.cron {
        doing.progress.step(&format!("uncovering {}", cover.entry.file));
        let uncovered = stop(&Scope::System, &cover.unit, false)
            .and_then(|()| set_file_mtime(&doing.layout, &cover.entry.file, cover.mtime_ns));
        if faults.take(&format!("uncovering {}", cover.entry.file), uncovered) {
            let recorded = found_path(&cover.entry.file)
                .and_then(|path| doing.recorder.event(&Event::CronReleased { path }).map(|_| ()));
            faults.take("recording", recorded);
        }
    }
    for u in plan.units.iter().filter(|u| u.stand_in) {
        faults.take(&format!("stopping the stand-in {}", u.unit), stop(&u.scope, &u.unit, true));
    }

    doing.progress.step("removing the mode");
    let had_mode = doing.layout.mode().exists();
    for path in [doing.layout.mode(), doing.layout.state()] {
        faults.take(&format!("removing {}", path.display()), durable::remove(&path));
    }
    if had_mode {
        faults.take(
            "recording",
            doing.recorder.event(&Event::ModeWritten { before: Mode::Adopted, after: Mode::Unmanaged }),
        );
    }
    faults.take("removing the cron covers", remove_covers(&doing.layout));
    faults.take("reading units again", reload(plan));
    faults.take("forgetting failures", forget_failures());

    // What starts services last, so that each service is what it was before something can start it.
    for u in plan.units.iter().rev().filter(|u| u.running) {
        doing.progress.step(&format!("starting {} ({})", u.unit, u.scope));
        not_started.take(&format!("{} ({})", u.unit, u.scope), start(doing, u, jobs));
    }
    if let Some(ns) = undo.etc_mtime_ns {
        faults.take("restoring the time of /etc/mesh", set_mtime(&doing.layout, ns));
    }
    Undone { faults: faults.0, not_started: not_started.0 }
}

/// A failure that names what did not start again, for when all else is done.
pub fn all_started(not_started: &[String]) -> anyhow::Result<()> {
    if not_started.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Kind::Failed, format!("what ran before did not all start again: {}", not_started.join("; ")))
        .remedy("nothing of the mesh keeps it from starting; see journalctl -u UNIT")
        .into())
}

/// What may have failed while adopted, an isolate that was refused for one, and must not stay failed after it.
const MAY_HAVE_FAILED: [&str; 4] =
    ["mesh-flip.service", "mesh-watch.socket", "mesh-watch.service", "mesh-firewall.service"];

fn forget_failures() -> anyhow::Result<()> {
    for name in MAY_HAVE_FAILED {
        let unit = UnitName::new(name).map_err(anyhow::Error::msg)?;
        systemd::act(&Scope::System, &Request::ResetFailed(unit))?;
    }
    Ok(())
}

/// Stops units of the mesh by name; returns what failed, in words.
pub fn stop_all(names: &[&str]) -> Vec<String> {
    let mut faults = Faults::default();
    for name in names {
        let stopped = UnitName::new(*name).map_err(anyhow::Error::msg).and_then(|u| stop(&Scope::System, &u, false));
        faults.take(&format!("stopping {name}"), stopped);
    }
    faults.0
}

/// Collects what fails.
#[derive(Debug, Default)]
struct Faults(Vec<String>);

impl Faults {
    /// Keeps a failure; true when there was none.
    fn take<T>(&mut self, doing: &str, result: anyhow::Result<T>) -> bool {
        match result {
            Ok(_) => true,
            Err(e) => {
                self.0.push(format!("{doing}: {e:#}"));
                false
            }
        }
    }
}

fn stop(scope: &Scope, unit: &UnitName, alone: bool) -> anyhow::Result<()> {
    systemd::act(scope, &Request::Stop { unit: unit.clone(), alone })
}

/// Whether a unit runs now.
pub fn is_up(scope: &Scope, unit: &UnitName) -> anyhow::Result<bool> {
    Ok(systemd::states(scope, std::slice::from_ref(unit))?.iter().any(systemd::UnitState::is_up))
}

fn start(doing: &mut Doing<'_>, u: &StopUnit, jobs: Jobs) -> anyhow::Result<()> {
    let states = systemd::states(&u.scope, std::slice::from_ref(&u.unit))?;
    if states.iter().any(systemd::UnitState::is_up) {
        return Ok(());
    }
    anyhow::ensure!(states.iter().all(|s| s.load != "not-found"), "it does not exist any more");
    // A unit that was stopped and started often, or failed, would be refused by its start limit.
    systemd::act(&u.scope, &Request::ResetFailed(u.unit.clone()))?;
    match (&u.scope, jobs) {
        (_, Jobs::Wait) => systemd::act(&u.scope, &Request::Start(u.unit.clone()))?,
        (Scope::System, Jobs::Queue) => systemd::act(&u.scope, &Request::Queue(u.unit.clone()))?,
        // A user's manager orders nothing after us, so its jobs can be waited for. Early at boot none runs; when it
        // does, it starts what is enabled, without our masks.
        (Scope::User(name), Jobs::Queue) => {
            if !systemd::account(name)?.is_some_and(|account| systemd::user_manager_runs(&account)) {
                return Ok(());
            }
            systemd::act(&u.scope, &Request::Start(u.unit.clone()))?;
        }
    }
    doing.recorder.event(&Event::UnitStarted { scope: u.scope.clone(), unit: u.unit.clone() })?;
    Ok(())
}

/// PID 1 and the manager of each user with control read their units again, one by one.
pub fn reload(plan: &AdoptPlan) -> anyhow::Result<()> {
    systemd::act(&Scope::System, &Request::Reload)?;
    for user in plan.users() {
        systemd::act(&Scope::User(user), &Request::Reload)?;
    }
    Ok(())
}

/// The names in `/etc/mesh/cron`: one for each cron file that is covered.
pub fn covers(layout: &Layout) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(layout.cron()) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    let mut out = Vec::new();
    for entry in entries {
        out.push(entry?.file_name().to_string_lossy().into_owned());
    }
    out.sort();
    Ok(out)
}

fn remove_covers(layout: &Layout) -> anyhow::Result<()> {
    match fs::remove_dir_all(layout.cron()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The modification time of `/etc/mesh` in nanoseconds since the epoch, where it exists.
pub fn etc_mtime_ns(layout: &Layout) -> Option<i64> {
    let meta = fs::metadata(layout.etc()).ok()?;
    meta.mtime().checked_mul(1_000_000_000)?.checked_add(meta.mtime_nsec())
}

/// Only the modification time, from nanoseconds since the epoch.
fn modified_at(ns: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) },
    }
}

/// Puts the modification time of `/etc/mesh` back.
pub fn set_mtime(layout: &Layout, ns: i64) -> anyhow::Result<()> {
    utimensat(CWD, layout.etc(), &modified_at(ns), AtFlags::empty())?;
    Ok(())
}

/// Puts the modification time of a cron file back, where it still is; no link on the way is followed.
fn set_file_mtime(layout: &Layout, file: &str, ns: i64) -> anyhow::Result<()> {
    let path = found_path(file)?;
    let Some(folder) = custody_fs::open_folder(layout.root(), &path, OFlags::PATH)? else { return Ok(()) };
    let (_, name) = path.split();
    let name = OsStr::from_bytes(name);
    match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_mtime.saturating_mul(1_000_000_000).saturating_add_unsigned(stat.st_mtime_nsec) == ns => {
            return Ok(());
        }
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(custody_fs::failed("looking at", &path, e)),
    }
    match utimensat(&folder, name, &modified_at(ns), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(custody_fs::failed("restoring the time of", &path, e)),
    }
}

/// What the adoption in force recorded. Where `state.toml` is missing, and with `broken_too` where it cannot be
/// understood, what can be told without it: from the ledger what was stopped, from the managers what a stand-in is for.
pub fn recorded(layout: &Layout, broken_too: bool) -> anyhow::Result<State> {
    let read = config::read_state(layout);
    let lost = match &read {
        Ok(_) => !layout.state().exists(),
        Err(e) => broken_too && e.is::<Diagnostics>(),
    };
    if !lost || !is_adopted(layout)? {
        return read;
    }
    let (ledger, broken) = ledger::read(layout)?;
    if let Some(broken) = broken {
        return Err(anyhow::Error::from(ledger::broken_ledger(&layout.ledger(), &broken))
            .context("state.toml is lost, and what it held is in the ledger too"));
    }
    let mut state = lost_state::from_ledger(&ledger.entries);
    for c in &state.control {
        let now = systemd::states(&c.scope, std::slice::from_ref(&c.unit))?;
        // A stand-in that was read anew, without the mode, has the unit's own file and still does nothing.
        let stands_in = |s: &UnitState| s.fragment.starts_with("/run/systemd/generator") || s.sub == "exited";
        if now.iter().any(|s| s.is_up() && stands_in(s)) {
            state.stand_ins.push(StandIn { scope: c.scope.clone(), unit: c.unit.clone() });
        }
    }
    Ok(state)
}

/// Whether this machine is adopted now; an unreadable mode is an error, never a guess.
pub fn is_adopted(layout: &Layout) -> anyhow::Result<bool> {
    Ok(config::read_mode(layout)? == Mode::Adopted)
}
