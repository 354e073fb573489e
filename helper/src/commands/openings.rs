//! The verb `openings`: what is wanted, what is in force; with `--assert`, what boot and the watcher run.
//!
//! Started by `mesh-watch.socket`, it drains the socket first, whatever the mode: a message left there would start it
//! again for ever. Its own change wakes it once more, and then nothing is missing.

use crate::adapters::config;
use crate::adapters::lock::{Lock, Wait};
use crate::adapters::nft::{self, Changes};
use crate::apply::openings::{self, Report, words};
use crate::cli;
use crate::commands::Context;
use crate::record::audit::Recorder;
use crate::show::json;
use crate::show::text;
use mesh_firewall::open::{self, Plan};
use mesh_firewall::walk::RuleRef;
use mesh_model::event::Committer;
use mesh_model::flow::Mark;
use mesh_model::mode::Mode;
use mesh_model::opening::Opening;
use serde::Serialize;
use std::os::fd::IntoRawFd;
use std::time::Duration;

/// A reload is many commits; one answer is enough.
const QUIET: Duration = Duration::from_millis(200);
/// A ruleset that never rests is answered this often.
const MOST: Duration = Duration::from_secs(2);
/// How long another verb may hold the lock while an opening is missing.
const LOCK: Duration = Duration::from_secs(30);

/// Runs the verb.
pub fn run(ctx: &Context, args: &cli::Openings) -> anyhow::Result<()> {
    // The ruleset is always the running machine's: openings of another one's files must not get into it.
    ctx.need_machine("openings")?;
    if !args.assert {
        return list(ctx);
    }
    let changes = activated()?;
    // The mode is looked at only now: a message must be taken from the socket in any case.
    if config::read_mode(&ctx.layout)? == Mode::Unmanaged {
        return asserted(ctx, args, &Report::default());
    }
    let wanted = openings::read_file(&ctx.layout)?;
    if args.dry_run {
        return show_plan(ctx, &openings::plan(&ctx.layout, &wanted)?);
    }
    asserted(ctx, args, &assert(ctx, &wanted, &changes)?)
}

/// Says what was done, where that is asked for: words are for people, and what boot and the watcher run needs none.
fn asserted(ctx: &Context, args: &cli::Openings, report: &Report) -> anyhow::Result<()> {
    if args.dry_run {
        return show_plan(ctx, &report.plan);
    }
    if ctx.json {
        let body = serde_json::json!({ "added": report.added, "removed": report.removed });
        text::out(&format!("{:#}", json::document("openings", &ctx.head(), &body)?))?;
    }
    Ok(())
}

/// Drains what systemd handed over, if it did.
fn activated() -> anyhow::Result<Changes> {
    let mut all = Changes::default();
    let given = libsystemd::activation::receive_descriptors(false)
        .map_err(|e| anyhow::anyhow!("taking the activation socket: {e}"))?;
    for fd in given {
        let changes = nft::drain(fd.into_raw_fd(), QUIET, MOST)?;
        all.generations.extend(changes.generations);
        all.lost |= changes.lost;
    }
    Ok(all)
}

fn assert(ctx: &Context, wanted: &[Opening], changes: &Changes) -> anyhow::Result<Report> {
    // Without the lock first: in the common case nothing is missing, and nothing is waited for or written.
    let plan = openings::plan(&ctx.layout, wanted)?;
    let mut done = Report { plan, ..Report::default() };
    if !done.plan.steps.is_empty() {
        let lock = Lock::take(&ctx.layout, "openings --assert", Wait::AtMost(LOCK))?;
        // Whoever held the lock may have closed them meanwhile.
        let wanted = openings::read_file(&ctx.layout)?;
        let mut recorder = Recorder::journal_only_without_ledger(&ctx.layout, &lock, &ctx.head().node);
        let report = match openings::restore(&ctx.layout, &wanted) {
            Ok(report) => report,
            Err(e) => {
                openings::record_taken_back(&mut recorder, &wanted, &e)?;
                return Err(e);
            }
        };
        let committer = changes
            .generations
            .iter()
            .rev()
            .find(|g| g.pid != 0 && g.pid != std::process::id())
            .map(|g| Committer { name: g.process.clone(), pid: g.pid });
        openings::record_restored(&mut recorder, &wanted, &report, committer.as_ref())?;
        done = report;
    }
    match openings::refusal(&done.plan.refused) {
        Some(f) => Err(f.into()),
        None => Ok(done),
    }
}

