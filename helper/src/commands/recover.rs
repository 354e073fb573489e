//! The verb `recover`: finish or undo what was cut.

use super::Context;
use crate::adapters::config;
use crate::apply::{Doing, recover, undo};
use crate::cli;
use crate::show::{json, text};
use anyhow::Context as _;
use serde_json::json;

/// Runs `mesh recover`.
pub fn run(ctx: &Context, args: &cli::Change) -> anyhow::Result<()> {
    ctx.need_machine_and_root("recover")?;
    if args.dry_run {
        let intent = match config::read_pending(&ctx.layout)? {
            Some(p) => Some(recover::intent(&p, undo::is_adopted(&ctx.layout)?)),
            None => None,
        };
        return show(ctx, intent, true);
    }
    let lock = super::lock_at_once(ctx, "recover")?;
    let mut doing = Doing::begin(ctx, &lock)?;
    let outcome = match config::read_pending(&ctx.layout)? {
        Some(p) => Some(recover::apply(&mut doing, &p)?),
        None => None,
    };
    doing.progress.ready("nothing is in the middle");
    drop(doing);
    show(ctx, outcome, false).context("what was cut is whole or undone, but that could not be written out")
}

fn show(ctx: &Context, outcome: Option<recover::Outcome>, dry: bool) -> anyhow::Result<()> {
    if ctx.json {
        let body = json!({"dry_run": dry, "outcome": outcome});
        return text::out(&serde_json::to_string_pretty(&json::document("recover", &ctx.head(), &body)?)?);
    }
    match (outcome, dry) {
        (None, _) => text::out("nothing was cut in the middle"),
        (Some(o), false) => text::out(o.words()),
        (Some(o), true) => text::out(&format!("would end so that: {}", o.words())),
    }
}
