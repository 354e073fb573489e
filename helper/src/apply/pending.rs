//! `/etc/mesh/pending` on disk: written before a verb changes anything, removed when it is whole.

use super::{Doing, undo};
use crate::adapters::durable;
use crate::adapters::systemd::{self, Request};
use crate::layout::Layout;
use anyhow::Context as _;
use mesh_model::pending::{PENDING_SCHEMA, Pending, PendingVerb};
use mesh_model::unit::Scope;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

/// This boot's id (random(4)); a machine that was started again has another.
pub fn boot_id() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("reading the boot id")?;
    Ok(text.trim().to_string())
}

/// Writes down what begins; after this a cut is finished or undone.
pub fn begin(
    doing: &Doing<'_>,
    verb: PendingVerb,
    ledger_seq: Option<u64>,
    plan: &impl Serialize,
) -> anyhow::Result<()> {
    let pending = Pending {
        schema: PENDING_SCHEMA,
        verb,
        boot_id: boot_id()?,
        ledger_seq: ledger_seq.unwrap_or(0),
        realtime_us: u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0),
        plan: serde_json::to_value(plan)?,
    };
    durable::replace(&doing.layout.pending(), pending.render().as_bytes(), 0o600)
}

/// It is whole. PID 1 reads its units once more: else the generator's link to `mesh-recover.service` would stay in the
/// unit tree until somebody else reloads.
pub fn clear(layout: &Layout) -> anyhow::Result<()> {
    durable::remove(&layout.pending())?;
    systemd::act(&Scope::System, &Request::Reload).context("reading units again")
}

/// Like [`clear`], where the machine is as it was found again: `/etc/mesh` gets its modification time back, which
/// removing the pending file moves once more. A cut between the two is mended by [`settle`], from a note in `/var`;
/// where that cannot be written (early in the boot) only that instant is uncovered.
pub fn clear_as_found(layout: &Layout, etc_mtime_ns: Option<i64>) -> anyhow::Result<()> {
    let Some(ns) = etc_mtime_ns else { return clear(layout) };
    let noted = durable::replace(&note(layout), ns.to_string().as_bytes(), 0o600).is_ok();
    durable::remove(&layout.pending())?;
    undo::set_mtime(layout, ns)?;
    if noted {
        durable::remove(&note(layout))?;
    }
    systemd::act(&Scope::System, &Request::Reload).context("reading units again")
}

/// Finishes a [`clear_as_found`] that was cut after the pending file went.
pub fn settle(layout: &Layout) -> anyhow::Result<()> {
    let text = match fs::read_to_string(note(layout)) {
        Ok(text) => text,
        // No note, or no /var yet: nothing is to be settled here and now.
        Err(_) => return Ok(()),
    };
    if layout.pending().exists() {
        // The verb that is in the middle ends with its own.
        return Ok(());
    }
    if let Ok(ns) = text.parse() {
        undo::set_mtime(layout, ns)?;
    }
    durable::remove(&note(layout)).map(|_| ())
}

/// The time of `/etc/mesh` that is still to be put back.
fn note(layout: &Layout) -> PathBuf {
    layout.var().join("etc-mtime")
}
