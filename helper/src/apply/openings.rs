//! Openings in the found firewall: made, put back, closed; each change one batch against the very ruleset that it was
//! planned from, read back, and taken back if the ruleset is not exactly as before plus what was asked.
//!
//! Nothing here decides: [`mesh_firewall::open`] does. What a change was is recorded by the caller's recorder.

use crate::adapters::durable;
use crate::adapters::nft::{self, Nft, Sent};
use crate::layout::Layout;
use crate::record::audit::Recorder;
use anyhow::Context as _;
use mesh_firewall::compare::{comparable, difference};
use mesh_firewall::eval::Facts;
use mesh_firewall::ir::{Rule, Ruleset};
use mesh_firewall::kind;
use mesh_firewall::open::{self, Insert, Plan, Refusal, Remove, Step};
use mesh_firewall::walk::{self, RuleRef};
use mesh_model::event::{Committer, Event};
use mesh_model::failure::{Failure, Kind};
use mesh_model::flow::Mark;
use mesh_model::opening::{OPENINGS_SCHEMA, Opening, OpeningsFile};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::{fs, io};

/// How often a change is planned again because somebody else was quicker.
const TRIES: usize = 50;

/// What a change came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The plan as it was applied: empty of steps if nothing was missing.
    pub plan: Plan,
    /// The rules added, as the kernel has them.
    pub added: Vec<RuleRef>,
    /// The rules removed.
    pub removed: Vec<RuleRef>,
}

impl Report {
    /// The rules of one opening among `rules`, one a line: family, table, chain, handle.
    fn of(rules: &[RuleRef], mark: &Mark) -> Vec<String> {
        rules
            .iter()
            .filter(|r| r.mark.as_deref() == Some(mark.as_str()))
            .map(|r| format!("{} {} {} {}", r.family, r.table, r.chain, r.handle.unwrap_or(0)))
            .collect()
    }
}

/// One failure for all that is refused.
pub fn refusal(refused: &[Refusal]) -> Option<Failure> {
    let first = refused.first()?;
    let one = |r: &Refusal| {
        let flow = r.opening.flow.to_string();
        if r.what.starts_with(&flow) { r.what.clone() } else { format!("{flow}: {}", r.what) }
    };
    let what = refused.iter().map(one).collect::<Vec<_>>().join("; ");
    Some(Failure::refused(what).remedy(first.remedy.clone()))
}

fn etc(layout: &Layout) -> std::path::PathBuf {
    layout.under("/etc")
}

/// Reads `openings.json`; nothing where there is none.
pub fn read_file(layout: &Layout) -> anyhow::Result<Vec<Opening>> {
    let path = layout.openings();
    let text = match fs::read_to_string(&path) {
        Ok(t) => t,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Failure::new(Kind::Failed, format!("reading {}: {e}", path.display())).into()),
    };
    let wrong = |what: String| {
        Failure::new(Kind::Config, what)
            .at(path.display().to_string())
            .remedy("it is written by mesh only: remove it, and start mesh-adopt.target again")
    };
    let file: OpeningsFile = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if file.schema != OPENINGS_SCHEMA {
        return Err(wrong(format!("schema {} is not one that this version reads", file.schema)).into());
    }
    Ok(file.openings)
}

/// Writes `openings.json`: sorted, without doubles, readable by all, on disk before this returns.
pub fn write_file(layout: &Layout, openings: &[Opening]) -> anyhow::Result<()> {
    let mut openings = openings.to_vec();
    openings.sort();
    openings.dedup();
    let file = OpeningsFile { schema: OPENINGS_SCHEMA, openings };
    let mut text = serde_json::to_string_pretty(&file).context("writing the openings as JSON")?;
    text.push('\n');
    durable::ensure_dir(&layout.etc(), 0o755)?;
    durable::keep(&layout.openings(), text.as_bytes(), 0o644).map(|_| ())
}

/// What would be done for `openings` now.
pub fn plan(layout: &Layout, openings: &[Opening]) -> anyhow::Result<Plan> {
    let facts = nft::facts(&etc(layout))?;
    Ok(open::plan(&nft::ruleset()?, &facts, openings))
}

