//! Laws over random rulesets: a plan opens the asked flow less the deliberate drops it names, and nothing else; what
//! is definite for a flow holds for each of its packets.

use crate::made::*;
use mesh_firewall::eval::{Facts, Packet, State};
use mesh_firewall::ir::*;
use mesh_firewall::open::{plan, simulate};
use mesh_firewall::walk::{Fate, Index, RuleRef, walk};
use mesh_model::flow::Flow;
use mesh_model::opening::Opening;
use proptest::prelude::*;

const SOURCES: [[u8; 4]; 4] = [[10, 1, 0, 1], [10, 2, 0, 1], [192, 0, 2, 1], [192, 0, 2, 66]];
const INTERFACES: [&str; 2] = ["eth0", "eth1"];
const PORTS: std::ops::RangeInclusive<u16> = 1..=8;

/// One rule: its conditions and its verdict as small numbers.
#[derive(Debug, Clone)]
struct Drawn {
    source: Option<(usize, usize)>,
    ports: Option<(u16, u16)>,
    interface: Option<usize>,
    banned: bool,
    verdict: u8,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let source = proptest::option::weighted(0.4, (0usize..4, 1usize..=4));
    let ports = proptest::option::weighted(0.5, (PORTS, 0u16..4));
    (source, ports, proptest::option::weighted(0.25, 0usize..2), proptest::bool::weighted(0.1), 0u8..7)
        .prop_map(|(source, ports, interface, banned, verdict)| Drawn { source, ports, interface, banned, verdict })
}

#[derive(Debug, Clone)]
struct Case {
    accepts: bool,
    /// The base chain and two that it may lead to.
    chains: [Vec<Drawn>; 3],
    flow: String,
}

fn case() -> impl Strategy<Value = Case> {
    let rules = |n| proptest::collection::vec(drawn(), 0..n);
    let flow = (PORTS, 0u16..4, 0usize..4, 0usize..3).prop_map(|(first, more, from, on)| {
        let last = (first + more).min(*PORTS.end());
        let from = ["", " from 10.0.0.0/8", " from 192.0.2.0/24", " from 10.1.0.1"][from];
        let on = ["", " on eth0", " on eth1"][on];
        format!("tcp/{first}-{last}{from}{on}")
    });
    (any::<bool>(), rules(7), rules(4), rules(3), flow).prop_map(|(accepts, a, b, c, flow)| Case {
        accepts,
        chains: [a, b, c],
        flow,
    })
}

const NAMES: [&str; 3] = ["input", "one", "two"];

fn ruleset(case: &Case) -> Ruleset {
    let mut m = Made::new(Family::INET, "f");
    m.input(case.accepts).chain("one").chain("two");
    m.set("banned", 0, 4, vec![element(&SOURCES[3], None)]);
    for (depth, rules) in case.chains.iter().enumerate() {
        for d in rules {
            let mut parts = Vec::new();
            if let Some((s, bytes)) = d.source {
                parts.push(from(&SOURCES[s][..bytes]));
            }
            if let Some((first, more)) = d.ports {
                parts.push(tcps(first, first + more));
            }
            if let Some(i) = d.interface {
                parts.push(iif(INTERFACES[i]));
            }
            if d.banned {
                parts.push([from(&[]), load_source(), lookup("banned")].concat());
            }
            // A chain leads only to later ones, as the kernel demands.
            let later = |n: usize| NAMES.get(depth + n).copied();
            parts.push(match (d.verdict, later(1), later(2)) {
                (0 | 1, ..) => accept(),
                (2 | 3, ..) => drop(),
                (4, Some(next), _) => jump(next),
                (5, Some(next), None) | (5, _, Some(next)) => goto(next),
                _ => verdict(Verdict::Return),
            });
            m.rule(NAMES[depth], parts);
        }
    }
    m.ruleset
}

/// Every packet that the generated rules can tell apart, as a flow of one packet.
fn packets() -> Vec<Flow> {
    let mut out = Vec::new();
    for port in PORTS {
        for s in SOURCES {
            for i in INTERFACES {
                let from = s.map(|b| b.to_string()).join(".");
                out.push(format!("tcp/{port} from {from} on {i}").parse().unwrap());
            }
        }
    }
    out
}

fn port_of(f: &Flow) -> (u16, u16) {
    match f.carried {
        mesh_model::flow::Carried::Ports { first, last, .. } => (first, last),
        _ => panic!("only ports are drawn"),
    }
}

