//! Flow → plan: the fewest own rules after which every base chain that would drop the flow accepts it, and nothing
//! else (DESIGN §6.2). A pure function; what it decides is a value that is printed, and applied as it is.

use crate::eval::{Facts, Packet, State};
use crate::ir::{BitwiseOp, Chain, CmpOp, Data, Expr, Family, Reg, Rule, Ruleset, Verdict, hook};
use crate::kind::{self, Kind};
use crate::walk::{self, Fate, Index, Passed, Place, RuleRef};
use crate::{encode, text};
use mesh_model::flow::{Carried, Flow, Mark};
use mesh_model::opening::Opening;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One change of the kernel's ruleset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Step {
    /// Add a marked rule.
    Insert(Insert),
    /// Remove a marked rule.
    Remove(Remove),
}

/// A marked rule to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Insert {
    /// Of the table.
    #[serde(serialize_with = "word")]
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Before the rule with this handle; at the end where not given.
    pub before: Option<u64>,
    /// The mark it carries.
    pub mark: String,
    /// In words.
    pub rule: String,
    /// As the kernel takes it.
    #[serde(skip)]
    pub exprs: Vec<Expr>,
}

/// A marked rule to remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remove {
    /// Of the table.
    #[serde(serialize_with = "word")]
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Which.
    pub handle: u64,
    /// The mark it carries.
    pub mark: String,
    /// In words.
    pub rule: String,
}

fn word<S: serde::Serializer>(f: &Family, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(f.word())
}

/// What one base chain means for an opening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AtChain {
    /// `inet filter input`.
    pub chain: String,
    /// By what the flow is accepted there as it is; empty if rules are added.
    pub open_by: Vec<RuleRef>,
    /// The drops that the added rules go before.
    pub saved_from: Vec<RuleRef>,
    /// Drops that take a part of the flow and stay.
    pub passed: Vec<Passed>,
}

/// Why one opening is not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Which.
    pub opening: Opening,
    /// What is in the way, naming it.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// One opening that is or will be in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Which.
    pub opening: Opening,
    /// Its mark.
    pub mark: String,
    /// It passes as it is; at most rules that nothing reaches are removed.
    pub open: bool,
    /// Each base chain it passes.
    pub chains: Vec<AtChain>,
}

/// What is to be done, for all openings, against one generation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Plan {
    /// The generation it was made from.
    pub generation: u32,
    /// In order.
    pub steps: Vec<Step>,
    /// What they are for.
    pub planned: Vec<Planned>,
    /// What is not made.
    pub refused: Vec<Refusal>,
}

/// Plans `openings`. An opening that is refused has no step; the others do not depend on it.
pub fn plan(ruleset: &Ruleset, facts: &Facts, openings: &[Opening]) -> Plan {
    let mut plan = Plan { generation: ruleset.generation, ..Plan::default() };
    for opening in openings {
        match whole(ruleset, facts, opening) {
            Err((what, remedy)) => plan.refused.push(Refusal { opening: opening.clone(), what, remedy }),
            Ok((chains, steps)) => {
                plan.planned.push(Planned {
                    opening: opening.clone(),
                    mark: opening.mark().to_string(),
                    open: !steps.iter().any(|s| matches!(s, Step::Insert(_))),
                    chains,
                });
                plan.steps.extend(steps);
            }
        }
    }
    plan
}

/// Plans one opening. If it is not in force as it is, what is left of it goes, and it is made anew as a whole.
fn whole(ruleset: &Ruleset, facts: &Facts, opening: &Opening) -> Result<(Vec<AtChain>, Vec<Step>), InTheWay> {
    let (chains, steps) = one(&Index::new(ruleset), facts, opening)?;
    let mark = opening.mark();
    if steps.is_empty() {
        let doubles = doubles(ruleset, &mark);
        if doubles.is_empty() || proves(ruleset, facts, opening, &doubles).is_err() {
            return Ok((chains, steps));
        }
        return Ok((one(&Index::new(&simulate(ruleset, &doubles)), facts, opening)?.0, doubles));
    }
    let mut all = close(ruleset, |m| *m == mark).steps;
    let (chains, steps) = match all.is_empty() {
        true => (chains, steps),
        false => one(&Index::new(&simulate(ruleset, &all)), facts, opening)?,
    };
    all.extend(steps);
    proves(ruleset, facts, opening, &all)?;
    Ok((chains, all))
}

