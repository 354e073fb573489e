//! One flow through one base chain: what becomes of all of it, and what takes a part of it on the way.
//!
//! The walk follows the part of the flow that nothing has taken yet. A drop that hits all of that part, whatever its
//! source, is *general*; one that may hit only a part is *deliberate* and passed. What cannot be told apart is an
//! obstacle: it names the rule and makes the answer unusable for a change.

use crate::bits::Why;
use crate::eval::{self, Effect, Packet};
use crate::ir::{Chain, Data, Expr, Family, Rule, Ruleset, Verdict};
use crate::text;
use mesh_model::flow::Mark;
use serde::Serialize;
use std::collections::HashMap;

/// A rule as it is shown and found again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleRef {
    /// `inet`, `ip`, `ip6` …
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Its handle; `None` for the chain's policy.
    pub handle: Option<u64>,
    /// In words.
    pub rule: String,
    /// The mesh's mark, if it has one.
    pub mark: Option<String>,
}

impl RuleRef {
    /// Of a rule.
    pub fn of(ruleset: &Ruleset, r: &Rule) -> RuleRef {
        RuleRef {
            family: r.family.word(),
            table: r.table.clone(),
            chain: r.chain.clone(),
            handle: Some(r.handle),
            rule: text::rule(ruleset, r),
            mark: mark(r).map(|m| m.to_string()),
        }
    }

    /// Of a base chain's policy.
    pub fn policy(c: &Chain) -> RuleRef {
        RuleRef {
            family: c.family.word(),
            table: c.table.clone(),
            chain: c.name.clone(),
            handle: None,
            rule: format!("policy {}", if c.policy_accepts == Some(false) { "drop" } else { "accept" }),
            mark: None,
        }
    }

    /// `inet filter input handle 7: tcp dport 22 accept`.
    pub fn words(&self) -> String {
        match self.handle {
            Some(h) => format!("{} {} {} handle {h}: {}", self.family, self.table, self.chain, self.rule),
            None => format!("{} {} {}: {}", self.family, self.table, self.chain, self.rule),
        }
    }
}

/// The mark of a rule, from its user data or its xt comment.
pub fn mark(r: &Rule) -> Option<Mark> {
    r.comment().and_then(|c| Mark::from_comment(&c))
}

/// A deliberate drop: it may take a part of the flow, and stays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Passed {
    /// Which.
    pub rule: RuleRef,
    /// On what it hangs which part it takes.
    pub depends_on: String,
}

/// Something that keeps the answer from being used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Obstacle {
    /// Which rule.
    pub rule: RuleRef,
    /// Why.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Where a rule would go so that it is the last that can still save the flow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// The chain.
    pub chain: String,
    /// Before the rule of this handle; `None`: at the end.
    pub before: Option<u64>,
}

/// What becomes of the whole of the flow (less what was taken on the way).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Accepted, by this rule or policy.
    Accepted(RuleRef),
    /// Dropped by this rule or policy; a rule at `place` would save it.
    Dropped {
        /// By what.
        by: RuleRef,
        /// Where to insert; an error where no place is exact.
        place: Result<Place, Box<Obstacle>>,
    },
}

/// The answer of a walk.
#[derive(Debug, Clone)]
pub struct Walk {
    /// What becomes of the flow.
    pub fate: Fate,
    /// Deliberate drops before that.
    pub passed: Vec<Passed>,
    /// What keeps the answer from being used.
    pub obstacles: Vec<Obstacle>,
    /// Rules that may change the destination.
    pub translated: Vec<RuleRef>,
    /// Whether ports of the asked range may fare differently.
    pub splits: bool,
}

/// Rules looked at before a walk gives up: jumps can multiply.
const BUDGET: usize = 1_000_000;
/// `NFT_JUMP_STACK_SIZE`.
const DEPTH: usize = 16;

enum End {
    Accept(RuleRef),
    Drop(RuleRef, Result<Place, Box<Obstacle>>),
    Return(Result<Place, Box<Obstacle>>),
}

struct Outcome {
    end: End,
    /// A part that returns although the rest ends otherwise.
    side: Option<Why>,
}

struct Frame<'a> {
    chain: &'a Chain,
    /// The rule of the caller that led here, and how many things had been passed then.
    from: Option<(&'a Rule, usize)>,
}

type Key<'a> = (Family, &'a str, &'a str);

/// A ruleset's rules by chain, and how often each chain is led into.
#[derive(Debug)]
pub struct Index<'a> {
    ruleset: &'a Ruleset,
    rules: HashMap<Key<'a>, Vec<&'a Rule>>,
    references: HashMap<Key<'a>, usize>,
}

