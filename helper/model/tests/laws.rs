//! Laws of the formats, on generated input: no reader panics, faults have places, what is rendered is read back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mesh_model::catalogue::{Catalogue, check};
use mesh_model::diagnostic::Diagnostics;
use mesh_model::document::{Document, Source, merge};
use mesh_model::init_template::{
    Confidence, ControlCandidate, CronCandidate, FileCandidate, HeldPort, InitFacts, node_name, render,
};
use mesh_model::manifest::{self, ModuleName};
use mesh_model::mode::Mode;
use mesh_model::node::{self, FoundationPort};
use mesh_model::pending::Pending;
use mesh_model::secret::Masked;
use mesh_model::state::{ControlState, StandIn, State};
use mesh_model::unit::{Scope, UnitName};
use mesh_model::view;
use proptest::prelude::*;
use std::path::Path;

const EXAMPLE: &str = include_str!("../../../packaging/examples/node.toml");
const MANIFEST: &str = include_str!("../../../packaging/catalogue/bus.toml");

fn source(text: impl Into<String>) -> Source {
    Source { file: "/f".into(), text: text.into() }
}

/// Every fault lies within its text, and the list is not empty and in order.
fn placed(faults: &Diagnostics, text: &str) {
    assert!(!faults.0.is_empty());
    for d in &faults.0 {
        let line = text.split('\n').nth(d.line - 1).unwrap_or_else(|| panic!("{d}"));
        assert!(d.column >= 1 && d.column <= line.chars().count() + 1, "{d}");
        assert!(!d.what.is_empty() && !d.remedy.is_empty(), "{d}");
    }
    assert!(faults.0.windows(2).all(|w| (w[0].line, w[0].column) <= (w[1].line, w[1].column)), "{faults}");
}

/// Reads bytes as each kind of file.
fn read_all(bytes: &[u8]) {
    match Mode::read("/m", bytes) {
        Ok(mode) => assert_eq!(mode.file_content().as_bytes(), bytes),
        Err(e) => assert_eq!(e.0.len(), 1),
    }
    if let Err(e) = Pending::parse("/p", bytes) {
        assert!(!e.0.is_empty());
    }
    let Ok(source) = Source::from_bytes("/f", bytes.to_vec()) else { return };
    let text = source.text.clone();
    if let Some(masked) = Masked::of(&text) {
        assert_eq!(masked.text().split('\n').count(), text.split('\n').count());
    }
    let name = ModuleName::new("bus").unwrap();
    if let Err(e) = manifest::read(name, source.clone()) {
        placed(&e, &text);
    }
    if let Err(e) = State::parse(source.clone()) {
        placed(&e, &text);
    }
    match merge(vec![source]) {
        Err(e) => placed(&e, &text),
        Ok(doc) => {
            if let Err(e) = node::read(&doc) {
                placed(&e, &text);
            }
            // What is shown of a tree is TOML again.
            merge(vec![self::source(view::render(&doc))]).unwrap_or_else(|e| panic!("{e}\n{}", view::render(&doc)));
        }
    }
}

/// A valid text with a few bytes cut, replaced or doubled.
fn broken(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let edit = (0..text.len(), 0..12usize, prop::collection::vec(any::<u8>(), 0..6));
    prop::collection::vec(edit, 1..5).prop_map(move |edits| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, cut, put) in edits {
            let at = at.min(bytes.len());
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put);
        }
        bytes
    })
}

/// Text made of the pieces that the formats are made of.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        "=",
        ".",
        ",",
        "\n",
        "\"",
        "'",
        "\"\"\"",
        "#",
        " ",
        "1",
        "-1",
        "0x1F",
        "1e5",
        "true",
        "schema = 1\n",
        "name",
        "role",
        "control",
        "node",
        "[[file]]\n",
        "path",
        "content",
        "secret = true\n",
        "foundation",
        "store.sql",
        "[predecessor.user.x]\n",
        "units = [\"a.service\"]\n",
        "cron",
        "ü",
        "\\u0000",
        "\r\n",
        "[[port]]\n",
        "port = ",
        "{{ foundation.bus.amqp.port }}",
        "1979-05-27T07:32:00Z",
        "[run]\n",
        "exec = [\"/a\"]\n",
        "environment",
        "depends",
        "[health]\n",
        "[[control]]\n",
        "flow = \"tcp/1\"\n",
        "[[opening]]\n",
        "[flip]\n",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|p| p.concat())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "\\PC{0,24}", any::<String>()]
}

