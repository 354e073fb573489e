//! One file a verb: parse → probe → plan → show → apply → record.

pub mod adopt;
pub mod cat_config;
pub mod check_config;
pub mod completions;
pub mod custody;
pub mod init;
pub mod interrupt;
pub mod log;
pub mod openings;
pub mod probe;
pub mod recover;
pub mod release;
pub mod status;
pub mod user_manager;

use crate::adapters::config;
use crate::adapters::lock::{Lock, Wait};
use crate::apply::{Doing, pending};
use crate::layout::Layout;
use crate::probe::machine;
use crate::record::audit::Recorder;
use crate::show::json::Head;
use crate::show::progress::Progress;
use mesh_model::failure::{Failure, Kind};
use std::time::Duration;

/// What every verb is given.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where things are.
    pub layout: Layout,
    /// Whether one JSON document is asked for.
    pub json: bool,
}

impl Context {
    /// What heads a document: the node's name and the mode, as far as they can be read.
    pub fn head(&self) -> Head {
        let mode = match config::read_mode(&self.layout) {
            Ok(m) => m.word().to_string(),
            Err(_) => "invalid".to_string(),
        };
        let node = match config::load(&self.layout) {
            Ok(Some(l)) => l.node.name,
            Ok(None) | Err(_) if self.layout.is_machine() => machine::host_name(),
            // Files of another machine: this one's name would be a wrong answer.
            Ok(None) | Err(_) => std::fs::read_to_string(self.layout.under("/etc/hostname"))
                .map_or_else(|_| "unnamed".into(), |name| name.trim().to_string()),
        };
        Head { node, mode }
    }

    /// Refuses where a verb cannot work: on files of another machine, or without root.
    pub fn need_machine_and_root(&self, verb: &str) -> anyhow::Result<()> {
        self.need_machine(verb)?;
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new(Kind::NoPermission, format!("mesh {verb} needs root"))
                .remedy(format!("run it as root, for example: sudo mesh {verb}"))
                .into());
        }
        Ok(())
    }

    /// Refuses on files of another machine what reads or changes the running one.
    pub fn need_machine(&self, verb: &str) -> anyhow::Result<()> {
        if !self.layout.is_machine() {
            return Err(Failure::new(
                Kind::Usage,
                format!("mesh {verb} works on the running machine, not on files under --root"),
            )
            .into());
        }
        Ok(())
    }
}

/// How long a verb waits for another one to finish: a watcher's pass takes well under a second.
const LOCK_TIME: Duration = Duration::from_secs(5);

/// Takes the lock for a verb that a person typed or a unit runs.
pub fn lock(ctx: &Context, verb: &str) -> anyhow::Result<Lock> {
    Lock::take(&ctx.layout, verb, Wait::AtMost(LOCK_TIME))
}

/// Takes the lock for recovery, which never waits: a verb that holds it recovers by itself, and
/// `mesh-recover.service`, pulled in by that very verb, must not keep it waiting.
pub fn lock_at_once(ctx: &Context, verb: &str) -> anyhow::Result<Lock> {
    Lock::take(&ctx.layout, verb, Wait::No)
}

impl<'l> Doing<'l> {
    /// Opens the record, under the lock.
    pub fn begin(ctx: &Context, lock: &'l Lock) -> anyhow::Result<Doing<'l>> {
        interrupt::defer()?;
        pending::settle(&ctx.layout)?;
        let recorder = Recorder::new(&ctx.layout, lock, &ctx.head().node)?;
        Ok(Doing { layout: ctx.layout.clone(), lock, recorder, progress: Progress::new() })
    }
}

/// The refusal of a machine whose mode file says `converged`, which no verb of this release ever wrote.
pub fn not_by_this_release(verb: &str) -> Failure {
    Failure::refused(format!("the mode is converged, which this release never writes and cannot {verb}"))
        .at("/etc/mesh/mode")
        .remedy("if it was written by hand, write adopted there again (printf 'adopted\\n'), reload, and repeat")
}
