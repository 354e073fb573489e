//! Whether two rulesets are the same but for what counts, ages and is numbered by the kernel.

use crate::ir::{Chain, Expr, Rule, Ruleset, Set};

/// `ruleset` without counters, handles, consumed quotas, expiry and the elements of sets that rules or time fill, and
/// without the rules that `ours` picks.
pub fn comparable(ruleset: &Ruleset, ours: impl Fn(&Rule) -> bool) -> Ruleset {
    let mut r = ruleset.clone();
    r.generation = 0;
    r.rules.retain(|x| !ours(x));
    for t in &mut r.tables {
        t.handle = 0;
    }
    for c in &mut r.chains {
        c.handle = 0;
    }
    for x in &mut r.rules {
        x.handle = 0;
        still(&mut x.exprs);
    }
    for s in &mut r.sets {
        s.handle = 0;
        still(&mut s.exprs);
        if s.dynamic() {
            s.elements.clear();
        }
        for e in &mut s.elements {
            e.expiration = None;
            still(&mut e.exprs);
        }
        // A hash gives its elements in an order that may change when it grows.
        s.elements.sort_by(|a, b| (&a.key, &a.key_end, a.interval_end).cmp(&(&b.key, &b.key_end, b.interval_end)));
    }
    for o in &mut r.objects {
        o.handle = 0;
        // Counters and quotas: their attributes are what they count.
        if matches!(o.kind, 1 | 2) {
            o.data.clear();
        }
    }
    for f in &mut r.flowtables {
        f.handle = 0;
    }
    r
}

fn still(exprs: &mut [Expr]) {
    for e in exprs {
        match e {
            Expr::Counter { packets, bytes } => (*packets, *bytes) = (0, 0),
            Expr::Quota { consumed, .. } => *consumed = 0,
            Expr::Last { set, msecs } => (*set, *msecs) = (false, 0),
            Expr::Dynset { exprs, .. } => still(exprs),
            _ => {}
        }
    }
}

/// The first thing that differs between two comparable rulesets, in words; `None` if they are the same.
pub fn difference(before: &Ruleset, after: &Ruleset) -> Option<String> {
    fn first<T: PartialEq>(what: &str, a: &[T], b: &[T], name: impl Fn(&T) -> String) -> Option<String> {
        let at = a.iter().zip(b).position(|(x, y)| x != y);
        match (at, a.len() == b.len()) {
            (Some(i), _) => Some(format!("{what} {} differs", name(&b[i]))),
            (None, true) => None,
            (None, false) if a.len() > b.len() => Some(format!("{what} {} is gone", name(&a[b.len()]))),
            (None, false) => Some(format!("{what} {} is new", name(&b[a.len()]))),
        }
    }
    first("table", &before.tables, &after.tables, |t| format!("{} {}", t.family, t.name))
        .or_else(|| {
            first("chain", &before.chains, &after.chains, |c: &Chain| format!("{} {} {}", c.family, c.table, c.name))
        })
        .or_else(|| {
            first("a rule of", &before.rules, &after.rules, |r| {
                format!("{} {} {} ({})", r.family, r.table, r.chain, crate::text::rule(after, r))
            })
        })
        .or_else(|| first("set", &before.sets, &after.sets, |s: &Set| format!("{} {} {}", s.family, s.table, s.name)))
        .or_else(|| first("object", &before.objects, &after.objects, |o| format!("{} {}", o.table, o.name)))
        .or_else(|| first("flowtable", &before.flowtables, &after.flowtables, |f| format!("{} {}", f.table, f.name)))
}