fn unit() -> impl Strategy<Value = UnitName> {
    let kind = prop::sample::select(vec!["service", "timer", "path", "socket", "target", "mount", "scope"]);
    ("[a-z0-9@:_.\\\\-]{1,20}", kind)
        .prop_filter_map("not a unit name", |(s, k)| UnitName::new(format!("{s}.{k}")).ok())
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::System), text().prop_map(Scope::User), "[a-z]{1,6}".prop_map(Scope::User)]
}

fn confidence() -> impl Strategy<Value = Confidence> {
    prop_oneof![Just(Confidence::Sure), Just(Confidence::Maybe)]
}

fn facts() -> impl Strategy<Value = InitFacts> {
    let control = (scope(), unit(), text(), confidence()).prop_map(|(scope, unit, why, confidence)| ControlCandidate {
        scope,
        unit,
        why,
        confidence,
    });
    let path = || prop_oneof![text(), "/[a-z./]{1,20}"];
    let file =
        (path(), text(), confidence()).prop_map(|(path, why, confidence)| FileCandidate { path, why, confidence });
    let cron = (path(), prop::option::of(text()), text(), confidence())
        .prop_map(|(file, lines_with, why, confidence)| CronCandidate { file, lines_with, why, confidence });
    let held = (prop::sample::select(FoundationPort::ALL.to_vec()), text(), prop::option::of(any::<u16>()))
        .prop_map(|(port, holder, free)| HeldPort { port, holder, free });
    let some = 0..6usize;
    (
        text(),
        prop::collection::vec(control, some.clone()),
        prop::collection::vec(cron, some.clone()),
        prop::collection::vec(file, some.clone()),
        prop::collection::vec(prop_oneof![text(), Just("inet filter".to_string())], some.clone()),
        prop::option::of(unit()),
        prop::collection::vec(held, some.clone()),
        prop::collection::vec(text(), some),
    )
        .prop_map(
            |(host_name, control_candidates, cron, files, firewall_tables, loader, held_foundation_ports, notes)| {
                InitFacts {
                    host_name,
                    control_candidates,
                    cron,
                    files,
                    firewall_tables,
                    loader,
                    held_foundation_ports,
                    notes,
                }
            },
        )
}