/// The rules that would be added for `openings`, in words; a refusal of any of them is the error.
pub fn preview(layout: &Layout, openings: &[Opening]) -> anyhow::Result<Vec<String>> {
    let plan = plan(layout, openings)?;
    match refusal(&plan.refused) {
        Some(f) => Err(f.into()),
        None => Ok(plan.steps.iter().map(words).collect()),
    }
}

/// A step in words.
pub fn words(step: &Step) -> String {
    match step {
        Step::Insert(Insert { family, table, chain, before: Some(h), rule, .. }) => {
            format!("add to {family} {table} {chain} before handle {h}: {rule}")
        }
        Step::Insert(Insert { family, table, chain, before: None, rule, .. }) => {
            format!("add to {family} {table} {chain} at the end: {rule}")
        }
        Step::Remove(Remove { family, table, chain, handle, rule, .. }) => {
            format!("remove from {family} {table} {chain} handle {handle}: {rule}")
        }
    }
}

/// Every table with whose it is (`inet filter`, `nftables`); tables of iptables-legacy too.
pub fn tables(layout: &Layout) -> anyhow::Result<Vec<(String, String)>> {
    let facts = nft::facts(&etc(layout))?;
    let ruleset = nft::ruleset()?;
    let mut out: Vec<(String, String)> = ruleset
        .tables
        .iter()
        .map(|t| (format!("{} {}", t.family, t.name), kind::of(&ruleset, t).word().to_string()))
        .collect();
    out.extend(facts.legacy.iter().map(|t| (t.clone(), kind::Kind::IptablesLegacy.word().to_string())));
    Ok(out)
}

/// How many of `openings` pass now, by a rule of the mesh or because the found firewall lets them pass anyway.
pub fn in_force(layout: &Layout, openings: &[Opening]) -> anyhow::Result<usize> {
    Ok(plan(layout, openings)?.planned.iter().filter(|p| p.open).count())
}

