//! Finishing or undoing what a crash, a kill or a power cut left in the middle.
//!
//! | cut in | mode file | what is done |
//! |---|---|---|
//! | adopt | not yet written | undone: the machine is as found |
//! | adopt | written | finished: the masks are in force, openings are asserted, the rest is verified |
//! | release | either | finished |

use super::undo::{self, Jobs};
use super::{Doing, adopt, pending, release};
use crate::adapters::systemd;
use crate::plan::release::Undo;
use anyhow::Context as _;
use mesh_model::event::{self, Event};
use mesh_model::pending::{Pending, PendingVerb};

/// What recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The adoption is whole now.
    AdoptFinished,
    /// The machine is as it was found.
    AdoptUndone,
    /// The release is whole now.
    ReleaseFinished,
}

impl Outcome {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Outcome::AdoptFinished => "an adoption that was cut is whole now: this machine is adopted",
            Outcome::AdoptUndone => {
                "an adoption that was cut before its mode was written is undone: this machine is as it was found"
            }
            Outcome::ReleaseFinished => "a release that was cut is whole now: this machine is released",
        }
    }
}

/// What would be done about `pending`, in words; for `--dry-run`.
pub fn intent(pending: &Pending, adopted: bool) -> Outcome {
    match (pending.verb, adopted) {
        (PendingVerb::Adopt, true) => Outcome::AdoptFinished,
        (PendingVerb::Adopt, false) => Outcome::AdoptUndone,
        (PendingVerb::Release, _) => Outcome::ReleaseFinished,
    }
}

/// Finishes or undoes.
pub fn apply(doing: &mut Doing<'_>, pending: &Pending) -> anyhow::Result<Outcome> {
    let what: Undo = serde_json::from_value(pending.plan.clone())
        .with_context(|| format!("{} holds a plan of another release", doing.layout.pending().display()))?;
    let outcome = intent(pending, undo::is_adopted(&doing.layout)?);
    // In the boot after a cut, and inside mesh-recover.service, nothing may be waited for that is ordered after us.
    let jobs = if systemd::runs_as_unit() { Jobs::Queue } else { Jobs::Wait };
    let mut not_started = Vec::new();
    match outcome {
        Outcome::AdoptFinished => {
            if pending.boot_id == pending::boot_id()? {
                adopt::resume(doing, &what, jobs)?;
            }
            pending::clear(&doing.layout)?;
        }
        Outcome::AdoptUndone => {
            let undone = undo::undo(doing, &what, jobs);
            anyhow::ensure!(undone.faults.is_empty(), "parts of the undo failed: {}", undone.faults.join("; "));
            not_started = undone.not_started;
            pending::clear_as_found(&doing.layout, what.etc_mtime_ns)?;
        }
        Outcome::ReleaseFinished => release::finish(doing, &what, jobs)?,
    }
    let verb = match pending.verb {
        PendingVerb::Adopt => "adopt",
        PendingVerb::Release => "release",
    };
    let how = match outcome {
        Outcome::AdoptFinished | Outcome::ReleaseFinished => event::Outcome::Finished,
        Outcome::AdoptUndone => event::Outcome::Undone,
    };
    doing.recorder.event(&Event::Recovered { verb: verb.into(), outcome: how })?;
    undo::all_started(&not_started).context(outcome.words())?;
    Ok(outcome)
}
