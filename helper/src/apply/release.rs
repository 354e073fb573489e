//! Undoing an adoption on purpose: the same undo as a failed adoption's, with its own record.

use super::undo::{self, Jobs};
use super::{Doing, pending};
use crate::plan::release::Undo;
use anyhow::Context as _;
use mesh_model::event::Event;
use mesh_model::failure::{Failure, Kind};
use mesh_model::pending::PendingVerb;

/// Releases. A cut in the middle is finished by `mesh recover`, never undone.
pub fn apply(doing: &mut Doing<'_>, what: &Undo, jobs: Jobs) -> anyhow::Result<()> {
    let seq = doing.recorder.event(&Event::ReleaseBegun { plan: what.plan.digest()? })?;
    pending::begin(doing, PendingVerb::Release, seq, what)?;
    finish(doing, what, jobs)
}

/// The rest of a release that was begun.
pub fn finish(doing: &mut Doing<'_>, what: &Undo, jobs: Jobs) -> anyhow::Result<()> {
    // Else starting the target again would do nothing, since it would still be active.
    let mut faults = undo::stop_all(&["mesh-adopt.target", "mesh-adopt.service"]);
    let undone = undo::undo(doing, what, jobs);
    faults.extend(undone.faults);
    if !faults.is_empty() {
        return Err(Failure::new(Kind::Failed, format!("the release is not whole: {}", faults.join("; ")))
            .remedy("mend what is named and run mesh recover")
            .into());
    }
    doing.recorder.event(&Event::Released)?;
    pending::clear_as_found(&doing.layout, what.etc_mtime_ns)?;
    undo::all_started(&undone.not_started).context("this machine is released")
}
