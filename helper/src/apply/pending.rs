//! `/etc/mesh/pending` on disk: written before a verb changes anything, removed when it is whole.

use super::Doing;
use crate::adapters::durable;
use crate::adapters::systemd::{self, Request};
use crate::layout::Layout;
use anyhow::Context as _;
use mesh_model::pending::{PENDING_SCHEMA, Pending, PendingVerb};
use mesh_model::unit::Scope;
use serde::Serialize;
use std::fs;

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
