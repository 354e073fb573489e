//! Executes an [`AdoptPlan`] unchanged, in DESIGN §9's order, or takes it back.

use super::undo::{self, Jobs};
use super::{Doing, found_path, openings, pending};
use crate::adapters::custody_store::Store;
use crate::adapters::durable;
use crate::adapters::systemd::{self, Request};
use crate::plan::adopt::{AdoptPlan, CoverCron, EndProcess, StopUnit, covered};
use crate::plan::release::Undo;
use crate::probe::units;
use anyhow::{Context as _, bail};
use mesh_model::event::Event;
use mesh_model::failure::{Failure, Kind};
use mesh_model::mode::Mode;
use mesh_model::pending::PendingVerb;
use mesh_model::state::{ControlState, CoveredCron, StandIn, State};
use mesh_model::unit::{Scope, UnitName};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::thread;
use std::time::{Duration, Instant};

/// How long control must stay down before the adoption counts as done: longer than the default restart delay of a
/// service (100 ms, systemd.service(5), `RestartSec=`). What comes later meets the masks.
const STAY_DOWN: Duration = Duration::from_millis(500);

/// How long a bare process may take to end after SIGTERM.
const PROCESS_TIME: Duration = Duration::from_secs(10);

/// What an adoption did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// Paths that were taken into custody for the first time.
    pub taken: usize,
    /// Control units that were stopped.
    pub stopped: usize,
    /// Openings whose rules were added.
    pub opened: usize,
    /// Files that changed between the first look and the last: some control wrote meanwhile.
    pub changed: Vec<String>,
}

/// Adopts. On a failure everything is taken back, unless the machine was adopted before: then it stays so.
pub fn apply(doing: &mut Doing<'_>, plan: &AdoptPlan, earlier: &State) -> anyhow::Result<Adopted> {
    let already = undo::is_adopted(&doing.layout)?;
    let undo =
        Undo { plan: plan.clone(), etc_mtime_ns: earlier.etc_mtime_ns.or_else(|| undo::etc_mtime_ns(&doing.layout)) };
    let seq = doing.recorder.event(&Event::AdoptBegun { plan: plan.digest()? })?;
    pending::begin(doing, PendingVerb::Adopt, seq, &undo)?;
    let cause = match steps(doing, &undo, earlier) {
        Ok(done) => {
            let event =
                Event::Adopted { files: plan.custody.len(), openings: plan.openings.len(), units: done.stopped };
            doing.recorder.event(&event)?;
            pending::clear(&doing.layout)?;
            return Ok(done);
        }
        Err(e) => e,
    };
    if already {
        pending::clear(&doing.layout)?;
        return Err(cause.context("the machine was adopted before and still is"));
    }
    doing.progress.step("taking back what was done");
    let undone = undo::undo(doing, &undo, Jobs::Wait);
    doing.recorder.event(&Event::AdoptUndone { why: format!("{cause:#}") })?;
    if !undone.faults.is_empty() {
        return Err(cause.context(
            Failure::new(
                Kind::Failed,
                format!("the adoption failed, and so did parts of its undo: {}", undone.faults.join("; ")),
            )
            .remedy("mend what is named and run mesh recover"),
        ));
    }
    pending::clear_as_found(&doing.layout, undo.etc_mtime_ns)?;
    if !undone.not_started.is_empty() {
        let what = format!("the adoption was taken back, but not all started again: {}", undone.not_started.join("; "));
        return Err(cause.context(what));
    }
    Err(cause.context("the adoption was taken back"))
}