/// Removes the rules whose mark `which` picks.
pub fn close(ruleset: &Ruleset, which: impl Fn(&Mark) -> bool) -> Plan {
    let mut plan = Plan { generation: ruleset.generation, ..Plan::default() };
    for r in &ruleset.rules {
        if let Some(mark) = walk::mark(r).filter(|m| which(m)) {
            plan.steps.push(Step::Remove(remove(ruleset, r, &mark)));
        }
    }
    plan
}

/// The removal of each rule with this mark that the same chain has earlier too, as after a saved ruleset was loaded on
/// top of the one in force: nothing reaches it.
fn doubles(ruleset: &Ruleset, mark: &Mark) -> Vec<Step> {
    let marked: Vec<&Rule> = ruleset.rules.iter().filter(|r| walk::mark(r).as_ref() == Some(mark)).collect();
    let counts = |e: &Expr| matches!(e, Expr::Counter { .. });
    let same = |a: &Rule, b: &Rule| {
        (a.family, &a.table, &a.chain) == (b.family, &b.table, &b.chain)
            && a.exprs.iter().filter(|e| !counts(e)).eq(b.exprs.iter().filter(|e| !counts(e)))
    };
    let later = marked.iter().enumerate().filter(|(n, r)| marked[..*n].iter().any(|earlier| same(earlier, r)));
    later.map(|(_, r)| Step::Remove(remove(ruleset, r, mark))).collect()
}

/// The marked rules in force.
pub fn marked(ruleset: &Ruleset) -> Vec<(Mark, RuleRef)> {
    ruleset.rules.iter().filter_map(|r| Some((walk::mark(r)?, RuleRef::of(ruleset, r)))).collect()
}

fn remove(ruleset: &Ruleset, r: &Rule, mark: &Mark) -> Remove {
    Remove {
        family: r.family,
        table: r.table.clone(),
        chain: r.chain.clone(),
        handle: r.handle,
        mark: mark.to_string(),
        rule: text::rule(ruleset, r),
    }
}

/// What is in the way, and the remedy.
type InTheWay = (String, String);

/// Applies `steps` to the value and asks again: a plan that would not make the flow pass is never handed out.
fn proves(ruleset: &Ruleset, facts: &Facts, opening: &Opening, steps: &[Step]) -> Result<(), InTheWay> {
    let after = simulate(ruleset, steps);
    match one(&Index::new(&after), facts, opening) {
        Ok((_, more)) if more.is_empty() => Ok(()),
        Ok(_) => Err((
            format!("{} would not pass even with the planned rules", opening.flow),
            "open it by hand, and report this ruleset".into(),
        )),
        Err(why) => Err(why),
    }
}

/// The ruleset as it would be after `steps`.
pub fn simulate(ruleset: &Ruleset, steps: &[Step]) -> Ruleset {
    let mut r = ruleset.clone();
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Remove(x) => {
                r.rules.retain(|y| !(y.family == x.family && y.table == x.table && y.handle == x.handle));
            }
            Step::Insert(i) => {
                let rule = Rule {
                    family: i.family,
                    table: i.table.clone(),
                    chain: i.chain.clone(),
                    // Higher than any handle the kernel has given.
                    handle: u64::MAX - n as u64,
                    exprs: i.exprs.clone(),
                    userdata: encode::comment_userdata(&i.mark),
                    compat: None,
                };
                let here = |y: &Rule| y.family == i.family && y.table == i.table && y.chain == i.chain;
                let at = match i.before {
                    Some(h) => r.rules.iter().position(|y| here(y) && y.handle == h),
                    None => r.rules.iter().rposition(here).map(|p| p + 1),
                };
                r.rules.insert(at.unwrap_or(r.rules.len()), rule);
            }
        }
    }
    r
}

/// Inclusive range of ports or ICMP types; `None` where the protocol has none.
type Span = Option<(u16, u16)>;

fn span(flow: &Flow) -> Span {
    match flow.carried {
        Carried::Ports { first, last, .. } => Some((first, last)),
        Carried::Icmp(t) | Carried::Icmp6(t) => Some(t.map_or((0, 255), |t| (t.into(), t.into()))),
        Carried::Bare(_) => None,
    }
}