impl<'a> Index<'a> {
    /// Of `ruleset`.
    pub fn new(ruleset: &'a Ruleset) -> Index<'a> {
        let mut index = Index { ruleset, rules: HashMap::new(), references: HashMap::new() };
        for r in &ruleset.rules {
            index.rules.entry((r.family, &r.table, &r.chain)).or_default().push(r);
            for e in &r.exprs {
                if let Expr::Immediate { data: Data::Verdict(Verdict::Jump(to) | Verdict::Goto(to)), .. } = e {
                    *index.references.entry((r.family, &r.table, to)).or_default() += 1;
                }
            }
        }
        for s in &ruleset.sets {
            for e in &s.elements {
                if let Some(Data::Verdict(Verdict::Jump(to) | Verdict::Goto(to))) = &e.data {
                    *index.references.entry((s.family, &s.table, to)).or_default() += 1;
                }
            }
        }
        index
    }

    /// The ruleset.
    pub fn ruleset(&self) -> &'a Ruleset {
        self.ruleset
    }

    fn rules(&self, c: &'a Chain) -> &[&'a Rule] {
        self.rules.get(&(c.family, c.table.as_str(), c.name.as_str())).map_or(&[], Vec::as_slice)
    }

    /// How many rules and map elements lead into a chain.
    fn references(&self, c: &'a Chain) -> usize {
        self.references.get(&(c.family, c.table.as_str(), c.name.as_str())).copied().unwrap_or(0)
    }
}

struct Walker<'a> {
    index: &'a Index<'a>,
    ruleset: &'a Ruleset,
    packet: &'a Packet,
    frames: Vec<Frame<'a>>,
    left: usize,
    passed: Vec<Passed>,
    obstacles: Vec<Obstacle>,
    translated: Vec<RuleRef>,
    splits: bool,
}

/// Walks `packet` through the base chain `chain`.
pub fn walk<'a>(index: &'a Index<'a>, chain: &'a Chain, packet: &'a Packet) -> Walk {
    let mut w = Walker {
        index,
        ruleset: index.ruleset,
        packet,
        frames: Vec::new(),
        left: BUDGET,
        passed: Vec::new(),
        obstacles: Vec::new(),
        translated: Vec::new(),
        splits: false,
    };
    let out = w.run(chain, None, None);
    let policy = RuleRef::policy(chain);
    let drops = chain.policy_accepts == Some(false);
    if let (Some(why), true) = (out.side, drops) {
        w.partial_drop(policy.clone(), why);
    }
    let fate = match out.end {
        End::Accept(by) => Fate::Accepted(by),
        End::Drop(by, place) => Fate::Dropped { by, place },
        End::Return(place) if drops => Fate::Dropped { by: policy, place },
        End::Return(_) => Fate::Accepted(policy),
    };
    if w.left == 0 {
        w.obstacle(RuleRef::policy(chain), "its rules are too many to be followed", "open it by hand");
    }
    w.passed.sort();
    w.passed.dedup();
    w.obstacles.sort();
    w.obstacles.dedup();
    w.translated.sort();
    w.translated.dedup();
    Walk { fate, passed: w.passed, obstacles: w.obstacles, translated: w.translated, splits: w.splits }
}

/// The certainty of two conditions together; `None` is certain.
fn both(a: Option<Why>, b: Why) -> Option<Why> {
    match (a, b.is_none()) {
        (None, true) => None,
        (a, _) => Some(a.unwrap_or(Why::NONE) | b),
    }
}

impl<'a> Walker<'a> {
    fn obstacle(&mut self, rule: RuleRef, what: &str, remedy: &str) {
        self.obstacles.push(Obstacle { rule, what: what.into(), remedy: remedy.into() });
    }

    /// A drop that may hit a part of the flow.
    fn partial_drop(&mut self, rule: RuleRef, why: Why) {
        if why.has(Why::OPAQUE) {
            self.obstacle(rule, "it may drop the flow, and is not understood", "put the opening in by hand");
        } else if why == Why::INTERFACE {
            // Whatever the source, all that comes in by some interface is lost: not a part that was meant.
            self.obstacle(
                rule,
                "it drops the flow, whatever its source, on some interfaces",
                "say which interface it comes in by: on IFACE",
            );
        } else {
            self.passed.push(Passed { rule, depends_on: why.to_string() });
        }
    }

    fn split(&mut self, why: Why) {
        self.splits |= why.has(Why::PART);
    }

