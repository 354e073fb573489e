//! DESIGN §3: node-level files that an unconfirmed flip swapped have their undo in `/etc/mesh/flip.pending/`, and
//! `mesh-recover.service` restores them at boot before the network and before what reads them. The unit and the
//! generator are the shipped ones; the restoring itself (the flip's, which this release has not) is a script.

use anyhow::{Context, Result, ensure};
use mesh_tests_vm::{Node, Vm};

use crate::{Notes, node};

const SSH: &str = "/etc/ssh/sshd_config.d/50-node.conf";
const RESOLVER: &str = "/etc/unbound/unbound.conf.d/50-node.conf";

const RESTORE: &str = "#!/bin/bash
set -e
[ -d /etc/mesh/flip.pending ] || exit 0
cp --preserve=all -T /etc/mesh/flip.pending/ssh /etc/ssh/sshd_config.d/50-node.conf
cp --preserve=all -T /etc/mesh/flip.pending/resolver /etc/unbound/unbound.conf.d/50-node.conf
rm -r /etc/mesh/flip.pending /etc/mesh/pending
sync
";

const DROP_IN: &str = "[Service]\nExecStart=\nExecStart=/usr/local/sbin/restore\n\
    ReadWritePaths=/etc/ssh/sshd_config.d /etc/unbound/unbound.conf.d\n";

/// Puts the script in the place of the helper's undo.
pub fn prepare(vm: &mut Vm) -> Result<()> {
    vm.put("/usr/local/sbin/restore", RESTORE.as_bytes(), 0o755)?;
    vm.put("/etc/systemd/system/mesh-recover.service.d/spike.conf", DROP_IN.as_bytes(), 0o644)
}

/// Swaps the files as a flip would, cuts the power before it is confirmed, and looks at the next boot.
pub fn cut_and_boot(vm: &mut Vm, notes: &mut Notes) -> Result<()> {
    // The found files, kept; the flipped ones in force; the mode still the one before.
    vm.run(&format!(
        "set -e; mkdir -p -m 700 /etc/mesh/flip.pending
         rm -f /etc/unbound/unbound.conf.d/root-auto-trust-anchor-file.conf
         echo 'Port 2201' >/etc/mesh/flip.pending/ssh; echo 'Port 2202' >{SSH}
         printf 'server:\\n interface: 127.0.0.1@5301\\n' >/etc/mesh/flip.pending/resolver
         printf 'server:\\n interface: 127.0.0.1@5302\\n' >{RESOLVER}
         systemctl -q enable systemd-networkd.service ssh.service unbound.service; systemctl restart ssh.service unbound.service"
    ))?;
    ensure!(listening(vm)? == (2202, 5302), "the flipped files are not in force before: {:?}", listening(vm)?);
    vm.run("echo flip >/etc/mesh/pending; sync")?;
    vm.power_cut();
    vm.start()?;
    vm.wait_running()?;

    let now = listening(vm)?;
    ensure!(now == (2201, 5301), "after the boot they listen on {now:?}, as the flipped files say");
    node::no_cycle(vm)?;
    let done = moment(vm, "mesh-recover.service", "ExecMainExitTimestampMonotonic")?;
    let mut order = vec![format!("restored at {:.3} s", done as f64 / 1e6)];
    for (unit, property) in [
        ("sysinit.target", "ActiveEnterTimestampMonotonic"),
        ("network-pre.target", "ActiveEnterTimestampMonotonic"),
        ("systemd-networkd.service", "ExecMainStartTimestampMonotonic"),
        ("unbound.service", "ExecMainStartTimestampMonotonic"),
        ("ssh.service", "ExecMainStartTimestampMonotonic"),
    ] {
        let at = moment(vm, unit, property)?;
        ensure!(done < at, "{unit} at {at} µs, before the files were restored at {done} µs");
        order.push(format!("{unit} at {:.3} s", at as f64 / 1e6));
    }
    notes.saw(format!(
        "after a power cut, {}; sshd on 2201 and unbound on 5301, the found files' ports",
        order.join(", ")
    ));
    let needs = vm.run("systemctl show -p RequiresMountsFor --value mesh-recover.service")?;
    ensure!(!needs.split_whitespace().any(|path| path.starts_with("/var")), "it requires /var: {needs}");
    vm.run("test ! -e /etc/mesh/flip.pending -a ! -e /etc/mesh/pending").map(drop)
}

/// The ports of sshd and of the resolver.
fn listening(vm: &mut Vm) -> Result<(u16, u16)> {
    let text = vm.run(
        "ss -Hltn 'sport >= 2201 and sport <= 2202' | head -1; ss -Hlun 'sport >= 5301 and sport <= 5302' | head -1",
    )?;
    let ports: Vec<u16> =
        text.lines().filter_map(|line| line.split_whitespace().nth(3)?.rsplit(':').next()?.parse().ok()).collect();
    let [ssh, resolver] = ports[..] else { anyhow::bail!("sshd and unbound do not both listen: {text}") };
    Ok((ssh, resolver))
}

/// When something happened to a unit, µs since the kernel's start.
fn moment(vm: &mut Vm, unit: &str, property: &str) -> Result<u64> {
    let value = vm.run(&format!("systemctl show -p {property} --value {unit}"))?;
    let at: u64 = value.trim().parse().with_context(|| format!("{unit}: {property}: {value}"))?;
    ensure!(at > 0, "{unit} has no {property}");
    Ok(at)
}