fn steps(doing: &mut Doing<'_>, undo: &Undo, earlier: &State) -> anyhow::Result<Adopted> {
    let plan = &undo.plan;
    let mut done = Adopted::default();
    let store = Store::open(&doing.layout);
    // A cron file that is covered already would show its cover; what it held was taken when it was covered.
    let mut covered_now = Vec::new();
    for cover in &plan.cron {
        if undo::is_up(&Scope::System, &cover.unit)? {
            covered_now.push(cover.entry.file.as_str());
        }
    }
    for path in plan.custody.iter().filter(|p| !covered_now.contains(&p.as_str())) {
        doing.progress.step(&format!("taking custody of {path}"));
        if doing.take_custody(&store, path)? {
            done.taken += 1;
        }
    }

    doing.progress.step("opening through the found firewall");
    done.opened = openings::establish(&doing.layout, &mut doing.recorder, &plan.openings)?;

    for unit in plan.units.iter().filter(|u| u.running) {
        if stop(doing, unit)? {
            done.stopped += 1;
        }
    }

    doing.progress.step("writing the mode");
    for cover in &plan.cron {
        write_cover(doing, cover)?;
    }
    durable::keep(&doing.layout.state(), state(undo, earlier).render().as_bytes(), 0o644)?;
    if !undo::is_adopted(&doing.layout)? {
        durable::replace(&doing.layout.mode(), Mode::Adopted.file_content().as_bytes(), 0o644)?;
        doing.recorder.event(&Event::ModeWritten { before: Mode::Unmanaged, after: Mode::Adopted })?;
    }
    undo::reload(plan)?;
    in_force(doing, plan, Jobs::Wait)?;

    let behind_covers: Vec<&str> = plan.cron.iter().map(|c| c.entry.file.as_str()).collect();
    for path in plan.custody.iter().filter(|p| !behind_covers.contains(&p.as_str())) {
        if doing.take_custody(&store, path)? {
            done.changed.push(path.clone());
        }
    }
    Ok(done)
}

/// The rest of an adoption whose mode is written: what the mode wants runs, what it forbids does not.
fn in_force(doing: &mut Doing<'_>, plan: &AdoptPlan, jobs: Jobs) -> anyhow::Result<()> {
    let begin = |unit: &UnitName| match jobs {
        Jobs::Wait => Request::Start(unit.clone()),
        Jobs::Queue => Request::Queue(unit.clone()),
    };
    for unit in plan.units.iter().filter(|u| u.stand_in) {
        systemd::act(&unit.scope, &begin(&unit.unit))?;
    }
    // The target pulls the covers in: what was not covered before it is what this adoption covers.
    let mut uncovered = Vec::new();
    for cover in &plan.cron {
        if jobs == Jobs::Queue || !undo::is_up(&Scope::System, &cover.unit)? {
            uncovered.push(cover);
        }
    }
    doing.progress.step("starting mesh-node.target");
    let target = UnitName::new("mesh-node.target").map_err(anyhow::Error::msg)?;
    systemd::act(&Scope::System, &begin(&target))?;
    for cover in uncovered {
        systemd::act(&Scope::System, &begin(&cover.unit))?;
        doing.recorder.event(&Event::CronHeld { path: found_path(&cover.entry.file)?, lines: cover.lines_off })?;
    }
    for process in &plan.processes {
        end_process(doing, process)?;
    }
    doing.progress.step("verifying that no control is back");
    verify_down(plan)
}

/// Finishes an adoption that was cut after its mode was written, in the same boot.
pub fn resume(doing: &mut Doing<'_>, undo: &Undo, jobs: Jobs) -> anyhow::Result<()> {
    undo::reload(&undo.plan)?;
    for unit in undo.plan.units.iter().filter(|u| u.running && !u.stand_in) {
        stop(doing, unit)?;
    }
    openings::establish(&doing.layout, &mut doing.recorder, &undo.plan.openings)?;
    in_force(doing, &undo.plan, jobs)
}

/// Stops one control unit, if it runs; true when it did.
fn stop(doing: &mut Doing<'_>, unit: &StopUnit) -> anyhow::Result<bool> {
    let states = systemd::states(&unit.scope, std::slice::from_ref(&unit.unit))?;
    let Some(state) = states.into_iter().find(|s| s.is_up()) else { return Ok(false) };
    // A stand-in that is already in place is no control.
    if unit.stand_in && state.fragment.starts_with("/run/systemd/generator") {
        return Ok(false);
    }
    doing.progress.step(&format!("stopping {} ({})", unit.unit, unit.scope));
    systemd::act(&unit.scope, &Request::Stop { unit: unit.unit.clone(), alone: unit.stand_in })?;
    doing.recorder.event(&Event::UnitStopped {
        scope: unit.scope.clone(),
        unit: unit.unit.clone(),
        was: state.active,
    })?;
    Ok(true)
}

