//! What the bed itself promises: `cargo test -p mesh-tests-vm --test bed`, as root.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use mesh_tests_vm::node::on;
use mesh_tests_vm::process::Checked;
use mesh_tests_vm::{Bed, Hardware, Netns, Node, Nspawn, Preparation, Recipe, Saved, Suite, Switch, crash};

type Test = fn(Suite) -> Result<()>;

/// What is about the bed's own code needs one release; the spikes boot machines of both.
const TESTS: [(&str, Test, &[Suite]); 4] = [
    ("namespace_node", namespace_node, &Suite::ALL),
    ("machine", machine, &[Suite::Trixie]),
    ("two_machines_on_one_ethernet", two_machines_on_one_ethernet, &[Suite::Trixie]),
    ("every_crash_state", every_crash_state, &[Suite::Trixie]),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One node at a time: a second one only makes both slow.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for (name, test, suites) in TESTS {
        for &suite in suites {
            trials.push(Trial::test(format!("{name}::{}", suite.name()), move || said(test(suite))));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn said(result: Result<()>) -> Result<(), Failed> {
    result.map_err(|error| Failed::from(format!("{error:#}")))
}

/// Files and container storage outlive a reboot; addresses, rules and processes do not.
fn namespace_node(suite: Suite) -> Result<()> {
    let bed = Bed::open()?;
    let image = Recipe::node(suite, &[]).image(&bed)?;
    let outside = Netns::new("outside")?;
    let mut node = Nspawn::create(&bed, &image, &format!("node-{}", suite.name()))?;
    node.wire("eth0", &outside, "to-node", "ip addr add 192.0.2.9/24 dev to-node; ip link set to-node up");
    node.put("/srv/before", b"put in before the first boot\n", 0o600)?;
    node.start()?;
    on(&mut node, |node| {
        node.wait_running()?;
        node.run(
            "set -e; grep -q first /srv/before; touch /srv/in /var/lib/containers/in
            ip addr add 192.0.2.1/24 dev eth0; ip link set eth0 up; ping -q -c1 -W5 192.0.2.9
            nft add table inet gone; sysctl -qw net.ipv4.ip_forward=1",
        )?;
        ensure!(node.under("/var/lib/containers/in").exists(), "the container storage is reachable from outside");
        let held = node.try_run("sleep 60", Duration::from_secs(1))?;
        ensure!(held.exit == 124, "a script over its time is ended: {held:?}");
        node.run_within("sleep 1000 & echo left behind", Duration::from_secs(5))?;

        node.reboot()?;
        node.wait_running()?;
        node.run("set -e; test -e /srv/in; test -e /var/lib/containers/in; ip link show eth0")?;
        let fresh = node.run("nft list ruleset; ip -4 addr show dev eth0 | grep inet; pgrep -x sleep; true")?;
        ensure!(fresh.is_empty(), "from the boot before: {fresh}");
        node.stop()?;
        node.start()?;
        node.wait_running()
    })
}

fn plain(bed: &Bed, suite: Suite) -> Result<Saved> {
    let image = Recipe::machine(suite, &[]).image(bed)?;
    Saved::of(bed, &image, "plain", Hardware::default(), &Preparation::default())
}

/// A copy of a saved machine takes files, reboots, and loses at a power cut what it had not flushed, and only that.
fn machine(suite: Suite) -> Result<()> {
    let bed = Bed::open()?;
    let mut vm = plain(&bed, suite)?.copy("machine", &Switch::new())?;
    on(&mut vm, |vm| {
        vm.put("/srv/one", b"1\n", 0o640)?;
        vm.copy_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "/srv/tree")?;
        let seen = vm
            .run("cat /srv/one; stat -c '%a %U' /srv/one; test -f /srv/tree/bin/mesh-test-agent.rs; stat -c %a /tmp")?;
        ensure!(seen == "1\n640 root\n1777\n", "{seen}");
        vm.snapshot("before")?;
        vm.run("touch /srv/after")?;
        vm.restore("before")?;
        vm.run("test ! -e /srv/after")?;
        // The channel outlives what is under test.
        vm.run(
            "printf '[Unit]\nAllowIsolate=yes\n' >/run/systemd/system/bare.target
            nft 'table inet shut { chain i { type filter hook input priority -500; policy drop; }; }'
            systemctl daemon-reload && systemctl isolate bare.target && systemctl daemon-reexec",
        )?;
        let id = vm.run("cat /proc/sys/kernel/random/boot_id")?;
        vm.reboot()?;
        ensure!(vm.run("test -f /srv/one; nft list ruleset; cat /proc/sys/kernel/random/boot_id")? != id);
        vm.run("echo kept >/srv/kept; sync; echo lost >/srv/lost")?;
        vm.power_cut();
        vm.start()?;
        vm.run("grep kept /srv/kept; test ! -s /srv/lost")?;
        vm.wait_running()
    })
}

/// The firewall of one holds back the other; the hub sees every frame; a pulled cable is one.
fn two_machines_on_one_ethernet(suite: Suite) -> Result<()> {
    let bed = Bed::open()?;
    let switch = Switch::new();
    let saved = plain(&bed, suite)?;
    let (mut a, mut b) = (saved.copy("a", &switch)?, saved.copy("b", &switch)?);
    a.attach(1)?;
    b.attach(2)?;
    b.run("ping -q -c1 -W10 192.0.2.1 && ping -q -c1 -W10 2001:db8::1")?;
    a.run(
        "nft 'table inet f { chain input { type filter hook input priority 0; policy drop; tcp dport 8080 accept; }; }'
        for port in 8080 8081; do (while :; do echo hello | nc -l -N -p $port; done) >/dev/null 2>&1 & done",
    )?;
    b.wait_for("nc -w3 192.0.2.1 8080 </dev/null | grep hello", Duration::from_secs(20))?;
    let shut = b.try_run("nc -w3 192.0.2.1 8081 </dev/null", Duration::from_secs(20))?;
    ensure!(shut.exit == 1 && shut.out.is_empty(), "{shut:?}");
    ensure!(switch.frames("a") > 0 && switch.frames("b") > 0);
    switch.unplug("b");
    ensure!(b.try_run("nc -w3 192.0.2.1 8080 </dev/null", Duration::from_secs(20))?.exit != 0);
    switch.plug("b");
    b.wait_for("nc -w3 192.0.2.1 8080 </dev/null | grep hello", Duration::from_secs(20)).map(drop)
}

/// A careful writer leaves the old or the new content in every state; a careless one is caught.
fn every_crash_state(suite: Suite) -> Result<()> {
    let bed = Bed::open()?;
    let work = bed.run_dir("crash")?;
    let (base, data, log) = (work.join("base.img"), work.join("data.img"), work.join("log.img"));
    for careful in [true, false] {
        Command::new("bash")
            .args(["-ec", "mkdir -p $0/d; seq -f old%g 3000 >$0/d/f; rm -f $0/*.img; truncate -s 64M $0/base.img; truncate -s 1G $0/log.img
                mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 -d $0/d $0/base.img; cp --sparse=always $0/base.img $0/data.img"])
            .arg(&work)
            .checked()?;
        let mut vm = plain(&bed, suite)?.copy("writer", &Switch::new())?;
        vm.plug_logged(&data, &log)?;
        // Without ext4's rescue for programs that forget to flush: other file systems have none.
        let mount =
            "mkdir -p /d; mount -t ext4 -o noauto_da_alloc /dev/disk/by-id/virtio-data /d; seq -f new%g 3000 >/d/t";
        let steps = if careful { "sync /d/t; mv /d/t /d/f; sync /d" } else { "mv /d/t /d/f; sync /d; sleep 1; sync" };
        vm.run(&format!("set -e; {mount}; {steps}"))?;
        vm.power_cut();
        let (mut old, mut new, mut torn) = (0, 0, 0);
        crash::states(&base, &log, &work.join("states"), |_, mounted| {
            let text = std::fs::read_to_string(mounted.join("f")).unwrap_or_default();
            match (text.lines().count(), text.get(..3)) {
                (3000, Some("old")) => old += 1,
                (3000, Some("new")) => new += 1,
                _ => torn += 1,
            }
            Ok(())
        })?;
        ensure!((torn == 0) == careful && old > 0 && new > 0, "careful {careful}: {old} old, {new} new, {torn} torn");
    }
    Ok(std::fs::remove_dir_all(work)?)
}
