//! The verb `release`: undo the adoption.

use super::Context;
use crate::adapters::config;
use crate::apply::undo::{self, Jobs};
use crate::apply::{Doing, recover, release};
use crate::cli;
use crate::plan::release::{Undo, lines as plan_lines, plan as plan_release};
use crate::show::{json, text};
use anyhow::Context as _;
use mesh_model::failure::Failure;
use mesh_model::mode::Mode;
use mesh_model::state::State;
use serde_json::json;

/// Runs `mesh release`.
pub fn run(ctx: &Context, args: &cli::Change) -> anyhow::Result<()> {
    ctx.need_machine_and_root("release")?;
    if args.dry_run {
        let what = plan(ctx)?;
        return show(ctx, &what, true);
    }
    let lock = super::lock(ctx, "release")?;
    let mut doing = Doing::begin(ctx, &lock)?;
    if let Some(p) = config::read_pending(&ctx.layout)? {
        recover::apply(&mut doing, &p).context("finishing what was cut before")?;
    }
    if config::read_mode(&ctx.layout)? == Mode::Unmanaged && !ctx.layout.state().exists() {
        doing.progress.ready("not adopted");
        return text_or_json(ctx, "this machine is not adopted; nothing was changed", json!({"changed": false}));
    }
    let what = plan(ctx)?;
    release::apply(&mut doing, &what, Jobs::Wait)?;
    doing.progress.ready("released");
    drop(doing);
    show(ctx, &what, false).context("this machine is released, but that could not be written out")
}

/// What a release undoes, from the state that the adoption left in `/etc/mesh`.
fn plan(ctx: &Context) -> anyhow::Result<Undo> {
    match config::read_mode(&ctx.layout)? {
        Mode::Adopted => {}
        // Somebody deleted the mode file by hand: what the adoption left is still to be undone.
        Mode::Unmanaged if ctx.layout.state().exists() => {}
        Mode::Unmanaged => {
            return Err(Failure::refused("this machine is not adopted").remedy("mesh status says what it is").into());
        }
        Mode::Converged => {
            return Err(super::not_by_this_release("release").into());
        }
    }
    let state: State = undo::recorded(&ctx.layout, true)?;
    let held: Vec<&str> = state.raised.iter().chain(&state.migrated).map(|m| m.as_str()).collect();
    if !held.is_empty() {
        return Err(Failure::refused(format!("modules are raised or migrated here: {}", held.join(", ")))
            .remedy("migrate them back first")
            .into());
    }
    Ok(plan_release(&state, &undo::covers(&ctx.layout)?, &ctx.head().node))
}

fn show(ctx: &Context, what: &Undo, dry: bool) -> anyhow::Result<()> {
    let lines = plan_lines(what);
    if ctx.json {
        let body = json!({"dry_run": dry, "changed": !dry, "plan": what.plan, "steps": lines});
        return text::out(&serde_json::to_string_pretty(&json::document("release", &ctx.head(), &body)?)?);
    }
    let head = if dry { "would, in this order:" } else { "released; in this order:" };
    text::out(&format!("{head}\n  {}", lines.join("\n  ")))
}

fn text_or_json(ctx: &Context, words: &str, body: serde_json::Value) -> anyhow::Result<()> {
    if ctx.json {
        return text::out(&serde_json::to_string_pretty(&json::document("release", &ctx.head(), &body)?)?);
    }
    text::out(words)
}
