//! What the bed itself promises: `cargo test -p mesh-tests-vm --test bed`, as root.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use mesh_tests_vm::{Bed, Netns, Node, Nspawn, Recipe, Suite};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One node at a time: a second one only makes both slow.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for suite in Suite::ALL {
        trials.push(Trial::test(format!("nspawn_node::{}", suite.name()), move || said(nspawn_node(suite))));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn said(result: Result<()>) -> Result<(), Failed> {
    result.map_err(|error| Failed::from(format!("{error:#}")))
}

/// Files and container storage outlive a reboot; addresses, rules and processes do not.
fn nspawn_node(suite: Suite) -> Result<()> {
    let bed = Bed::open()?;
    let image = Recipe::node(suite, &[]).image(&bed)?;
    let outside = Netns::new("outside")?;
    let mut node = Nspawn::create(&bed, &image, &format!("node-{}", suite.name()))?;
    node.wire("eth0", &outside, "to-node", "ip addr add 192.0.2.9/24 dev to-node; ip link set to-node up");
    node.put("/srv/before", b"put in before the first boot\n", 0o600)?;
    node.start()?;
    mesh_tests_vm::node::on(&mut node, |node| {
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
