//! Which processes are the declared control, and which only look like it. They are started here, so that these tests
//! have a process of their own: a child holds every descriptor of its parent until its exec.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mesh::probe::units::{cron, processes};
use mesh_model::failure::{Failure, Kind};
use mesh_model::node::{ControlProcess, Predecessor};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn pids(executable: &Path) -> Vec<i32> {
    let declared = ControlProcess { executable: executable.to_str().unwrap().into(), user: None };
    // A child is its parent's image until its exec is done.
    std::thread::sleep(std::time::Duration::from_millis(300));
    processes(&[declared]).unwrap().into_iter().map(|p| p.pid).collect()
}

/// Starts a program that was just written. While a child of another test is between fork and exec it has the
/// descriptor that wrote the file, and the kernel refuses to run it (execve(2), ETXTBSY).
fn spawn(command: &mut Command) -> Child {
    for _ in 0..100 {
        match command.spawn() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            other => return other.unwrap(),
        }
    }
    panic!("a file that was written stays busy");
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_bare_process_is_found_by_its_file_and_a_script_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (binary, script) = (dir.path().join("agent"), dir.path().join("agent.sh"));
    fs::copy("/bin/sleep", &binary).unwrap();
    fs::write(&script, "#!/bin/sh -e\nsleep 5; true\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let child = spawn(Command::new(&binary).arg("60"));
    assert_eq!(pids(&binary), [child.id() as i32]);
    // Deleted and replaced: what runs is still the control, what only has its name as an argument is not.
    fs::remove_file(&binary).unwrap();
    assert_eq!(pids(&binary), [child.id() as i32]);
    end(child);
    let child = spawn(&mut Command::new(&script));
    let reader = Command::new("tail").arg("-f").arg(&script).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(pids(&script), [child.id() as i32], "who reads it is not control");
    end(child);
    fs::write(&script, "#!/usr/bin/env sh\nsleep 5; true\n").unwrap();
    let child = spawn(&mut Command::new(&script));
    assert_eq!(pids(&script), [child.id() as i32]);
    end(child);
    end(reader);
}

#[test]
fn a_container_s_file_of_the_same_name_is_another() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("agent");
    fs::copy("/bin/sleep", &binary).unwrap();
    let child =
        Command::new("unshare").args(["--pid", "--fork", "--kill-child"]).arg(&binary).arg("60").spawn().unwrap();
    assert!(pids(&binary).is_empty(), "in another pid namespace");
    end(child);
    let over = format!("mount --bind /bin/cat {0} && exec {0}", binary.display());
    let child = Command::new("unshare").args(["--mount", "sh", "-c", &over]).stdin(Stdio::piped()).spawn().unwrap();
    assert!(pids(&binary).is_empty(), "another file in another mount namespace");
    end(child);
}

#[test]
fn who_does_not_exist_and_what_cannot_be_covered_is_refused_by_name() {
    let declared = ControlProcess { executable: "/x".into(), user: Some("nobody-here".into()) };
    let e = mesh::failure::of(&processes(&[declared]).unwrap_err());
    assert_eq!((e.kind, e.what.contains("nobody-here")), (Kind::Config, true));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tab"), b"* * * * * root /bin/tr\xffue\n").unwrap();
    let cron = mesh_model::node::CronEntry { file: "/tab".into(), lines_with: None };
    let e = cron_failure(dir.path(), cron);
    assert_eq!((e.kind, e.place.as_deref()), (Kind::Refused, Some("/tab")));
}

fn cron_failure(root: &Path, entry: mesh_model::node::CronEntry) -> Failure {
    let predecessor = Predecessor { cron: vec![entry], ..Predecessor::default() };
    mesh::failure::of(&cron(&predecessor, root).unwrap_err())
}
