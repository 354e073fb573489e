//! The planner over rulesets made by hand: where the rule goes, what stays before it, what is refused and why.

use crate::made::*;
use mesh_firewall::eval::Facts;
use mesh_firewall::ir::*;
use mesh_firewall::kind;
use mesh_firewall::open::{Insert, Plan, Step, close, plan, simulate};
use mesh_model::opening::Opening;

fn asked(flow: &str) -> Opening {
    Opening { module: "operator".into(), flow: flow.parse().unwrap() }
}

fn planned(r: &Ruleset, flow: &str) -> Plan {
    plan(r, &Facts::default(), &[asked(flow)])
}

/// The rules that would be added: chain, before, words without counter and comment.
fn inserts(p: &Plan) -> Vec<(String, Option<u64>, String)> {
    assert_eq!(p.refused, [], "not refused");
    p.steps
        .iter()
        .filter_map(|s| match s {
            Step::Insert(Insert { chain, before, rule, .. }) => {
                let words = rule.split(" counter").next().unwrap_or_default();
                Some((chain.clone(), *before, words.to_string()))
            }
            Step::Remove(_) => None,
        })
        .collect()
}

fn refused(p: &Plan) -> String {
    assert_eq!(p.steps, [], "a refused flow has no step");
    assert_eq!(p.refused.len(), 1, "{:?}", p.planned);
    format!("{}; {}", p.refused[0].what, p.refused[0].remedy)
}

/// Default deny: loopback and established pass, invalid and banned are dropped, ssh is open.
fn found() -> Made {
    let mut m = Made::new(Family::INET, "filter");
    m.input(false);
    m.set("banned", 0, 4, vec![element(&[192, 0, 2, 66], None)]);
    m.rule("input", vec![iif("lo"), accept()]);
    m.rule("input", vec![state(6), accept()]);
    m.rule("input", vec![state(1), drop()]);
    m.rule("input", vec![from(&[]), load_source(), lookup("banned"), drop()]);
    m.rule("input", vec![tcp(22), accept()]);
    m
}

#[test]
fn before_a_policy_means_at_the_end_and_deliberate_drops_stay() {
    let p = planned(&found().ruleset, "tcp/9443");
    assert_eq!(inserts(&p), [("input".into(), None, "tcp dport 9443".into())]);
    let chain = &p.planned[0].chains[0];
    assert_eq!(chain.saved_from[0].rule, "policy drop");
    assert_eq!(chain.passed.len(), 1, "{:?}", chain.passed);
    assert!(chain.passed[0].rule.rule.contains("@banned drop"));
    assert_eq!(chain.passed[0].depends_on, "source");
    assert_eq!(p.generation, 7);
}