/// A block of a range: all values with the high bits of the first one, and how many low bits are open.
fn blocks((first, last): (u16, u16)) -> Vec<(u16, u32)> {
    let (mut at, last) = (u32::from(first), u32::from(last));
    let mut out = Vec::new();
    while at <= last {
        let mut open = at.trailing_zeros().min(16);
        while open > 0 && at + (1 << open) - 1 > last {
            open -= 1;
        }
        out.push((at as u16, open));
        at += 1 << open;
    }
    out
}

/// How often one chain may be walked for one opening before the range is too ragged.
const WALKS: usize = 20_000;

/// What one chain does with the flow.
#[derive(Default)]
struct Answer {
    open_by: BTreeSet<RuleRef>,
    saved_from: BTreeSet<RuleRef>,
    passed: BTreeSet<Passed>,
    /// Where rules are needed: for which family and which parts of the range.
    places: BTreeMap<Place, BTreeMap<bool, Vec<Span>>>,
}

struct Ask<'a> {
    index: &'a Index<'a>,
    facts: &'a Facts,
    flow: &'a Flow,
}

fn one(index: &Index<'_>, facts: &Facts, opening: &Opening) -> Result<(Vec<AtChain>, Vec<Step>), InTheWay> {
    let ruleset = index.ruleset();
    let flow = &opening.flow;
    if flow.via_forward {
        return Err((
            format!("{flow} goes through this host: a forwarded flow cannot be opened by this release"),
            "publish it by its container's runtime, or put the rules in by hand".into(),
        ));
    }
    // A legacy nat table can redirect but not drop; the others are not seen by netlink at all.
    if let Some(table) = facts.legacy.iter().find(|t| !t.ends_with(" nat")) {
        return Err((
            format!("the table {table} of iptables-legacy is in force, and cannot be read or opened by this release"),
            "move its rules to nftables, or remove the table if it is empty (iptables-legacy -F, rmmod iptable_filter)"
                .into(),
        ));
    }
    let ask = Ask { index, facts, flow };
    let (mut chains, mut steps) = (Vec::new(), Vec::new());
    for chain in &ruleset.chains {
        let Some(h) = &chain.hook else { continue };
        let Some(table) = ruleset.table(chain.family, &chain.table) else { continue };
        if table.dormant() {
            continue;
        }
        let families = families(chain.family, flow);
        let role = match (chain.family, h.number, chain.kind.as_str()) {
            (Family::INET | Family::IP | Family::IP6, hook::PREROUTING, "nat") => Role::Translates,
            (Family::INET | Family::IP | Family::IP6, hook::INPUT, "filter") => Role::Opens,
            (Family::INET | Family::IP | Family::IP6, hook::PREROUTING, "filter") => Role::MustPass,
            (Family::INET, hook::INGRESS, _) | (Family::NETDEV, 0, _) => match &flow.on {
                Some(on) if !h.devices.contains(on) => continue,
                _ => Role::MustPass,
            },
            _ => continue,
        };
        if families.is_empty() {
            continue;
        }
        let whose = kind::of(ruleset, table);
        let answer = ask.chain(chain, &families, role)?;
        let label = format!("{} {} {}", chain.family, chain.table, chain.name);
        if !answer.places.is_empty() {
            let by = answer.saved_from.iter().map(RuleRef::words).collect::<Vec<_>>().join("; ");
            if role != Role::Opens {
                return Err((
                    format!("{flow} is dropped before it reaches this host's own chains, by {by}"),
                    "open it there by hand".into(),
                ));
            }
            if whose != Kind::Nftables {
                return Err((
                    format!(
                        "{flow} is dropped by {by}, in a table of {whose}: that kind cannot be opened by this release"
                    ),
                    format!("open it with {whose}'s own command"),
                ));
            }
            if table.owned() {
                return Err((
                    format!(
                        "{flow} is dropped by {by}, in a table that only its owner{} may change",
                        table.owner.map(|o| format!(" (netlink port {o})")).unwrap_or_default()
                    ),
                    "open it with the program that owns the table".into(),
                ));
            }
            steps.extend(rules(ruleset, chain, opening, &answer.places));
        }
        if role == Role::Opens {
            chains.push(AtChain {
                chain: label,
                open_by: answer.open_by.into_iter().collect(),
                saved_from: answer.saved_from.into_iter().collect(),
                passed: answer.passed.into_iter().collect(),
            });
        }
    }
    Ok((chains, steps))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Rules may be added here.
    Opens,
    /// It must not drop; rules here would widen what is forwarded.
    MustPass,
    /// It must not change the destination.
    Translates,
}

