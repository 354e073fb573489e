//! Executing plans: each step changes one thing, is recorded, and has its undo.

pub mod adopt;
pub mod openings;
pub mod pending;
pub mod recover;
pub mod release;
pub mod undo;

use crate::adapters::custody_store::{Store, Taken};
use crate::adapters::lock::Lock;
use crate::layout::Layout;
use crate::record::audit::Recorder;
use crate::show::progress::Progress;
use mesh_model::custody::{FoundPath, Reason};
use mesh_model::event::Event;

/// What everything that changes the machine works with; the lock is held as long as this lives.
#[derive(Debug)]
pub struct Doing<'l> {
    /// Where things are.
    pub layout: Layout,
    /// The lock that is held.
    pub lock: &'l Lock,
    /// Ledger and journal.
    pub recorder: Recorder<'l>,
    /// Says what is being done.
    pub progress: Progress,
}

/// A path as records have it.
pub fn found_path(path: &str) -> anyhow::Result<FoundPath> {
    FoundPath::new(path.as_bytes()).map_err(anyhow::Error::msg)
}

impl Doing<'_> {
    /// Takes a path into custody and writes that down; true when there was something new to keep.
    pub fn take_custody(&mut self, store: &Store, path: &str) -> anyhow::Result<bool> {
        let path = found_path(path)?;
        match store.take(self.lock, &path, Reason::Adopt)? {
            Taken::Unchanged(_) => return Ok(false),
            Taken::New(record) => self.recorder.event(&Event::CustodyTaken { path, sight: record.sight })?,
            Taken::NewVersion { before, now } => self.recorder.event(&Event::CustodyChanged {
                path,
                before: before.sight,
                after: now.sight,
                writer: None,
            })?,
        };
        Ok(true)
    }
}
