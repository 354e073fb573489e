//! `mesh custody` and `mesh log` as an operator runs them, on a root of their own.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, in its helpers too")]

use mesh::adapters::custody_store::Store;
use mesh::adapters::lock::{Lock, Wait};
use mesh::layout::Layout;
use mesh::record::audit::Recorder;
use mesh_model::custody::{FoundPath, Reason};
use mesh_model::event::Event;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn mesh(root: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mesh")).arg("--root").arg(root).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

#[test]
fn what_was_found_and_what_became_of_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path());
    fs::create_dir(dir.path().join("etc")).unwrap();
    fs::write(dir.path().join("etc/hosts"), "a\nb\n").unwrap();
    {
        let lock = Lock::take(&layout, "adopt", Wait::No).unwrap();
        let mut recorder = Recorder::new(&layout, &lock, "alpha").unwrap();
        for name in ["/etc/hosts", "/etc/none"] {
            let path = FoundPath::new(name).unwrap();
            let taken = Store::open(&layout).take(&lock, &path, Reason::Adopt).unwrap();
            recorder.event(&Event::CustodyTaken { path, sight: taken.record().sight.clone() }).unwrap();
        }
    }
    assert!(out(&mesh(dir.path(), &["custody", "list"])).contains("unchanged"));
    fs::write(dir.path().join("etc/hosts"), "a\nsecret\x1b[2J\n").unwrap();
    let diff = out(&mesh(dir.path(), &["custody", "diff", "/etc/hosts"]));
    assert!(diff.contains("\n-b\n+secret\\x1b[2J"), "{diff}");
    let json = out(&mesh(dir.path(), &["--json", "custody", "diff"]));
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["schema"], "mesh.custody/1");
    assert_eq!(document["paths"][0]["now"], "edited");
    assert!(!json.contains("secret"), "JSON holds hashes, never content");
    assert!(out(&mesh(dir.path(), &["custody", "show", "/etc/none"])).contains("version 1"));
    assert_eq!(mesh(dir.path(), &["custody", "show", "/etc/x"]).status.code(), Some(1));
    assert_eq!(mesh(dir.path(), &["custody", "show", "x"]).status.code(), Some(2));

    let log = out(&mesh(dir.path(), &["log", "-n", "1"]));
    assert!(log.lines().count() == 1 && log.contains("took /etc/none into custody (absent)"), "{log}");
    let bad = fs::read_to_string(layout.ledger()).unwrap().replacen("hosts", "h0sts", 1);
    fs::write(layout.ledger(), bad).unwrap();
    for json in [true, false] {
        let o = mesh(dir.path(), if json { &["--json", "log"] } else { &["log"] });
        assert_eq!(o.status.code(), Some(1));
        let said = if json { o.stdout } else { o.stderr };
        assert!(String::from_utf8(said).unwrap().contains("ledger.jsonl:1"));
    }
}

/// systemd itself reads the catalog, where it is installed here.
#[test]
fn systemd_takes_the_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("usr/lib/systemd/catalog");
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(dir.path().join("var/lib/systemd/catalog")).unwrap();
    let catalog = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd/mesh.catalog");
    fs::copy(catalog, folder.join("mesh.catalog")).unwrap();
    let root = format!("--root={}", dir.path().display());
    match Command::new("journalctl").args(["--update-catalog", &root]).output() {
        Err(e) => eprintln!("skipped: no journalctl ({e})"),
        Ok(o) => {
            let said = String::from_utf8_lossy(&o.stderr).into_owned();
            assert!(o.status.success() && !said.contains("mesh.catalog"), "{said}");
            let list = Command::new("journalctl").args(["--list-catalog", &root]).output().unwrap();
            let list = String::from_utf8(list.stdout).unwrap();
            for message in mesh_model::message::MESSAGES {
                assert!(list.contains(message.id), "{} is not in\n{list}", message.kind);
            }
        }
    }
}