/// The families of the packets that a chain sees of the flow: `true` is IPv6.
fn families(family: Family, flow: &Flow) -> Vec<bool> {
    [false, true]
        .into_iter()
        .filter(
            |v6| if *v6 { flow.allows_v6() && family != Family::IP } else { flow.allows_v4() && family != Family::IP6 },
        )
        .collect()
}

impl Ask<'_> {
    fn chain(&self, chain: &Chain, families: &[bool], role: Role) -> Result<Answer, InTheWay> {
        let mut answer = Answer::default();
        let mut left = WALKS;
        let states: &[State] = match role {
            Role::Translates => &[State::New],
            Role::Opens | Role::MustPass => &[State::New, State::Established],
        };
        for v6 in families {
            for state in states {
                let mut parts: Vec<Option<(u16, u32)>> = match span(self.flow) {
                    Some(s) => blocks(s).into_iter().map(Some).rev().collect(),
                    None => vec![None],
                };
                while let Some(part) = parts.pop() {
                    if left == 0 {
                        return Err((
                            format!(
                                "the ports of {} fare too differently in {} {}",
                                self.flow, chain.table, chain.name
                            ),
                            "ask for fewer ports at once".into(),
                        ));
                    }
                    left -= 1;
                    let packet = Packet::of(self.flow, *v6, *state, part, self.facts);
                    let walk = walk::walk(self.index, chain, &packet);
                    if let (true, Some((at, open @ 1..))) = (walk.splits, part) {
                        parts.push(Some((at | 1 << (open - 1), open - 1)));
                        parts.push(Some((at, open - 1)));
                        continue;
                    }
                    if role == Role::Translates {
                        if let Some(by) = walk.translated.first() {
                            return Err((
                                format!("{} is sent elsewhere by {}", self.flow, by.words()),
                                "it does not reach this host as asked; open what it is sent to".into(),
                            ));
                        }
                    }
                    if let Some(o) = walk.obstacles.first() {
                        return Err((format!("{}: {}", o.rule.words(), o.what), o.remedy.clone()));
                    }
                    answer.passed.extend(walk.passed);
                    match walk.fate {
                        // By what a connection begins is what an operator wants to know.
                        Fate::Accepted(by) if *state == State::New => {
                            answer.open_by.insert(by);
                        }
                        Fate::Accepted(_) => {}
                        Fate::Dropped { by, place } => {
                            let place =
                                place.map_err(|o| (format!("{}: {}", o.rule.words(), o.what), o.remedy.clone()))?;
                            answer.saved_from.insert(by);
                            let range = part.map(|(at, open)| (at, (u32::from(at) + (1 << open) - 1) as u16));
                            answer.places.entry(place).or_default().entry(*v6).or_default().push(range);
                        }
                    }
                }
            }
        }
        Ok(answer)
    }
}

/// Sorted, without overlap, neighbours joined.
fn merged(spans: &[Span]) -> Vec<Span> {
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    let mut out: Vec<Span> = Vec::new();
    for s in sorted {
        match (out.last_mut(), s) {
            (Some(Some((_, last))), Some((first, end))) if u32::from(first) <= u32::from(*last) + 1 => {
                *last = (*last).max(end);
            }
            (Some(None), None) => {}
            _ => out.push(s),
        }
    }
    out
}

/// The rules to add in one base chain and below it.
fn rules(
    ruleset: &Ruleset,
    base: &Chain,
    opening: &Opening,
    places: &BTreeMap<Place, BTreeMap<bool, Vec<Span>>>,
) -> Vec<Step> {
    let mark = opening.mark();
    let mut steps = Vec::new();
    for (place, families) in places {
        let spans: BTreeMap<bool, Vec<Span>> = families.iter().map(|(v6, s)| (*v6, merged(s))).collect();
        let mut wanted: Vec<(Option<bool>, Span)> = Vec::new();
        match (spans.get(&false), spans.get(&true)) {
            (Some(a), Some(b)) if a == b => wanted.extend(a.iter().map(|s| (None, *s))),
            (a, b) => {
                wanted.extend(a.into_iter().flatten().map(|s| (Some(false), *s)));
                wanted.extend(b.into_iter().flatten().map(|s| (Some(true), *s)));
            }
        }
        for (v6, s) in wanted {
            let exprs = exprs(base.family, &opening.flow, v6, s);
            let shown = Rule {
                family: base.family,
                table: base.table.clone(),
                chain: place.chain.clone(),
                handle: 0,
                exprs: exprs.clone(),
                userdata: encode::comment_userdata(mark.as_str()),
                compat: None,
            };
            steps.push(Step::Insert(Insert {
                family: base.family,
                table: base.table.clone(),
                chain: place.chain.clone(),
                before: place.before,
                mark: mark.to_string(),
                rule: text::rule(ruleset, &shown),
                exprs,
            }));
        }
    }
    steps
}

