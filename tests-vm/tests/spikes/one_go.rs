//! DESIGN §3: a transaction is fixed when it is queued, so the service that `mesh-adopt.target` starts writes the mode,
//! reloads, starts `mesh-node.target` and waits for it, all in one go. There must be no ordering cycle and no wait for
//! itself. The units and the generator are the shipped ones; the helper's part is this script.

use std::time::Duration;

use anyhow::{Result, ensure};
use mesh_tests_vm::{Node, Vm};

use crate::{Notes, node};

/// As `mesh adopt` does: what is begun is written first, so that the reload links `mesh-recover.service`.
const ONE_GO: &str = "#!/bin/bash
set -e
echo adopt >/etc/mesh/pending
echo adopted >/etc/mesh/mode.new
mv /etc/mesh/mode.new /etc/mesh/mode
systemctl daemon-reload
systemctl stop fleet-agent.service
systemctl start mesh-node.target
rm /etc/mesh/pending
systemctl daemon-reload
systemd-notify --ready
exec sleep infinity
";

const DROP_IN: &str = "[Service]\nExecStart=\nExecStart=/usr/local/sbin/one-go\nNotifyAccess=all\n";

/// Adopts the machine in one go.
pub fn adopt(vm: &mut Vm, notes: &mut Notes) -> Result<()> {
    vm.put("/usr/local/sbin/one-go", ONE_GO.as_bytes(), 0o755)?;
    vm.put("/etc/systemd/system/mesh-adopt.service.d/spike.conf", DROP_IN.as_bytes(), 0o644)?;
    vm.run(
        "systemctl daemon-reload; systemctl start fleet-agent.service; ! systemctl -q cat mesh-node.target 2>/dev/null",
    )?;
    let started = vm.try_run("systemctl start mesh-adopt.target", Duration::from_secs(120))?;
    ensure!(started.exit == 0, "{}{}", started.all(), vm.run("journalctl -b --no-pager -n 60")?);
    active(vm)?;
    node::no_cycle(vm)?;
    notes.saw(
        "started in one go: mesh-adopt.target, mesh-node.target, a module, a cron mount, the watch; no ordering cycle",
    );
    Ok(())
}

/// After a boot: the mode holds, and adopting what is adopted disturbs nothing.
pub fn adopted_again(vm: &mut Vm, notes: &mut Notes) -> Result<()> {
    active(vm)?;
    node::no_cycle(vm)?;
    notes.saw("booted: mesh-node.target is up by itself, control is masked, no ordering cycle");
    let before = node::units(vm)?;
    vm.run("systemctl start mesh-adopt.target")?;
    let disturbed = node::disturbed(&before, &node::units(vm)?);
    ensure!(disturbed.is_empty(), "adopting an adopted machine disturbs {disturbed:?}");
    node::no_cycle(vm)?;
    notes.saw("started again on the adopted machine: nothing disturbed, no ordering cycle");
    Ok(())
}

fn active(vm: &mut Vm) -> Result<()> {
    vm.run(
        "set -e
        systemctl is-active mesh-node.target mesh-module-echo.service mesh-watch.socket
        findmnt /etc/cron.d/fleet; grep -q 'taken out' /etc/cron.d/fleet
        [ \"$(systemctl show -p LoadState --value fleet-agent.service)\" = masked ]
        ! systemctl -q is-active fleet-agent.service",
    )
    .map(drop)
}