/// Opens `openings` for the first time: all of them or none. `openings.json` holds exactly these afterwards; it is
/// written before the first rule, so that a cut in between is finished by the next boot.
///
/// Returns how many flows needed a rule. Refused: nothing was changed. Taken back: the ruleset is as before.
pub fn establish(layout: &Layout, recorder: &mut Recorder<'_>, openings: &[Opening]) -> anyhow::Result<usize> {
    let facts = nft::facts(&etc(layout))?;
    let mut nft = Nft::open()?;
    if let Some(f) = refusal(&open::plan(&nft.read()?, &facts, openings).refused) {
        return Err(f.into());
    }
    let before = match fs::read(layout.openings()) {
        Ok(bytes) => Some(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(Failure::new(Kind::Failed, format!("reading the openings of before: {e}")).into()),
    };
    write_file(layout, openings)?;
    let made = make(&mut nft, &facts, openings, Refusals::Fail);
    match made {
        Ok(report) => {
            for o in openings {
                let rules = Report::of(&report.added, &o.mark());
                if !rules.is_empty() {
                    recorder.event(&Event::OpeningOpened { opening: o.clone(), rules })?;
                }
            }
            Ok(openings.iter().filter(|o| !Report::of(&report.added, &o.mark()).is_empty()).count())
        }
        Err(e) => {
            record_taken_back(recorder, openings, &e)?;
            let restored = match before {
                Some(bytes) => durable::replace(&layout.openings(), &bytes, 0o644),
                None => durable::remove(&layout.openings()).map(|_| ()),
            };
            match restored {
                Ok(()) => Err(e),
                Err(left) => Err(e.context(format!("openings.json could not be put back ({left:#})"))),
            }
        }
    }
}

/// Puts back what is missing of `openings`; those that are refused are in the report, the others are made.
pub fn restore(layout: &Layout, openings: &[Opening]) -> anyhow::Result<Report> {
    make(&mut Nft::open()?, &nft::facts(&etc(layout))?, openings, Refusals::Report)
}

/// Records what [`restore`] did.
pub fn record_restored(
    recorder: &mut Recorder<'_>,
    openings: &[Opening],
    report: &Report,
    committer: Option<&Committer>,
) -> anyhow::Result<()> {
    for o in openings {
        let rules = Report::of(&report.added, &o.mark());
        if !rules.is_empty() {
            recorder.event(&Event::OpeningRestored { opening: o.clone(), rules, committer: committer.cloned() })?;
        }
    }
    Ok(())
}

/// Records that a change was taken back, if that is what `error` says.
pub fn record_taken_back(
    recorder: &mut Recorder<'_>,
    openings: &[Opening],
    error: &anyhow::Error,
) -> anyhow::Result<()> {
    if let Some(f) = error.downcast_ref::<Failure>().filter(|f| f.kind == Kind::TakenBack) {
        for o in openings {
            recorder.event(&Event::TakenBack { opening: o.clone(), why: f.what.clone() })?;
        }
    }
    Ok(())
}

/// Closes everything of the mesh: `openings.json` goes first, so that nothing puts a rule back, then every marked rule.
/// A rule without the mark, or with another comment, stays. Returns how many rules went.
pub fn close_all(layout: &Layout, recorder: &mut Recorder<'_>) -> anyhow::Result<usize> {
    // A file that cannot be read must not keep rules in force: they are found by their marks.
    let known = read_file(layout);
    durable::remove(&layout.openings())?;
    let report = close(|_| true)?;
    for o in known.as_ref().map(Vec::as_slice).unwrap_or_default() {
        let rules = Report::of(&report.removed, &o.mark());
        if !rules.is_empty() {
            recorder.event(&Event::OpeningClosed { opening: o.clone(), rules })?;
        }
    }
    Ok(report.removed.len())
}

/// Removes the rules whose mark `which` picks, by handle, in the generation in which the marks were read.
pub fn close(which: impl Fn(&Mark) -> bool) -> anyhow::Result<Report> {
    let mut nft = Nft::open()?;
    for _ in 0..TRIES {
        let before = nft.read()?;
        let plan = open::close(&before, &which);
        if plan.steps.is_empty() {
            return Ok(Report { plan, ..Report::default() });
        }
        match nft.send_plan(&plan)? {
            Sent::Moved => {}
            Sent::Refused { step, errno } => return Err(refused_by_kernel(&plan, step, errno).into()),
            Sent::Taken => {
                let removed = of_handles(&before, |r| is_removed(&plan, r));
                let after = nft.read()?;
                let left = open::close(&after, &which);
                if !left.steps.is_empty() && next(before.generation) == after.generation {
                    return Err(Failure::new(Kind::Failed, "marked rules are there after their removal").into());
                }
                let same = difference(&comparable(&before, |r| is_removed(&plan, r)), &comparable(&after, |_| false));
                if let (Some(what), true) = (same, next(before.generation) == after.generation) {
                    return Err(
                        Failure::new(Kind::Failed, format!("closing changed more than its rules: {what}")).into()
                    );
                }
                if left.steps.is_empty() {
                    return Ok(Report { plan, added: Vec::new(), removed });
                }
            }
        }
    }
    Err(overtaken().into())
}

/// What to do with openings that are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusals {
    Fail,
    Report,
}

fn make(nft: &mut Nft, facts: &Facts, openings: &[Opening], refusals: Refusals) -> anyhow::Result<Report> {
    let mut added_before: Vec<RuleRef> = Vec::new();
    for _ in 0..TRIES {
        let before = nft.read()?;
        let plan = open::plan(&before, facts, openings);
        if let (Refusals::Fail, Some(f)) = (refusals, refusal(&plan.refused)) {
            return Err(f.into());
        }
        if plan.steps.is_empty() {
            return Ok(Report { plan, added: added_before, removed: Vec::new() });
        }
        match nft.send_plan(&plan)? {
            Sent::Moved => continue,
            Sent::Refused { step, errno } => return Err(refused_by_kernel(&plan, step, errno).into()),
            Sent::Taken => {}
        }
        let after = nft.read()?;
        match verify(&before, &plan, &after, facts, openings) {
            Verified::Yes => {
                added_before.extend(of_handles(&after, |r| is_new(&before, &plan, r)));
                let removed = of_handles(&before, |r| is_removed(&plan, r));
                return Ok(Report { plan, added: added_before, removed });
            }
            // Somebody changed the ruleset between our batch and the look at it: their ruleset is planned for anew.
            Verified::Overtaken => added_before.extend(of_handles(&after, |r| is_new(&before, &plan, r))),
            Verified::No(why) => {
                let marks: BTreeSet<&str> = plan
                    .steps
                    .iter()
                    .filter_map(|s| match s {
                        Step::Insert(i) => Some(i.mark.as_str()),
                        Step::Remove(_) => None,
                    })
                    .collect();
                close(|m| marks.contains(m.as_str())).context(format!("taking back: {why}"))?;
                return Err(Failure::new(Kind::TakenBack, format!("the openings were taken back: {why}"))
                    .remedy("report this ruleset; open the flow by hand meanwhile")
                    .into());
            }
        }
    }
    Err(overtaken().into())
}

