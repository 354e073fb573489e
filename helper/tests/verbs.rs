//! What holds for every verb, whatever becomes of its streams: exit codes, documents, whose machine it works on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn mesh(root: Option<&Path>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh"));
    if let Some(root) = root {
        command.arg("--root").arg(root);
    }
    command.args(args).env("NO_COLOR", "1");
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

/// A device on which every write fails, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn what_cannot_be_written_out_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["--help"][..], &["--version"], &["status"], &["status", "--json"], &["completions", "bash"]] {
        let status = mesh(Some(dir.path()), args).stdout(full()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{args:?}");
    }
}

#[test]
fn the_exit_code_is_told_where_words_cannot_be() {
    for (args, code) in [(&["flip"][..], 3), (&["flip", "--json"], 3), (&["no-such-verb"], 2), (&["log", "-n"], 2)] {
        let status = mesh(None, args).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn the_running_machine_is_not_worked_on_by_the_files_of_another() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc/mesh")).unwrap();
    fs::write(dir.path().join("etc/mesh/mode"), "adopted\n").unwrap();
    let openings = r#"{"schema": 1, "openings": [{"module": "operator", "flow": "tcp/9"}]}"#;
    fs::write(dir.path().join("etc/mesh/openings.json"), openings).unwrap();
    for args in [
        &["openings"][..],
        &["openings", "--assert"],
        &["openings", "--assert", "--dry-run"],
        &["adopt"],
        &["release"],
        &["recover"],
        &["probe"],
    ] {
        let o = output(mesh(Some(dir.path()), args));
        assert_eq!(o.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
        assert!(String::from_utf8_lossy(&o.stderr).contains("--root"), "{args:?}");
    }
}

#[test]
fn a_root_that_is_not_there_is_no_unmanaged_machine() {
    let dir = tempfile::tempdir().unwrap();
    let o = output(mesh(Some(&dir.path().join("slip")), &["status"]));
    assert_eq!(o.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&o.stderr).contains("slip: --root names no directory"));
    fs::create_dir(dir.path().join("etc")).unwrap();
    fs::write(dir.path().join("etc/hostname"), "of-the-files\n").unwrap();
    let said = String::from_utf8(output(mesh(Some(dir.path()), &["status"])).stdout).unwrap();
    assert!(said.starts_with("of-the-files\n"), "{said}");
}

#[test]
fn a_verb_that_is_missing_is_said_in_one_line() {
    for args in [&[][..], &["--json"]] {
        let o = output(mesh(None, args));
        assert_eq!(o.status.code(), Some(2), "{args:?}");
        assert_eq!(
            String::from_utf8_lossy(&o.stderr),
            "mesh: no verb is given; mesh --help lists verbs and options\n",
            "{args:?}"
        );
    }
}

#[test]
fn a_refused_flip_says_the_mode_that_the_machine_has() {
    let dir = tempfile::tempdir().unwrap();
    for mode in ["unmanaged", "adopted"] {
        fs::create_dir_all(dir.path().join("etc/mesh")).unwrap();
        fs::write(dir.path().join("etc/mesh/mode"), format!("{mode}\n")).unwrap();
        let o = output(mesh(Some(dir.path()), &["flip"]));
        assert!(String::from_utf8_lossy(&o.stderr).contains(&format!("the mode stays {mode}")), "{mode}");
    }
}

#[test]
fn every_document_has_the_head() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc/mesh")).unwrap();
    fs::write(dir.path().join("etc/mesh/node.toml"), "schema = 1\nname = \"a\"\nrole = \"control\"\n").unwrap();
    for args in [&["status"][..], &["cat-config"], &["check-config"], &["log"], &["custody", "list"]] {
        if args[0] == "custody" && !rustix::process::geteuid().is_root() {
            continue;
        }
        let o = output(mesh(Some(dir.path()), &[args, &["--json"]].concat()));
        let document: serde_json::Value =
            serde_json::from_slice(&o.stdout).unwrap_or_else(|e| panic!("{args:?} is no document: {e}"));
        assert_eq!(document["schema"], format!("mesh.{}/1", args[0]), "{args:?}");
        for key in ["node", "mode", "generated_at"] {
            assert!(document[key].is_string(), "{args:?} has no {key}");
        }
    }
}

#[test]
fn a_state_that_is_lost_is_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("etc/mesh")).unwrap();
    fs::write(dir.path().join("etc/mesh/mode"), "adopted\n").unwrap();
    fs::write(dir.path().join("etc/mesh/node.toml"), "schema = 1\nname = \"a\"\nrole = \"control\"\n").unwrap();
    let said = |args: &[&str]| String::from_utf8(output(mesh(Some(dir.path()), args)).stdout).unwrap();
    assert!(said(&["status"]).contains("state.toml is missing"), "{}", said(&["status"]));
    fs::write(dir.path().join("etc/mesh/state.toml"), "schema = 1\n").unwrap();
    assert!(!said(&["status"]).contains("fault"), "{}", said(&["status"]));
    fs::write(dir.path().join("etc/mesh/openings.json"), "{").unwrap();
    assert!(said(&["status"]).contains("openings.json"), "{}", said(&["status"]));
}
