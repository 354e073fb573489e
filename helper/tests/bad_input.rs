//! Every broken input of the table gives its faults: file, line, column, value, what, remedy.
//!
//! A case is a folder under `model/tests/bad` that is copied to `/etc/mesh`; `expected` says what must come out.
//! `MESH_BLESS=1 cargo test` writes it anew, to be read before it is committed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mesh::adapters::config;
use mesh::layout::Layout;
use mesh_model::diagnostic::{Diagnostic, Diagnostics};
use mesh_model::failure::Failure;
use std::path::{Path, PathBuf};

fn cases() -> Vec<PathBuf> {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/tests/bad");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(table).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    cases
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_name() != "expected" {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn text(faults: &[Diagnostic]) -> String {
    let mut out = format!("exit {}\n", Failure::from(Diagnostics(faults.to_vec())).kind.exit_code());
    for d in faults {
        out.push_str(&format!(
            "\n{}:{}:{}\nvalue: {}\nwhat: {}\nremedy: {}\n",
            d.file, d.line, d.column, d.value, d.what, d.remedy
        ));
    }
    out
}

#[test]
fn each_broken_input_gives_its_faults() {
    let bless = std::env::var_os("MESH_BLESS").is_some();
    let cases = cases();
    assert!(cases.len() >= 40, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        copy(case, &layout.etc());
        let got = text(&config::faults(&layout).unwrap_or_else(|e| panic!("{name}: {e}")));
        assert!(got.lines().count() > 1, "{name} has no fault");
        assert!(!got.contains("hush"), "{name} tells a secret:\n{got}");
        let expected = case.join("expected");
        if bless {
            std::fs::write(&expected, &got).unwrap();
        }
        let want = std::fs::read_to_string(&expected).unwrap_or_default();
        if got != want {
            wrong.push(format!("== {name}\n-- expected\n{want}\n-- got\n{got}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn each_place_is_where_the_value_stands() {
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        copy(&case, &layout.etc());
        let texts = config::texts(&layout).unwrap();
        for d in config::faults(&layout).unwrap() {
            let Some(text) = texts.get(&d.file) else { continue };
            let missing = d.what.contains("missing") || d.what.contains("empty") || d.value.is_empty();
            if d.file.ends_with("mode") || missing || text.is_empty() {
                continue;
            }
            let line = text.split('\n').nth(d.line - 1).unwrap_or_else(|| panic!("{d}"));
            let there: String = line.chars().skip(d.column - 1).collect();
            let value = d.value.trim_end_matches('…').trim_matches('"');
            assert!(
                there.trim_start_matches('"').starts_with(value),
                "{}: {d}: {there:?} is not {value:?}",
                case.display()
            );
        }
    }
}

/// What a folder holds, by path.
fn tree(dir: &Path, out: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tree(&path, out);
        } else {
            out.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    out.sort();
}

#[test]
fn the_program_fails_with_the_exit_code_and_changes_nothing() {
    for case in cases() {
        let name = case.display();
        let dir = tempfile::tempdir().unwrap();
        copy(&case, &Layout::new(dir.path()).etc());
        let (mut before, mut after) = (Vec::new(), Vec::new());
        tree(dir.path(), &mut before);
        let expected = std::fs::read_to_string(case.join("expected")).unwrap();
        let first = expected.lines().nth(2).unwrap();
        for verb in ["check-config", "cat-config"] {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_mesh"))
                .args(["--json", "--root"])
                .arg(dir.path())
                .arg(verb)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(78), "{name} {verb}");
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(document["schema"], "mesh.error/1", "{name} {verb}");
            assert_eq!(document["code"], 78, "{name} {verb}");
            assert_eq!(document["where"], first, "{name} {verb}");
            for place in expected.lines().filter(|l| l.starts_with("/etc/mesh/")) {
                assert!(words.contains(&format!("--> {place}")), "{name} {verb}: no {place} in\n{words}");
            }
            assert!(!words.contains("hush"), "{name} {verb} tells a secret:\n{words}");
        }
        tree(dir.path(), &mut after);
        assert_eq!(before, after, "{name}");
    }
}
