//! The verb `adopt`: probe → plan → apply → record.

use super::Context;
use crate::adapters::config::{self, Loaded};
use crate::apply::{Doing, adopt, recover, undo};
use crate::cli;
use crate::plan::adopt::{AdoptPlan, plan};
use crate::plan::finding::refusal;
use crate::probe::machine::{self, Foundation};
use crate::show::{json, text};
use anyhow::Context as _;
use mesh_model::diagnostic::Diagnostics;
use mesh_model::failure::{Failure, Kind};
use mesh_model::mode::Mode;
use mesh_model::state::State;
use serde_json::json;

/// Runs `mesh adopt`.
pub fn run(ctx: &Context, args: &cli::Adopt) -> anyhow::Result<()> {
    ctx.need_machine_and_root("adopt")?;
    machine::need_systemd()?;
    let foundation = if args.without_foundation { Foundation::Without } else { Foundation::With };
    if args.change.dry_run {
        let (_, plan) = prepare(ctx, foundation)?;
        return show(ctx, &plan, None);
    }
    let lock = super::lock(ctx, "adopt")?;
    let mut doing = Doing::begin(ctx, &lock)?;
    if let Some(p) = config::read_pending(&ctx.layout)? {
        doing.progress.step("finishing what was cut before");
        recover::apply(&mut doing, &p).context("finishing what was cut before")?;
    }
    doing.progress.step("looking at the machine");
    let (earlier, plan) = prepare(ctx, foundation)?;
    let done = adopt::apply(&mut doing, &plan, &earlier)?;
    doing.progress.ready("adopted");
    drop(doing);
    show(ctx, &plan, Some(&done)).context("this machine is adopted, but that could not be written out")
}

/// Looks at the machine and plans; the plan is made from one look.
fn prepare(ctx: &Context, foundation: Foundation) -> anyhow::Result<(State, AdoptPlan)> {
    let mode = config::read_mode(&ctx.layout)?;
    if mode == Mode::Converged {
        return Err(super::not_by_this_release("adopt").into());
    }
    let Some(loaded) = config::load(&ctx.layout)? else {
        if mode == Mode::Adopted {
            return Err(Diagnostics(vec![config::no_node()]).into());
        }
        return Err(Failure::new(Kind::Config, "there is no node.toml")
            .at(format!("{}:1:1", ctx.layout.etc().join("node.toml").display()))
            .remedy("mesh init writes one from what it finds, to be read and edited")
            .into());
    };
    let earlier = undo::recorded(&ctx.layout, false)?;
    let Loaded { node, .. } = &loaded;
    let found = machine::found(&ctx.layout, &loaded, &earlier, foundation)?;
    let plan = plan(node, &found).map_err(|inhibitors| refusal(&inhibitors))?;
    Ok((earlier, plan))
}

fn show(ctx: &Context, plan: &AdoptPlan, done: Option<&adopt::Adopted>) -> anyhow::Result<()> {
    let lines = plan.lines();
    if ctx.json {
        let body =
            json!({"dry_run": done.is_none(), "plan": plan, "digest": plan.digest()?, "steps": lines, "done": done});
        return text::out(&serde_json::to_string_pretty(&json::document("adopt", &ctx.head(), &body)?)?);
    }
    let mut out = String::new();
    match done {
        None => out.push_str(&format!("would, in this order:\n  {}", lines.join("\n  "))),
        Some(d) if *d == adopt::Adopted::default() => out.push_str("adopted already; nothing was changed"),
        Some(d) => {
            out.push_str(&format!(
                "adopted: {} path(s) newly in custody, {} opening(s) made, {} control unit(s) stopped",
                d.taken, d.opened, d.stopped
            ));
            for path in &d.changed {
                out.push_str(&format!(
                    "\nnote: {path} was written while control was being stopped; both versions are in custody"
                ));
            }
        }
    }
    for note in &plan.notes {
        out.push_str(&format!("\nnote: {}", note.words()));
    }
    text::out(&out)
}