enum Verified {
    Yes,
    Overtaken,
    No(String),
}

/// Whether `after` is `before` plus what was planned, and the flows pass.
fn verify(before: &Ruleset, plan: &Plan, after: &Ruleset, facts: &Facts, openings: &[Opening]) -> Verified {
    let alone = next(before.generation) == after.generation;
    let fault = || -> Option<String> {
        for step in &plan.steps {
            let Step::Insert(i) = step else { continue };
            let there = after.rules.iter().any(|r| {
                (r.family, &r.table, &r.chain) == (i.family, &i.table, &i.chain)
                    && walk::mark(r).is_some_and(|m| m.as_str() == i.mark)
                    && same_rule(r, i)
            });
            if !there {
                return Some(format!("the kernel has no rule as planned: {}", i.rule));
            }
        }
        let old = comparable(before, |r| is_removed(plan, r));
        let new = comparable(after, |r| is_new(before, plan, r));
        if let Some(what) = difference(&old, &new) {
            return Some(format!("more than the planned rules changed: {what}"));
        }
        let again = open::plan(after, facts, openings);
        match (again.steps.is_empty(), again.refused == plan.refused) {
            (true, true) => None,
            _ => Some("the flows would not pass".into()),
        }
    };
    match (fault(), alone) {
        (None, _) => Verified::Yes,
        (Some(_), false) => Verified::Overtaken,
        (Some(why), true) => Verified::No(why),
    }
}

/// The kernel gives back a rule's expressions as they were sent, but for its counters.
fn same_rule(r: &Rule, i: &Insert) -> bool {
    use mesh_firewall::ir::Expr;
    r.exprs.len() == i.exprs.len()
        && r.exprs
            .iter()
            .zip(&i.exprs)
            .all(|(a, b)| a == b || matches!((a, b), (Expr::Counter { .. }, Expr::Counter { .. })))
}

fn is_removed(plan: &Plan, r: &Rule) -> bool {
    plan.steps.iter().any(|s| match s {
        Step::Remove(x) => (x.family, &x.table, x.handle) == (r.family, &r.table, r.handle),
        Step::Insert(_) => false,
    })
}

/// A rule of ours that was not there before: handles are never used twice within a table.
fn is_new(before: &Ruleset, plan: &Plan, r: &Rule) -> bool {
    let planned = plan.steps.iter().any(|s| match s {
        Step::Insert(i) => {
            (i.family, &i.table, &i.chain) == (r.family, &r.table, &r.chain)
                && walk::mark(r).is_some_and(|m| m.as_str() == i.mark)
        }
        Step::Remove(_) => false,
    });
    planned && !before.rules.iter().any(|b| (b.family, &b.table, b.handle) == (r.family, &r.table, r.handle))
}

fn of_handles(ruleset: &Ruleset, which: impl Fn(&Rule) -> bool) -> Vec<RuleRef> {
    ruleset.rules.iter().filter(|r| which(r)).map(|r| RuleRef::of(ruleset, r)).collect()
}

