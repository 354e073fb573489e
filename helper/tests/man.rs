//! The manual pages say what there is: every verb and option of the command line, every exit code, every key of the
//! formats, and no other.

use clap::CommandFactory;
use std::collections::BTreeSet;

const MESH: &str = include_str!("../../packaging/man/mesh.1.scd");
const NODE: &str = include_str!("../../packaging/man/mesh-node.toml.5.scd");
const CATALOGUE: &str = include_str!("../../packaging/man/mesh-catalogue.5.scd");
const NODE_READER: &str = include_str!("../model/src/node/read.rs");
const MANIFEST_READER: &str = include_str!("../model/src/manifest/read.rs");

/// The text of one section of a page.
fn section<'p>(page: &'p str, name: &str) -> &'p str {
    page.split("\n# ").find_map(|s| s.strip_prefix(name)?.strip_prefix('\n')).expect("the page has the section")
}

/// What stands in bold in a text.
fn bold(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('*').skip(1).step_by(2).map(String::from)
}

/// The heads of a section's definitions.
fn heads(section: &str) -> impl Iterator<Item = &str> {
    section.lines().filter(|l| l.starts_with('*'))
}

/// All visible verbs, those below verbs included, and all visible options.
fn of_the_command_line() -> (BTreeSet<String>, BTreeSet<String>) {
    fn walk(command: &clap::Command, verbs: &mut BTreeSet<String>, options: &mut BTreeSet<String>) {
        for argument in command.get_arguments().filter(|a| !a.is_hide_set() && !a.is_positional()) {
            options.extend(argument.get_long().map(|l| format!("--{l}")));
            options.extend(argument.get_short().map(|s| format!("-{s}")));
        }
        for verb in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            verbs.insert(verb.get_name().to_string());
            walk(verb, verbs, options);
        }
    }
    let mut command = mesh::cli::Cli::command();
    command.build();
    let (mut verbs, mut options) = (BTreeSet::new(), BTreeSet::new());
    walk(&command, &mut verbs, &mut options);
    (verbs, options)
}

#[test]
fn the_manual_has_every_option_and_no_other() {
    let documented: BTreeSet<String> = heads(section(MESH, "OPTIONS")).flat_map(bold).collect();
    assert_eq!(documented, of_the_command_line().1);
}

#[test]
fn the_manual_has_every_verb_and_no_other() {
    let (all, _) = of_the_command_line();
    let documented: BTreeSet<String> = heads(section(MESH, "VERBS")).flat_map(bold).collect();
    let values = ["bash", "fish", "zsh"].map(String::from);
    assert_eq!(documented, all.into_iter().chain(values).collect());
}

#[test]
fn the_manual_has_every_exit_code_and_no_other() {
    use mesh_model::failure::Kind::*;
    let kinds = [Failed, Usage, Refused, NoPermission, TakenBack, NotUnderstood, PortHeld, Busy, Config];
    let codes = kinds.into_iter().map(|kind| kind.exit_code().to_string()).chain(["0".into()]);
    assert_eq!(heads(section(MESH, "EXIT STATUS")).flat_map(bold).collect::<BTreeSet<_>>(), codes.collect());
}

/// The keys that a reader knows, from the lists that it holds each table against.
fn keys(reader: &str) -> BTreeSet<String> {
    let lists =
        reader.split("&[\"").skip(1).filter_map(|rest| rest.split_once(']')).map(|(list, _)| format!("\"{list}"));
    let words = lists.flat_map(|l| l.split('"').skip(1).step_by(2).map(String::from).collect::<Vec<_>>());
    words.filter(|w| w.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '-')).collect()
}

/// What a page of a format has in bold between its first key and its examples.
fn documented(page: &str) -> BTreeSet<String> {
    let body = page.split_once("\n# KEYS").expect("the page has its keys").1;
    let body = body.split("\n# FLOWS").next().and_then(|b| b.split("\n# EXAMPLE").next()).unwrap_or_default();
    bold(body).filter(|w| !w.starts_with("mesh")).collect()
}

#[test]
fn every_key_of_a_manifest_is_documented_and_no_other() {
    let keys = keys(MANIFEST_READER);
    assert!(keys.len() > 30, "the reader's lists are found: {keys:?}");
    assert_eq!(documented(CATALOGUE), keys);
}

#[test]
fn every_key_of_a_node_is_documented_and_no_other() {
    // Both formats have [[file]], and one list of its keys.
    let file = MANIFEST_READER.split_once("const FILE: ").and_then(|(_, rest)| rest.split_once(';'));
    let keys: BTreeSet<String> =
        keys(NODE_READER).into_iter().chain(keys(file.expect("the list is there").0)).collect();
    assert!(keys.len() > 40, "the readers' lists are found: {keys:?}");
    assert_eq!(documented(NODE), keys);
}