    /// The latest place from which a rule reaches this flow at this hook and nothing else: before `before` in the
    /// chain that the walk is in, if no other way leads into it; else before the jump that led in, if nothing was
    /// passed since then.
    fn place(&self, before: Option<u64>) -> Result<Place, Box<Obstacle>> {
        let deepest = self.frames.len() - 1;
        let mut exact = 0;
        while exact < deepest && self.index.references(self.frames[exact + 1].chain) == 1 {
            exact += 1;
        }
        if exact == deepest {
            return Ok(Place { chain: self.frames[deepest].chain.name.clone(), before });
        }
        let chain = self.frames[exact].chain;
        match self.frames[exact + 1].from {
            Some((jump, passed)) if passed == self.passed.len() + self.obstacles.len() => {
                Ok(Place { chain: chain.name.clone(), before: Some(jump.handle) })
            }
            Some((jump, _)) => Err(Box::new(Obstacle {
                rule: RuleRef::of(self.ruleset, jump),
                what: "it leads into a chain that is used from elsewhere too, so that no place in it is exact".into(),
                remedy: "open it by hand before this rule".into(),
            })),
            None => Ok(Place { chain: chain.name.clone(), before }),
        }
    }

    fn run(&mut self, chain: &'a Chain, mut mode: Option<Why>, from: Option<&'a Rule>) -> Outcome {
        let count = self.passed.len() + self.obstacles.len();
        self.frames.push(Frame { chain, from: from.map(|r| (r, count)) });
        let (mut side, mut first): (Option<Why>, Option<End>) = (None, None);
        let mut last = None;
        let index = self.index;
        for rule in index.rules(chain) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            last = self.rule(chain, rule, &mut mode, &mut side, &mut first);
            if last.is_some() {
                break;
            }
        }
        let end = match last {
            Some(end) => end,
            None => End::Return(self.place(None)),
        };
        self.frames.pop();
        match first {
            // The whole had ended before; what came after only concerned a part.
            Some(first) => {
                if matches!(end, End::Return(_)) {
                    side = Some(side.unwrap_or(Why::NONE) | mode.unwrap_or(Why::NONE));
                }
                Outcome { end: first, side }
            }
            None => Outcome { end, side },
        }
    }

    /// One rule; `Some` if the walk of this chain ends at it.
    fn rule(
        &mut self,
        chain: &'a Chain,
        rule: &'a Rule,
        mode: &mut Option<Why>,
        side: &mut Option<Why>,
        first: &mut Option<End>,
    ) -> Option<End> {
        for possible in eval::rule(self.ruleset, chain, rule, self.packet) {
            self.split(possible.why);
            let certain = possible.why.is_none();
            let condition = both(*mode, possible.why);
            let reference = || RuleRef::of(self.ruleset, rule);
            match &possible.effect {
                Effect::Verdict(Verdict::Accept) => {
                    if certain {
                        return Some(End::Accept(reference()));
                    }
                }
                Effect::Verdict(Verdict::Drop) | Effect::Reject => {
                    if let Some(why) = condition {
                        let r = reference();
                        self.partial_drop(r, why);
                    }
                    if certain {
                        return Some(End::Drop(RuleRef::of(self.ruleset, rule), self.place(Some(rule.handle))));
                    }
                }
                Effect::Verdict(Verdict::Return) => {
                    if certain {
                        return Some(End::Return(self.place(Some(rule.handle))));
                    }
                    *side = both(*side, condition.unwrap_or(Why::NONE));
                }
                Effect::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) => {
                    let goto = matches!(&possible.effect, Effect::Verdict(Verdict::Goto(_)));
                    let target = self.ruleset.chain(chain.family, &chain.table, to);
                    let Some(target) = target.filter(|_| self.frames.len() <= DEPTH) else {
                        let r = reference();
                        self.obstacle(r, "it leads to a chain that cannot be followed", "open it by hand");
                        continue;
                    };
                    let sub = self.run(target, condition, Some(rule));
                    match (sub.end, certain, goto) {
                        (End::Return(place), true, true) => {
                            // What returned early leaves with the rest, but by another way.
                            if let Some(w) = sub.side {
                                *side = both(*side, w);
                            }
                            return Some(End::Return(place));
                        }
                        (End::Return(_), false, true) => *side = both(*side, condition.unwrap_or(Why::NONE)),
                        (End::Return(_), _, false) | (_, false, false) => {}
                        (_, false, true) => {
                            if let Some(w) = sub.side {
                                *side = both(*side, w);
                            }
                        }
                        (end, true, true) => {
                            if let Some(w) = sub.side {
                                *side = both(*side, w);
                            }
                            return Some(end);
                        }
                        (end, true, false) => match sub.side {
                            None => return Some(end),
                            // A part comes back and goes on here.
                            Some(w) => {
                                if first.is_none() {
                                    *first = Some(end);
                                }
                                *mode = both(*mode, w);
                            }
                        },
                    }
                }
                Effect::Translate => {
                    self.translated.push(RuleRef::of(self.ruleset, rule));
                    if certain {
                        return Some(End::Accept(reference()));
                    }
                }
                Effect::Verdict(_) | Effect::Opaque => {
                    let r = reference();
                    self.obstacle(r, "what it does with the flow is not understood", "put the opening in by hand");
                    if certain {
                        return Some(End::Accept(RuleRef::of(self.ruleset, rule)));
                    }
                }
            }
        }
        None
    }
}
