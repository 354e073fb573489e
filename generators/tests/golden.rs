//! One folder is one case: `about` says what it shows, `root/` is the machine's files, `env` the environment (with
//! `ARGS=1` for a call with one folder), `expected/` what must come out: `normal/`, `early/`, and `log`.
//! `MESH_BLESS=1 cargo test -p mesh-generator --test golden` rewrites what is expected.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A tree as text: what each path is and holds.
type Tree = BTreeMap<String, String>;

const GENERATOR: &str = env!("CARGO_BIN_EXE_mesh-generator");

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    cases
}

/// Backslashes in file names (from escaped unit names) break packaging tools, so fixtures spell them `%5C`.
fn mangled(name: &str) -> String {
    name.replace('\\', "%5C")
}

fn read_tree(root: &Path, at: &str, tree: &mut Tree) {
    let Ok(entries) = fs::read_dir(root.join(at)) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if at.is_empty() { name } else { format!("{at}/{name}") };
        let kind = entry.file_type().unwrap();
        let what = if kind.is_symlink() {
            format!("-> {}", fs::read_link(entry.path()).unwrap().display())
        } else if kind.is_dir() {
            read_tree(root, &path, tree);
            continue;
        } else {
            fs::read_to_string(entry.path()).unwrap()
        };
        tree.insert(mangled(&path), what);
    }
}

fn write_tree(root: &Path, tree: &Tree) {
    let _absent_before_the_first_blessing = fs::remove_dir_all(root);
    for (path, what) in tree {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match what.strip_prefix("-> ") {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::write(path, what).unwrap(),
        }
    }
}

fn environment(case: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(case.join("env")).unwrap_or_default();
    text.lines().map(|l| l.split_once('=').expect("KEY=VALUE")).map(|(k, v)| (k.into(), v.into())).collect()
}

/// Runs the generator as the manager does, into `out`, and returns what is there then.
fn run(case: &Path, out: &Path) -> Tree {
    let environment = environment(case);
    let folders = ["normal", "early", "late"].map(|f| out.join(f));
    folders.iter().for_each(|f| fs::create_dir_all(f).unwrap());
    let one = environment.iter().any(|(k, v)| k == "ARGS" && v == "1");
    let output = Command::new(GENERATOR)
        .args(if one { &folders[..1] } else { &folders[..] })
        .env_clear()
        .env("MESH_GENERATOR_ROOT", case.join("root"))
        .env("SYSTEMD_SCOPE", "system")
        .envs(environment)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "a generator never fails a boot: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let mut tree = Tree::new();
    read_tree(out, "", &mut tree);
    let log = String::from_utf8(output.stderr).unwrap();
    if !log.is_empty() {
        tree.insert("log".into(), without_pid(&log));
    }
    tree
}

fn without_pid(log: &str) -> String {
    let lines = log.lines().map(|l| {
        let (head, rest) = l.split_once("mesh-generator[").expect("each line names the program");
        let (_pid, text) = rest.split_once(']').expect("and its pid");
        format!("{head}mesh-generator[PID]{text}\n")
    });
    lines.collect()
}

#[test]
fn each_case_gives_what_is_expected_twice() {
    let bless = std::env::var_os("MESH_BLESS").is_some();
    let mut wrong = Vec::new();
    let cases = cases();
    for case in &cases {
        let name = case.file_name().unwrap().to_str().unwrap();
        let about = fs::read_to_string(case.join("about")).unwrap_or_default();
        assert_eq!(about.lines().count(), 1, "{name}/about says in one line what the case shows");
        let out = tempfile::tempdir().unwrap();
        let got = run(case, out.path());
        assert_eq!(run(case, out.path()), got, "{name}: over its own output");
        assert_eq!(run(case, tempfile::tempdir().unwrap().path()), got, "{name}: a second time");
        if bless {
            write_tree(&case.join("expected"), &got);
        }
        let mut expected = Tree::new();
        read_tree(&case.join("expected"), "", &mut expected);
        for path in expected.keys().chain(got.keys()).collect::<std::collections::BTreeSet<_>>() {
            let (want, is) = (expected.get(path), got.get(path));
            if want != is {
                wrong.push(format!("{name}: {path}\n  expected: {want:?}\n  got:      {is:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() >= 25, "only {} cases were found", cases.len());
}

#[test]
fn a_dry_run_prints_what_would_be_written() {
    let case = cases().into_iter().find(|c| c.ends_with("20-adopted-full")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let written = run(&case, out.path());
    let output =
        Command::new(GENERATOR).arg("--dry-run").env("MESH_GENERATOR_ROOT", case.join("root")).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for (path, what) in written.iter().filter(|(path, _)| *path != "log") {
        let path = path.replace("%5C", "\\");
        match what.strip_prefix("-> ") {
            Some(target) => assert!(printed.contains(&format!("---{path} -> {target}---\n")), "{path}"),
            None => assert!(printed.contains(&format!("---{path}---\n{what}\n")), "{path}"),
        }
    }
    assert_eq!(printed.matches("---\n").count(), written.keys().filter(|p| *p != "log").count());
}

#[test]
fn arguments_that_are_no_generators_are_refused_with_usage() {
    for arguments in
        [&[][..], &["a", "b"], &["a", "b", "c", "d"], &["--dry-run", "--user"], &["--help"], &["--user", "b", "c"]]
    {
        let output = Command::new(GENERATOR).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("usage: mesh-generator"));
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_said_and_fails_nothing() {
    let case = cases().into_iter().find(|c| c.ends_with("20-adopted-full")).unwrap();
    let output = Command::new(GENERATOR)
        .args(["/nonexistent/normal", "/nonexistent/early", "/nonexistent/late"])
        .env("MESH_GENERATOR_ROOT", case.join("root"))
        .env("SYSTEMD_SCOPE", "system")
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write /nonexistent/early/"));
}