/// The kernel leaves 0 out when its generation wraps (nf_tables_api.c, nft_base_seq_inc).
fn next(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

fn overtaken() -> Failure {
    Failure::new(Kind::Busy, "the ruleset changes faster than it can be changed")
        .remedy("find what keeps changing it: nft monitor")
}

fn refused_by_kernel(plan: &Plan, step: Option<usize>, errno: Errno) -> Failure {
    let at = step.and_then(|n| plan.steps.get(n)).map(words);
    let failure = match errno {
        // nf_tables says EPERM for a table with another owner, and for a caller without CAP_NET_ADMIN.
        Errno::EPERM if nix::unistd::geteuid().is_root() => {
            Failure::refused("the kernel refused the change: the table belongs to another process")
                .remedy("open the flow with the program that owns the table")
        }
        Errno::EPERM => Failure::new(Kind::NoPermission, "the packet filter may only be changed with CAP_NET_ADMIN")
            .remedy("run it as root"),
        e => Failure::new(Kind::Failed, format!("the kernel refused the change: {}", e.desc())),
    };
    match at {
        Some(at) => failure.at(at),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_firewall::ir::{Chain, Family, Hook, Table, hook};

    /// A table whose input drops, at generation 7.
    fn found() -> Ruleset {
        let table = "filter".to_string();
        Ruleset {
            generation: 7,
            tables: vec![Table {
                family: Family::INET,
                name: table.clone(),
                flags: 0,
                handle: 1,
                owner: None,
                userdata: vec![],
            }],
            chains: vec![Chain {
                family: Family::INET,
                table,
                name: "input".into(),
                handle: 1,
                hook: Some(Hook { number: hook::INPUT, priority: 0, devices: vec![] }),
                kind: "filter".into(),
                policy_accepts: Some(false),
                flags: 0,
                userdata: vec![],
            }],
            ..Ruleset::default()
        }
    }

    #[test]
    fn what_is_not_as_planned_is_taken_back_unless_others_were_at_work() {
        let opening = Opening { module: "operator".into(), flow: "tcp/80".parse().unwrap() };
        let (before, facts, openings) = (found(), Facts::default(), [opening]);
        let plan = open::plan(&before, &facts, &openings);
        let mut after = open::simulate(&before, &plan.steps);
        after.generation = 8;
        let judged = |after: &Ruleset| match verify(&before, &plan, after, &facts, &openings) {
            Verified::Yes => "as planned".to_string(),
            Verified::Overtaken => "overtaken".to_string(),
            Verified::No(why) => why,
        };
        assert_eq!(judged(&after), "as planned");

        let mut wider = after.clone();
        wider.rules[0].exprs.drain(..2);
        let mut policy = after.clone();
        policy.chains[0].policy_accepts = Some(true);
        let mut stranger = after.clone();
        stranger.rules.push(Rule { userdata: vec![], handle: 3, ..after.rules[0].clone() });
        let mut missing = after.clone();
        missing.rules.clear();
        for (changed, why) in [
            (wider, "no rule as planned"),
            (policy, "chain inet filter input differs"),
            (stranger, "is new"),
            (missing, "no rule as planned"),
        ] {
            assert!(judged(&changed).contains(why), "{}", judged(&changed));
            // Two generations on, it may be somebody else's doing, and is planned for anew.
            assert_eq!(judged(&Ruleset { generation: 9, ..changed }), "overtaken");
        }
        // Counters and handles are not a difference.
        let counted =
            Ruleset { rules: after.rules.iter().map(|r| Rule { handle: 99, ..r.clone() }).collect(), ..after };
        assert_eq!(judged(&counted), "as planned");
    }

    #[test]
    fn the_file_is_sorted_without_doubles_and_strict() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(read_file(&layout).unwrap(), []);
        let of = |f: &str| Opening { module: "operator".into(), flow: f.parse().unwrap() };
        write_file(&layout, &[of("udp/53"), of("tcp/80"), of("udp/53")]).unwrap();
        assert_eq!(read_file(&layout).unwrap(), [of("tcp/80"), of("udp/53")]);
        for bad in ["", "{\"schema\":2,\"openings\":[]}", "{\"schema\":1,\"openings\":[],\"x\":1}"] {
            fs::write(layout.openings(), bad).unwrap();
            let e = read_file(&layout).unwrap_err().downcast::<Failure>().unwrap();
            assert_eq!(e.kind, Kind::Config, "{bad}");
        }
    }
}