/// Writes the file that covers a cron file, with its owner and mode, which cron checks.
fn write_cover(doing: &Doing<'_>, cover: &CoverCron) -> anyhow::Result<()> {
    let file = doing.layout.under(&cover.entry.file);
    let target = doing.layout.cron().join(&cover.stored);
    if undo::is_up(&Scope::System, &cover.unit)? {
        // Covered already: what is read through the name is the cover itself.
        return Ok(());
    }
    let doing_what = || format!("covering {}", cover.entry.file);
    let content = fs::read(&file).with_context(doing_what)?;
    let meta = fs::symlink_metadata(&file).with_context(doing_what)?;
    let text = String::from_utf8(content).with_context(|| format!("{} is not UTF-8", cover.entry.file))?;
    let (text, off) = covered(&text, &cover.entry);
    if off != cover.lines_off {
        return Err(Failure::new(
            Kind::Busy,
            format!("{} changed since the plan: {off} line(s) are control, not {}", cover.entry.file, cover.lines_off),
        )
        .remedy("look at the file and adopt again")
        .into());
    }
    durable::ensure_dir(&doing.layout.cron(), 0o700)?;
    durable::replace(&target, text.as_bytes(), meta.permissions().mode() & 0o7777)?;
    chown(&target, Some(meta.uid()), Some(meta.gid())).with_context(doing_what)
}

/// Ends a bare process, politely; it is that very process or none.
fn end_process(doing: &mut Doing<'_>, process: &EndProcess) -> anyhow::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // The descriptor is taken first, so that the pid cannot go to another process after this check.
    if !units::runs(process) {
        return Ok(());
    }
    doing.progress.step(&format!("ending {} (pid {})", process.executable, process.pid));
    pidfd_send_signal(&handle, Signal::TERM)
        .with_context(|| format!("ending {} (pid {})", process.executable, process.pid))?;
    let end = Instant::now() + PROCESS_TIME;
    while units::runs(process) {
        if Instant::now() > end {
            bail!(
                "{} (pid {}) does not end {} s after SIGTERM; it is left running",
                process.executable,
                process.pid,
                PROCESS_TIME.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
    doing.recorder.event(&Event::ProcessEnded {
        executable: found_path(&process.executable)?,
        pid: process.pid.unsigned_abs(),
        uid: process.uid,
    })?;
    Ok(())
}

/// No control unit runs, now and after [`STAY_DOWN`].
fn verify_down(plan: &AdoptPlan) -> anyhow::Result<()> {
    let end = Instant::now() + STAY_DOWN;
    loop {
        let up = units::still_up(&plan.units)?;
        if !up.is_empty() {
            let names: Vec<String> = up.iter().map(|u| format!("{} ({})", u.unit, u.scope)).collect();
            return Err(Failure::new(Kind::TakenBack, format!("control is back although it was stopped: {}", names.join(", ")))
                .remedy("find what starts it: systemctl status UNIT, systemctl list-dependencies --reverse UNIT; declare that as control too")
                .into());
        }
        if Instant::now() > end {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// What boot and release must know.
fn state(undo: &Undo, earlier: &State) -> State {
    let plan = &undo.plan;
    State {
        raised: earlier.raised.clone(),
        migrated: earlier.migrated.clone(),
        loader: plan.loader.clone().or_else(|| earlier.loader.clone()),
        absent_packages: if earlier.etc_mtime_ns.is_some() {
            earlier.absent_packages.clone()
        } else {
            plan.absent_packages.clone()
        },
        control: plan
            .units
            .iter()
            .map(|u| ControlState {
                scope: u.scope.clone(),
                unit: u.unit.clone(),
                was: if u.running { "active" } else { "inactive" }.into(),
            })
            .collect(),
        stand_ins: plan
            .units
            .iter()
            .filter(|u| u.stand_in)
            .map(|u| StandIn { scope: u.scope.clone(), unit: u.unit.clone() })
            .collect(),
        covered: plan.cron.iter().map(|c| CoveredCron { file: c.entry.file.clone(), mtime_ns: c.mtime_ns }).collect(),
        etc_mtime_ns: undo.etc_mtime_ns,
    }
}