#[test]
fn before_a_general_drop_rule_whatever_stands_after_it() {
    let mut m = found();
    let h = m.rule("input", vec![drop()]);
    m.rule("input", vec![tcp(9443), accept()]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/9443")), [("input".into(), Some(h), "tcp dport 9443".into())]);
    // For a flow of one source, a drop of that source is general; one of a part of it is not.
    let mut m = Made::new(Family::INET, "f");
    m.input(false);
    let part = m.rule("input", vec![from(&[10, 1]), drop()]);
    let whole = m.rule("input", vec![from(&[10]), drop()]);
    let p = planned(&m.ruleset, "tcp/1 from 10.0.0.0/8");
    assert_eq!(inserts(&p)[0].1, Some(whole));
    assert_eq!(p.planned[0].chains[0].passed[0].rule.handle, Some(part));
}

#[test]
fn what_is_open_needs_nothing_and_says_by_what() {
    let p = planned(&found().ruleset, "tcp/22 from 10.0.0.0/8");
    assert!(p.steps.is_empty() && p.planned[0].open);
    assert_eq!(p.planned[0].chains[0].open_by[0].rule, "tcp dport 22-22 accept");
    // Accepted only for new packets is not open: nothing lets the rest of the connection in.
    let mut m = Made::new(Family::INET, "f");
    m.input(false).rule("input", vec![state(8), tcp(80), accept()]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80")).len(), 1);
    // No table at all drops nothing.
    assert!(planned(&Ruleset::default(), "tcp/80").planned[0].open);
}

#[test]
fn every_base_chain_counts_and_sleeping_ones_do_not() {
    let mut m = found();
    m.table(Family::IP, "more").input(true);
    let h = m.rule("input", vec![vec![Expr::Reject { kind: 2, code: 1 }]]);
    m.table(Family::IP6, "six").input(false);
    m.table(Family::INET, "asleep").flags(1).input(false);
    m.table(Family::ARP, "arp").input(false);
    let p = planned(&m.ruleset, "tcp/80");
    let places: Vec<_> = inserts(&p).into_iter().map(|(_, before, _)| before).collect();
    assert_eq!(places, [None, Some(h), None]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80 from 2001:db8::/32")).len(), 2, "not in the table of IPv4");
    assert_eq!(inserts(&planned(&m.ruleset, "icmp6/128")).len(), 2);
    assert_eq!(inserts(&planned(&m.ruleset, "esp to 192.0.2.1"))[0].2, "ip daddr 192.0.2.1 meta l4proto esp");
}

#[test]
fn families_are_told_apart_only_where_it_matters() {
    let mut m = Made::new(Family::INET, "f");
    m.input(false).rule("input", vec![from(&[]), tcp(80), accept()]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80"))[0].2, "meta nfproto ipv6 tcp dport 80", "IPv4 is open already");
    let p = planned(&m.ruleset, "tcp/81 from 10.16.0.0/12 on eth0");
    assert_eq!(inserts(&p)[0].2, "meta nfproto ipv4 iifname \"eth0\" ip saddr 10.16.0.0/12 tcp dport 81");
}

#[test]
fn a_chain_that_is_jumped_to_once_takes_the_rule() {
    let mut m = Made::new(Family::INET, "f");
    m.chain("wan").input(true);
    m.rule("wan", vec![tcp(22), accept()]);
    let h = m.rule("wan", vec![drop()]);
    m.rule("input", vec![jump("wan")]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80")), [("wan".into(), Some(h), "tcp dport 80".into())]);
    // A chain that returns goes on after the jump; a goto does not.
    let mut m = Made::new(Family::INET, "f");
    m.chain("c").input(false);
    let jumped = m.rule("input", vec![jump("c")]);
    m.rule("input", vec![tcp(80), accept()]);
    assert!(planned(&m.ruleset, "tcp/80").planned[0].open);
    m.ruleset.rules[0].exprs = goto("c");
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80")), [("c".into(), None, "tcp dport 80".into())]);
    m.ruleset.rules[0].exprs = verdict(Verdict::Return);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80"))[0].1, Some(jumped), "after a return nothing is reached");
}

#[test]
fn a_chain_that_others_use_too_is_not_written_to() {
    let mut m = Made::new(Family::INET, "f");
    m.chain("logdrop").input(true).base("forward", hook::FORWARD, "filter", true);
    m.rule("logdrop", vec![drop()]);
    let jumped = m.rule("input", vec![jump("logdrop")]);
    m.rule("forward", vec![jump("logdrop")]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80")), [("input".into(), Some(jumped), "tcp dport 80".into())]);
    // With a ban list in it, before the jump would be before the ban list.
    let mut m = Made::new(Family::INET, "f");
    m.chain("shared").input(true).base("forward", hook::FORWARD, "filter", true);
    m.rule("shared", vec![from(&[10]), drop()]);
    m.rule("shared", vec![drop()]);
    m.rule("input", vec![jump("shared")]);
    m.rule("forward", vec![jump("shared")]);
    assert!(refused(&planned(&m.ruleset, "tcp/80")).contains("used from elsewhere"));
}

#[test]
fn a_jump_by_interface_needs_the_interface() {
    let mut m = Made::new(Family::INET, "f");
    m.chain("wan").chain("lan").input(true);
    m.rule("wan", vec![tcp(22), accept()]);
    let h = m.rule("wan", vec![drop()]);
    let map = |c: &str| Some(Data::Verdict(Verdict::Jump(c.into())));
    m.set("__map0", 1 | 8, 16, vec![element(&name16("eth0"), map("wan")), element(&name16("eth1"), map("lan"))]);
    m.rule("input", vec![load_iif(), vmap("__map0")]);
    assert!(refused(&planned(&m.ruleset, "tcp/80")).contains("on IFACE"));
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/80 on eth0"))[0].1, Some(h));
    assert!(planned(&m.ruleset, "tcp/80 on eth1").planned[0].open);
    // A jump by source to a drop is a ban list in another shape.
    let mut m = Made::new(Family::INET, "f");
    m.chain("blocked").input(false);
    m.rule("blocked", vec![drop()]);
    m.rule("input", vec![from(&[10]), jump("blocked")]);
    let p = planned(&m.ruleset, "tcp/80");
    assert_eq!((inserts(&p).len(), p.planned[0].chains[0].passed.len()), (1, 1));
}

#[test]
fn parts_of_a_range_go_where_each_needs_it() {
    let mut m = Made::new(Family::INET, "f");
    m.input(false);
    m.rule("input", vec![tcps(8002, 8003), accept()]);
    let h = m.rule("input", vec![tcp(8005), drop()]);
    let got = inserts(&planned(&m.ruleset, "tcp/8000-8007"));
    let want = [
        (None, "tcp dport 8000-8001"),
        (None, "tcp dport 8004"),
        (None, "tcp dport 8006-8007"),
        (Some(h), "tcp dport 8005"),
    ];
    assert_eq!(got, want.map(|(b, w)| ("input".to_string(), b, w.to_string())));
    // One rule where all of it fares alike, however odd its bounds; a set of ports decides by port.
    let mut m = Made::new(Family::INET, "f");
    m.input(false).set("__set0", 1 | 4, 2, vec![element(&[0, 10], None), end(&[0, 20])]);
    m.rule("input", vec![tcps(0, 65535), load_port(), lookup("__set0"), accept()]);
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/1021-65535"))[0].2, "tcp dport 1021-65535");
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/9-20")).len(), 2, "9 and 20");
    assert!(planned(&m.ruleset, "tcp/10-19").planned[0].open);
}

#[test]
fn what_is_not_understood_is_named_only_where_it_matters() {
    let odd = || vec![Expr::Unknown { name: "wormhole".into(), bytes: vec![1] }];
    let mut m = found();
    let h = m.rule("input", vec![tcp(9443), odd(), drop()]);
    let words = refused(&planned(&m.ruleset, "tcp/9443"));
    assert!(words.contains(&format!("handle {h}")) && words.contains("wormhole"), "{words}");
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/9444")).len(), 1, "it is about another port");
    let mut m = found();
    m.rule("input", vec![tcp(9443), vec![Expr::Queue { number: 3, total: 1, flags: 0, sreg: None }]]);
    assert!(refused(&planned(&m.ruleset, "tcp/9443")).contains("queue num 3"));
    let xt = |name: &str| vec![Expr::Match(Xt { name: name.into(), revision: 0, info: vec![] })];
    let mut m = found();
    m.rule("input", vec![xt("recent"), drop()]);
    assert!(refused(&planned(&m.ruleset, "tcp/9443")).contains("not understood"));
    // After a rule that lets it in, nothing matters.
    let mut m = Made::new(Family::INET, "f");
    m.input(false).rule("input", vec![tcp(1), accept()]);
    m.rule("input", vec![odd(), drop()]);
    assert!(planned(&m.ruleset, "tcp/1").planned[0].open);
}

#[test]
fn rates_and_marks_are_deliberate() {
    let mut m = Made::new(Family::INET, "f");
    m.input(false);
    m.rule("input", vec![vec![Expr::Limit { rate: 5, unit: 1, burst: 5, bytes: false, over: true }], drop()]);
    m.rule(
        "input",
        vec![
            vec![
                Expr::Meta { key: 3, dreg: Some(R), sreg: None },
                Expr::Cmp { sreg: R, op: CmpOp::Eq, data: vec![1, 0, 0, 0] },
            ],
            drop(),
        ],
    );
    let p = planned(&m.ruleset, "tcp/80");
    assert_eq!((inserts(&p).len(), p.planned[0].chains[0].passed.len()), (1, 2));
}

#[test]
fn before_the_hook_of_the_host_nothing_is_written() {
    let mut m = found();
    m.table(Family::INET, "raw").base("pre", hook::PREROUTING, "filter", true);
    m.rule("pre", vec![tcp(9443), drop()]);
    assert!(refused(&planned(&m.ruleset, "tcp/9443")).contains("inet raw pre"));
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/9444")).len(), 1);
    let mut m = found();
    m.table(Family::IP, "nat").base("pre", hook::PREROUTING, "nat", true);
    m.rule("pre", vec![tcp(9443), from(&[10]), vec![Expr::Redir { flags: 0, proto: (None, None) }]]);
    assert!(refused(&planned(&m.ruleset, "tcp/9443")).contains("redirect"));
    assert_eq!(inserts(&planned(&m.ruleset, "tcp/9443 from 192.0.2.0/24")).len(), 1, "not its source");
    assert!(refused(&planned(&found().ruleset, "tcp/80 via forward")).contains("forward"));
    let legacy = Facts { legacy: vec!["ip filter".into()], ..Facts::default() };
    assert!(refused(&plan(&found().ruleset, &legacy, &[asked("tcp/80")])).contains("iptables-legacy"));
    let only_nat = Facts { legacy: vec!["ip nat".into()], ..Facts::default() };
    assert_eq!(inserts(&plan(&found().ruleset, &only_nat, &[asked("tcp/80")])).len(), 1);
}

#[test]
fn other_kinds_are_refused_where_they_drop_and_only_there() {
    for (family, table, chain, kind) in [
        (Family::IP, "filter", "INPUT", "iptables-nft"),
        (Family::INET, "firewalld", "filter_INPUT", "firewalld"),
        (Family::INET, "netavark", "INPUT", "netavark"),
        (Family::IP, "docker-bridges", "in", "docker"),
    ] {
        let mut m = found();
        m.table(family, table).base(chain, hook::INPUT, "filter", false);
        let words = refused(&planned(&m.ruleset, "tcp/9443"));
        assert!(words.contains(kind) && words.contains(&format!("{family} {table} {chain}")), "{words}");
        m.ruleset.chains.last_mut().unwrap().policy_accepts = Some(true);
        assert_eq!(inserts(&planned(&m.ruleset, "tcp/9443")).len(), 1, "{kind} does not drop it");
    }
    let mut m = found();
    m.flags(2);
    assert!(refused(&planned(&m.ruleset, "tcp/9443")).contains("owner"));
}

#[test]
fn tables_are_known_by_name_and_shape() {
    let mut m = Made::new(Family::IP, "filter");
    m.base("INPUT", hook::INPUT, "filter", false).chain("ufw-user-input").chain("DOCKER-USER").chain("f2b-sshd");
    m.table(Family::IP, "nat").base("prerouting", hook::PREROUTING, "nat", true);
    m.table(Family::INET, "netavark");
    let kinds: Vec<_> =
        kind::found(&m.ruleset, &Facts::default()).into_iter().map(|f| (f.kind.word(), f.tables)).collect();
    let t = |s: &str| vec![s.to_string()];
    assert_eq!(
        kinds,
        [
            ("nftables", t("ip nat")),
            ("ufw", t("ip filter")),
            ("docker", t("ip filter")),
            ("netavark", t("inet netavark")),
            ("fail2ban", t("ip filter")),
        ]
    );
}

#[test]
fn only_rules_with_exactly_a_mark_are_closed() {
    let mut m = found();
    let mark = asked("tcp/9443").mark();
    let ours = m.rule("input", vec![tcp(9443), accept()]);
    m.comment(mark.as_str());
    m.rule("input", vec![tcp(9443), accept()]);
    m.rule("input", vec![tcp(9443), accept()]);
    m.comment(&format!("{mark}0"));
    let xt =
        Expr::Match(Xt { name: "comment".into(), revision: 0, info: mark.as_str().bytes().chain([0; 20]).collect() });
    let restored = m.rule("input", vec![vec![xt], tcp(9443), accept()]);
    let handles: Vec<u64> = close(&m.ruleset, |_| true)
        .steps
        .iter()
        .map(|s| match s {
            Step::Remove(r) => r.handle,
            Step::Insert(_) => panic!("closing adds nothing"),
        })
        .collect();
    assert_eq!(handles, [ours, restored]);
    assert_eq!(close(&m.ruleset, |x| *x != mark).steps, []);
}

#[test]
fn an_opening_that_fell_behind_a_drop_moves_as_a_whole() {
    let mut m = Made::new(Family::INET, "f");
    m.input(false);
    let p = planned(&m.ruleset, "tcp/80");
    m.ruleset = simulate(&m.ruleset, &p.steps);
    assert!(planned(&m.ruleset, "tcp/80").steps.is_empty(), "twice is once");
    let drop_six = Rule {
        exprs: vec![
            Expr::Meta { key: 15, dreg: Some(R), sreg: None },
            Expr::Cmp { sreg: R, op: CmpOp::Eq, data: vec![10] },
            drop().remove(0),
        ],
        userdata: vec![],
        handle: 5,
        ..m.ruleset.rules[0].clone()
    };
    m.ruleset.rules.insert(0, drop_six);
    let p = planned(&m.ruleset, "tcp/80");
    assert_eq!(p.steps.iter().filter(|s| matches!(s, Step::Remove(_))).count(), 1);
    let after = simulate(&m.ruleset, &p.steps);
    assert!(planned(&after, "tcp/80").steps.is_empty());
    assert_eq!(inserts(&p).len(), 2, "before the drop for IPv6, at the end for IPv4");
}