fn within(p: &Flow, asked: &Flow) -> bool {
    let ((port, _), (first, last)) = (port_of(p), port_of(asked));
    (first..=last).contains(&port)
        && asked.from.is_none_or(|a| a.contains(&p.from.unwrap()))
        && asked.on.as_ref().is_none_or(|o| p.on.as_ref() == Some(o))
}

/// `Ok` by what a packet is accepted, `Err` by what it is dropped.
fn fate(r: &Ruleset, p: &Flow) -> Result<RuleRef, RuleRef> {
    let packet = Packet::of(p, false, State::New, Some((port_of(p).0, 0)), &Facts::default());
    let index = Index::new(r);
    let w = walk(&index, &r.chains[0], &packet);
    assert!(w.passed.is_empty() && w.obstacles.is_empty() && !w.splits, "all of it is known: {w:?}");
    match w.fate {
        Fate::Accepted(by) => Ok(by),
        Fate::Dropped { by, .. } => Err(by),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(1000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_opens_what_was_asked_and_nothing_else(case in case()) {
        let before = ruleset(&case);
        let asked = Opening { module: "operator".into(), flow: case.flow.parse().unwrap() };
        let p = plan(&before, &Facts::default(), std::slice::from_ref(&asked));
        prop_assume!(p.refused.is_empty());
        let after = simulate(&before, &p.steps);
        let chains = &p.planned[0].chains;
        for packet in packets() {
            let (old, new) = (fate(&before, &packet), fate(&after, &packet));
            if !within(&packet, &asked.flow) {
                prop_assert_eq!(old.is_ok(), new.is_ok(), "{} is not of the flow", packet);
                continue;
            }
            match (old, new) {
                (_, Ok(_)) => {}
                (Ok(_), Err(by)) => prop_assert!(false, "{packet} was open and is dropped by {by:?}"),
                (Err(_), Err(by)) => {
                    let named = chains.iter().flat_map(|c| &c.passed).any(|d| d.rule == by);
                    prop_assert!(named, "{packet} is still dropped, by {by:?}, which the plan does not name");
                }
            }
        }
        // Asked again, there is nothing to do; closed, it is as before.
        prop_assert!(plan(&after, &Facts::default(), &[asked]).steps.is_empty());
        let closed = simulate(&after, &mesh_firewall::open::close(&after, |_| true).steps);
        prop_assert_eq!(closed.rules, before.rules);
    }

    /// A definite fate of a flow is the fate of each of its packets, but for the parts that it names.
    #[test]
    fn what_is_said_of_a_flow_holds_for_its_packets(case in case()) {
        let r = ruleset(&case);
        let flow: Flow = case.flow.parse().unwrap();
        let index = Index::new(&r);
        for port in PORTS {
            let packet = Packet::of(&flow, false, State::New, Some((port, 0)), &Facts::default());
            let w = walk(&index, &r.chains[0], &packet);
            if !w.obstacles.is_empty() {
                continue;
            }
            for p in packets().iter().filter(|p| within(p, &flow) && port_of(p).0 == port) {
                match (&w.fate, fate(&r, p)) {
                    (Fate::Accepted(_), Err(by)) => prop_assert!(w.passed.iter().any(|d| d.rule == by), "{p}: {by:?}"),
                    (Fate::Accepted(_) | Fate::Dropped { .. }, _) => {}
                }
            }
        }
    }
}

/// Enough of the drawn cases must get past the refusals for the laws to mean something.
#[test]
fn the_laws_are_tried_on_plans_of_every_sort() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (mut refused, mut open, mut steps, mut passed, mut inner) = (0, 0, 0, 0, 0);
    for _ in 0..1000 {
        let case = case().new_tree(&mut runner).unwrap().current();
        let asked = Opening { module: "operator".into(), flow: case.flow.parse().unwrap() };
        let p = plan(&ruleset(&case), &Facts::default(), &[asked]);
        refused += p.refused.len();
        open += p.planned.iter().filter(|p| p.open).count();
        steps += usize::from(!p.steps.is_empty());
        passed += p.planned.iter().filter(|p| p.chains.iter().any(|c| !c.passed.is_empty())).count();
        inner +=
            p.steps.iter().filter(|s| matches!(s, mesh_firewall::open::Step::Insert(i) if i.chain != "input")).count();
    }
    println!(
        "of 1000: {refused} refused, {open} open, {steps} with steps, {passed} with deliberate drops, {inner} inner"
    );
    assert!(refused < 500 && open > 100 && steps > 200 && passed > 100 && inner > 20);
}
