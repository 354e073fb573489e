//! What systemd itself says of the shipped units and of generated ones: `systemd-analyze verify` finds nothing, and
//! `systemd-analyze security` finds each service as tight as its work allows. The figures are printed
//! (`cargo test -p mesh-generator --test units -- --nocapture`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exposure that may not be passed, by what a service must be able to do (DESIGN §1 and the work of each).
const NETLINK_ONLY: f64 = 2.5;
const FOUND_FILES: f64 = 5.0;
const SERVICES: [(&str, f64); 6] = [
    ("mesh-adopt.service", FOUND_FILES),
    ("mesh-firewall.service", NETLINK_ONLY),
    ("mesh-flip.service", NETLINK_ONLY),
    ("mesh-mode-invalid.service", NETLINK_ONLY),
    ("mesh-recover.service", FOUND_FILES),
    ("mesh-watch.service", NETLINK_ONLY),
];

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn shipped() -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(project().join("units")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Copies a tree, links as links.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&source, &target);
        } else if kind.is_symlink() {
            let _whatever_was_there = fs::remove_file(&target);
            symlink(fs::read_link(&source).unwrap(), target).unwrap();
        } else {
            fs::copy(source, target).unwrap();
        }
    }
}

/// A machine's tree with systemd's units, ours, and a program wherever one is named.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("usr/lib/systemd/system");
    copy(Path::new("/usr/lib/systemd/system"), &units);
    copy(&project().join("units"), &units);
    copy(&project().join("packaging/catalogue"), &root.path().join("usr/lib/mesh/catalogue"));
    for program in ["mesh", "true", "rm", "podman"] {
        stub(root.path(), &format!("/usr/bin/{program}"));
    }
    root
}

fn stub(root: &Path, program: &str) {
    let path = root.join(program.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Generates into the tree's `/etc/systemd/system`, and returns the units that came out.
fn generate(root: &Path) -> Vec<String> {
    let normal = root.join("etc/systemd/system");
    let early = tempfile::tempdir().unwrap();
    fs::create_dir_all(&normal).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_mesh-generator"))
        .args([&normal, &early.path().to_path_buf(), &early.path().to_path_buf()])
        .env("MESH_GENERATOR_ROOT", root)
        .env("SYSTEMD_SCOPE", "system")
        .env("SYSTEMD_PROC_CMDLINE", "quiet")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "the input is valid");
    copy(early.path(), &normal);
    let entries = fs::read_dir(&normal).unwrap().map(|e| e.unwrap());
    let units = entries.filter(|e| e.file_type().unwrap().is_file()).map(|e| e.file_name().into_string().unwrap());
    units.collect()
}

fn analyze(arguments: &[&str], root: &Path, units: &[String]) -> Output {
    let root = format!("--root={}", root.display());
    Command::new("systemd-analyze").arg(root).args(arguments).args(units).output().unwrap()
}

/// Everything that verify says; nothing is what it should say.
fn verified(root: &Path, units: &[String]) -> String {
    // `no`: what the distribution's own units have to be told is not ours to hear. So each of ours is named.
    let output = analyze(&["--man=no", "--recursive-errors=no", "verify"], root, units);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "systemd-analyze verify: {}\n{said}", output.status);
    said.lines().filter(|l| l.contains("mesh") || l.contains("cycle")).map(|l| format!("{l}\n")).collect()
}

#[test]
fn shipped_units_are_verified() {
    let root = machine();
    assert_eq!(verified(root.path(), &shipped()), "");
}

#[test]
fn verify_would_find_a_fault_and_a_cycle() {
    let root = machine();
    let watch = "usr/lib/systemd/system/mesh-watch.service";
    let text = fs::read_to_string(root.path().join(watch)).unwrap();
    write(root.path(), watch, &format!("{text}Bogus=1\n"));
    let output = analyze(&["--man=no", "--recursive-errors=no", "verify"], root.path(), &["mesh-watch.service".into()]);
    assert!(!output.status.success());
    let root = machine();
    let loops = "[Unit]\nDefaultDependencies=no\nWants=network-pre.target\nAfter=network-pre.target\n";
    write(root.path(), "etc/systemd/system/mesh-firewall.service.d/loop.conf", loops);
    let output = analyze(&["--man=no", "verify"], root.path(), &["mesh-firewall.service".into()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cycle"), "{output:?}");
}

#[test]
fn the_units_of_a_node_with_every_shipped_module_are_verified() {
    let root = machine();
    let modules = ["bus", "overlay", "proxy", "registry", "resolver", "store"];
    for program in [
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "/usr/sbin/haproxy",
        "/usr/bin/docker-registry",
        "/usr/sbin/unbound",
        "/bin/sh",
    ] {
        stub(root.path(), program);
    }
    write(
        root.path(),
        "usr/lib/systemd/system/wg-quick@.service",
        "[Service]\nType=oneshot\nExecStart=/usr/bin/true\n",
    );
    let list = modules.map(|m| format!("\"{m}\"")).join(", ");
    write(root.path(), "etc/mesh/mode", "adopted\n");
    write(root.path(), "etc/mesh/state.toml", &format!("schema = 1\nraised = [{list}]\n"));
    write(
        root.path(),
        "etc/mesh/node.toml",
        &format!(
            "schema = 1\nname = \"all\"\nrole = \"control\"\nmodules = [{list}]\n\n[overlay]\naddress = \"10.88.0.1/16\"\n\n\
             [predecessor]\nunits = [\"fleet-agent.service\"]\ncron = [{{ file = \"/etc/cron.d/fleet\" }}]\n"
        ),
    );
    let generated = generate(root.path());
    for module in modules {
        assert!(generated.contains(&format!("mesh-module-{module}.service")), "{generated:?}");
    }
    let all: Vec<String> = shipped().into_iter().chain(generated).chain(["multi-user.target".into()]).collect();
    assert_eq!(verified(root.path(), &all), "");
}

#[test]
fn the_units_of_the_fullest_case_are_verified_and_bring_no_cycle() {
    let root = machine();
    copy(&project().join("generators/tests/cases/20-adopted-full/root"), root.path());
    for program in ["/usr/sbin/once", "/usr/bin/docker-registry"] {
        stub(root.path(), program);
    }
    let postgres = "[Service]\nType=oneshot\nExecStart=/usr/bin/true\n";
    write(root.path(), "usr/lib/systemd/system/postgresql.service", postgres);
    let generated = generate(root.path());
    let all: Vec<String> = shipped().into_iter().chain(generated).chain(["multi-user.target".into()]).collect();
    assert_eq!(verified(root.path(), &all), "");
}

#[test]
fn each_service_is_as_tight_as_its_work_allows() {
    let root = machine();
    let shipped: Vec<String> = shipped().into_iter().filter(|u| u.ends_with(".service")).collect();
    assert_eq!(shipped, SERVICES.map(|(unit, _)| unit.to_string()), "each service has its limit");
    for (unit, limit) in SERVICES {
        let output = analyze(&["security", "--offline=true", "--no-pager"], root.path(), &[unit.into()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let figure =
            text.lines().find_map(|l| l.split_once("Overall exposure level for ")?.1.split(' ').nth(1)?.parse().ok());
        let figure: f64 = figure.unwrap_or_else(|| panic!("no figure in {text}"));
        println!("{unit}: {figure} (at most {limit})");
        assert!(figure <= limit, "{unit} is at {figure}, over {limit}:\n{text}");
    }
}
