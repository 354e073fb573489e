//! The generator refuses what the helper refuses: every broken input of the table changes nothing and is visible.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NODE: &str = "schema = 1\nname = \"alpha\"\nrole = \"control\"\n";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

fn files(dir: &Path, out: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            files(&path, out);
        } else {
            out.insert(path);
        }
    }
}

/// What the generator makes of a tree, relative to the folder that holds its three.
fn generated(root: &Path) -> BTreeSet<PathBuf> {
    let out = tempfile::tempdir().unwrap();
    let folders = ["normal", "early", "late"].map(|f| out.path().join(f));
    folders.iter().for_each(|f| fs::create_dir(f).unwrap());
    let status = Command::new(env!("CARGO_BIN_EXE_mesh-generator"))
        .args(&folders)
        .env_clear()
        .env("MESH_GENERATOR_ROOT", root)
        .env("SYSTEMD_SCOPE", "system")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "a generator never fails the boot");
    let mut all = BTreeSet::new();
    files(out.path(), &mut all);
    all.iter().map(|p| p.strip_prefix(out.path()).unwrap().to_path_buf()).collect()
}

#[test]
fn each_broken_input_links_the_unit_that_says_so_and_nothing_else() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../helper/model/tests/bad");
    let only = BTreeSet::from([PathBuf::from("normal/multi-user.target.wants/mesh-mode-invalid.service")]);
    let mut seen = 0;
    for case in fs::read_dir(table).unwrap() {
        let case = case.unwrap().path();
        // Of the pending file it only reads that it is there; a missing node file is a golden case of its own.
        if case.join("pending").exists() || case.ends_with("91-node-missing") {
            continue;
        }
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc/mesh");
        copy(&case, &etc);
        for (name, text) in [("mode", "adopted\n"), ("node.toml", NODE)] {
            if !etc.join(name).exists() {
                fs::write(etc.join(name), text).unwrap();
            }
        }
        assert_eq!(generated(root.path()), only, "{}", case.display());
        seen += 1;
    }
    assert!(seen >= 40, "{seen}");
}