#[derive(Serialize)]
struct Row {
    flow: String,
    module: String,
    mark: String,
    /// `in-force`, `already-open`, `missing`, `refused`.
    state: &'static str,
    why: Option<String>,
    rules: Vec<RuleRef>,
    /// Drops that take a part of the flow, and stay.
    deliberate_drops: Vec<String>,
}

#[derive(Serialize)]
struct Listing {
    openings: Vec<Row>,
    /// Marked rules that no opening of the list asks for.
    unasked: Vec<RuleRef>,
}

fn listing(wanted: &[Opening], marked: &[(Mark, RuleRef)], plan: &Plan) -> Listing {
    let openings = wanted
        .iter()
        .map(|o| {
            let mark = o.mark();
            let rules: Vec<RuleRef> = marked.iter().filter(|(m, _)| *m == mark).map(|(_, r)| r.clone()).collect();
            let planned = plan.planned.iter().find(|p| p.opening == *o);
            let refused = plan.refused.iter().find(|r| r.opening == *o);
            let state = match (planned, refused) {
                (Some(p), _) if !p.open => "missing",
                (Some(_), _) if rules.is_empty() => "already-open",
                (Some(_), _) => "in-force",
                (None, _) => "refused",
            };
            let chains = planned.map(|p| p.chains.as_slice()).unwrap_or_default();
            let mut drops: Vec<String> = chains.iter().flat_map(|c| &c.passed).map(|p| p.rule.words()).collect();
            drops.sort();
            drops.dedup();
            let why = match state {
                "already-open" => {
                    let by: Vec<String> = chains.iter().flat_map(|c| &c.open_by).map(RuleRef::words).collect();
                    Some(if by.is_empty() { "no chain drops it".into() } else { by.join("; ") })
                }
                _ => refused.map(|r| r.what.clone()),
            };
            Row {
                flow: o.flow.to_string(),
                module: o.module.clone(),
                mark: mark.to_string(),
                state,
                why,
                rules,
                deliberate_drops: drops,
            }
        })
        .collect();
    let unasked =
        marked.iter().filter(|(m, _)| !wanted.iter().any(|o| o.mark() == *m)).map(|(_, r)| r.clone()).collect();
    Listing { openings, unasked }
}

fn list(ctx: &Context) -> anyhow::Result<()> {
    let wanted = openings::read_file(&ctx.layout)?;
    // One reading for both, so that the answer is of one moment.
    let ruleset = nft::ruleset()?;
    let facts = nft::facts(&ctx.layout.under("/etc"))?;
    let l = listing(&wanted, &open::marked(&ruleset), &open::plan(&ruleset, &facts, &wanted));
    if ctx.json {
        let document = json::document("openings", &ctx.head(), &l)?;
        return text::out(&format!("{document:#}"));
    }
    if l.openings.is_empty() && l.unasked.is_empty() {
        return text::out("nothing is opened by the mesh");
    }
    let mut table = text::table(&["flow", "module", "state", "rule"]);
    for r in &l.openings {
        let mut lines: Vec<String> = r.rules.iter().map(RuleRef::words).collect();
        lines.extend(r.why.clone());
        lines.extend(r.deliberate_drops.iter().map(|d| format!("stays: {d}")));
        table.add_row([r.flow.clone(), r.module.clone(), r.state.to_string(), lines.join("\n")]);
    }
    for r in &l.unasked {
        table.add_row(["-".into(), "-".into(), "unasked".into(), r.words()]);
    }
    text::out(&table.to_string())
}

fn show_plan(ctx: &Context, plan: &Plan) -> anyhow::Result<()> {
    if ctx.json {
        let document = json::document("openings", &ctx.head(), &serde_json::json!({ "plan": plan }))?;
        text::out(&format!("{document:#}"))?;
    } else if plan.steps.is_empty() && plan.refused.is_empty() {
        text::out("nothing is missing")?;
    } else {
        for step in &plan.steps {
            text::out(&words(step))?;
        }
    }
    match openings::refusal(&plan.refused) {
        Some(f) => Err(f.into()),
        None => Ok(()),
    }
}