/// The expressions of an own rule: `[nfproto] [iifname] [saddr] [daddr] l4proto [dport|type] counter accept`, as nft
/// would write them, and of the shapes that iptables' own reader understands.
fn exprs(table: Family, flow: &Flow, v6: Option<bool>, span: Span) -> Vec<Expr> {
    let r = Reg(1);
    let mut out = Vec::new();
    let eq = |data: Vec<u8>| Expr::Cmp { sreg: r, op: CmpOp::Eq, data };
    if let (Family::INET, Some(v6)) = (table, v6) {
        out.push(Expr::Meta { key: 15, dreg: Some(r), sreg: None });
        out.push(eq(vec![if v6 { 10 } else { 2 }]));
    }
    if let Some(name) = &flow.on {
        let mut padded = name.as_bytes().to_vec();
        padded.resize(16, 0);
        out.push(Expr::Meta { key: 6, dreg: Some(r), sreg: None });
        out.push(eq(padded));
    }
    let mut address = |a: IpAddr, prefix: u8, (v4_at, v6_at): (u32, u32)| {
        let (offset, bytes) = match a {
            IpAddr::V4(a) => (v4_at, a.octets().to_vec()),
            IpAddr::V6(a) => (v6_at, a.octets().to_vec()),
        };
        let len = bytes.len() as u32;
        if prefix == 0 {
            return;
        }
        if prefix % 8 == 0 {
            let n = usize::from(prefix / 8);
            out.push(Expr::Payload { base: 1, offset, len: n as u32, dreg: r });
            out.push(Expr::Cmp { sreg: r, op: CmpOp::Eq, data: bytes[..n].to_vec() });
            return;
        }
        let mask: Vec<u8> =
            (0..len).map(|i| (0xff00u16 >> u32::from(prefix).saturating_sub(i * 8).min(8)) as u8).collect();
        let data = bytes.iter().zip(&mask).map(|(b, m)| b & m).collect();
        out.push(Expr::Payload { base: 1, offset, len, dreg: r });
        out.push(Expr::Bitwise { sreg: r, dreg: r, len, op: BitwiseOp::MaskXor { mask, xor: vec![0; len as usize] } });
        out.push(Expr::Cmp { sreg: r, op: CmpOp::Eq, data });
    };
    if let Some(p) = flow.from {
        address(p.addr(), p.prefix_len(), (12, 8));
    }
    if let Some(a) = flow.to {
        address(a, if a.is_ipv4() { 32 } else { 128 }, (16, 24));
    }
    out.push(Expr::Meta { key: 16, dreg: Some(r), sreg: None });
    out.push(eq(vec![flow.protocol()]));
    if let Some((first, last)) = span {
        let (offset, bytes): (u32, fn(u16) -> Vec<u8>) = match flow.carried {
            Carried::Ports { .. } => (2, |n| n.to_be_bytes().to_vec()),
            Carried::Icmp(_) | Carried::Icmp6(_) | Carried::Bare(_) => (0, |n| vec![n as u8]),
        };
        let all_types = offset == 0 && (first, last) == (0, 255);
        if !all_types {
            out.push(Expr::Payload { base: 2, offset, len: bytes(0).len() as u32, dreg: r });
            out.push(match first == last {
                true => eq(bytes(first)),
                false => Expr::Range { sreg: r, inverted: false, from: bytes(first), to: bytes(last) },
            });
        }
    }
    out.push(Expr::Counter { packets: 0, bytes: 0 });
    out.push(Expr::Immediate { dreg: Reg::VERDICT, data: Data::Verdict(Verdict::Accept) });
    out
}