fn parse(text: &str) -> (Document, node::Node) {
    let doc = merge(vec![source(text)]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let node = node::read(&doc).unwrap_or_else(|e| panic!("{e}\n{text}"));
    (doc, node)
}

proptest! {
    // PROPTEST_CASES sets how many; a case that failed is written into a test of its own, not into a file.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
    }

    #[test]
    fn a_broken_node_file_is_read_or_refused(bytes in broken(EXAMPLE)) {
        read_all(&bytes);
    }

    #[test]
    fn a_broken_manifest_is_read_or_refused(bytes in broken(MANIFEST)) {
        read_all(&bytes);
    }

    #[test]
    fn pieces_of_the_formats_are_read_or_refused(text in pieces()) {
        read_all(text.as_bytes());
    }

    #[test]
    fn what_init_writes_is_always_valid(facts in facts()) {
        let text = render(&facts);
        let (_, node) = parse(&text);
        prop_assert_eq!(&node.name, &node_name(&facts.host_name));
        check(&node, &Catalogue::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        // Nothing that was only suspected is in force.
        for (scope, unit) in node.predecessor.control() {
            let sure = facts.control_candidates.iter().any(|c| {
                c.scope == scope && c.unit == *unit && c.confidence == Confidence::Sure
            });
            prop_assert!(sure, "{} {}", scope, unit);
        }
    }

    #[test]
    fn splitting_a_node_into_layers_changes_nothing(cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        // The example's merged view is one key a line: any lines of it can stand in a layer of their own.
        let (doc, node) = parse(EXAMPLE);
        let flat = view::render(&doc);
        let (head, blocks) = flat.split_once("\n\n[[").map_or((flat.as_str(), String::new()), |(h, t)| (h, format!("[[{t}")));
        let lines: Vec<&str> = head.lines().collect();
        let mut layers = vec![String::new(); 4];
        for (i, line) in lines.iter().enumerate() {
            let layer = cuts.get(i % cuts.len().max(1)).map_or(0, |c| (c.index(97) + i) % 4);
            layers[layer].push_str(line);
            layers[layer].push('\n');
        }
        layers.push(blocks);
        let merged = merge(layers.into_iter().map(source).collect()).unwrap();
        prop_assert_eq!(node::read(&merged).unwrap(), node);
    }

    #[test]
    fn state_is_rendered_and_read_back(
        raised in prop::collection::btree_set("[a-z][a-z0-9_]{0,8}", 0..4),
        loader in prop::option::of(unit()),
        packages in prop::collection::btree_set(any::<String>(), 0..4),
        control in prop::collection::btree_map(unit(), prop::sample::select(vec!["active", "inactive", "failed"]), 0..5),
        user in "[a-z]{1,8}",
        etc_mtime_ns in prop::option::of(any::<i64>()),
    ) {
        let good: Vec<UnitName> = control.keys().filter(|u| !u.is_template()).cloned().collect();
        let state = State {
            raised: raised.iter().map(|m| ModuleName::new(m.as_str()).unwrap()).collect(),
            migrated: vec![],
            loader: loader.filter(|u| !u.is_template()),
            absent_packages: packages.into_iter().collect(),
            control: good
                .iter()
                .map(|u| ControlState { scope: Scope::User(user.clone()), unit: u.clone(), was: control[u].into() })
                .collect(),
            stand_ins: good.iter().map(|u| StandIn { scope: Scope::System, unit: u.clone() }).collect(),
            covered: vec![],
            etc_mtime_ns,
        };
        let text = state.render();
        prop_assert_eq!(State::parse(source(text.clone())).unwrap_or_else(|e| panic!("{e}\n{text}")), state);
    }
}

#[test]
fn the_merged_view_of_the_example_is_the_example() {
    let (doc, node) = parse(EXAMPLE);
    let (_, again) = parse(&view::render(&doc));
    assert_eq!(again, node);
}

#[test]
fn init_keeps_what_it_is_sure_of() {
    let unit = |u: &str| UnitName::new(u).unwrap();
    let control = |scope: Scope, u: &str, confidence| ControlCandidate {
        scope,
        unit: unit(u),
        why: "it syncs".into(),
        confidence,
    };
    let facts = InitFacts {
        host_name: "Web_01.Example.ORG".into(),
        control_candidates: vec![
            control(Scope::User("fleet".into()), "fleet-sync.timer", Confidence::Sure),
            control(Scope::User("fleet".into()), "fleet-odd.service", Confidence::Maybe),
            control(Scope::System, "fleet-agent.service", Confidence::Sure),
        ],
        files: vec![FileCandidate {
            path: "/etc/ssh/sshd_config.d/50-fleet.conf".into(),
            why: "written a minute ago\nby fleet-sync".into(),
            confidence: Confidence::Sure,
        }],
        firewall_tables: vec!["inet filter".into()],
        loader: Some(unit("nftables.service")),
        held_foundation_ports: vec![
            HeldPort { port: FoundationPort::RegistryHttp, holder: "fleet-registry".into(), free: Some(5001) },
            HeldPort { port: FoundationPort::OverlayWg, holder: "interface wg0".into(), free: None },
        ],
        ..InitFacts::default()
    };
    let text = render(&facts);
    let (_, node) = parse(&text);
    assert_eq!(node.name, "web-01.example.org");
    let control: Vec<String> = node.predecessor.control().map(|(s, u)| format!("{s} {u}")).collect();
    assert_eq!(control, ["system fleet-agent.service", "user fleet fleet-sync.timer"]);
    assert!(text.contains("# \"fleet-odd.service\""), "{text}");
    assert_eq!(node.predecessor.files, ["/etc/ssh/sshd_config.d/50-fleet.conf"]);
    assert_eq!(node.foundation[&FoundationPort::RegistryHttp].port, 5001);
    assert!(text.contains("HELD: 51820 is taken by interface wg0"), "{text}");
    assert_eq!(node.predecessor.firewall.loader, Some(unit("nftables.service")));
}

/// Every case of the table reads without a panic as every kind of file.
#[test]
fn the_table_of_broken_inputs_panics_nowhere() {
    fn descend(dir: &Path) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                descend(&path);
            } else if path.file_name().is_some_and(|n| n != "expected") {
                read_all(&std::fs::read(&path).unwrap());
            }
        }
    }
    descend(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad"));
}
