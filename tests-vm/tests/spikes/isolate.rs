//! DESIGN §6.4: isolating `mesh-converged.target` must be safe, granted or refused. In `adopted` it stops nothing; with
//! no mode systemd refuses; and what makes the difference are the type-wide drop-ins, as the control shows.

use std::time::Duration;

use anyhow::{Result, ensure};
use mesh_tests_vm::{Bed, Node, Output, Vm};

use crate::node::Units;
use crate::{Notes, node};

/// Something running of every kind that an isolate could stop: enabled, started by hand, transient, a timer's, a
/// socket's, a path, a target, one that requires a socket, one with an `ExecStop=` that would open a firewall, a user's.
const BYSTANDERS: &str = r#"set -e
unit() { printf '%s\n' "${@:2}" >/etc/systemd/system/$1; }
unit t-enabled.service '[Service]' 'ExecStart=sleep infinity' '[Install]' 'WantedBy=multi-user.target'
unit t-hand.service '[Service]' 'ExecStart=sleep infinity'
unit t-wall.service '[Service]' Type=oneshot RemainAfterExit=yes ExecStart=true 'ExecStop=touch /run/wall-is-down'
unit t-timer.timer '[Timer]' OnActiveSec=0 AccuracySec=1us
unit t-timer.service '[Service]' 'ExecStart=sleep infinity'
unit t-socket.socket '[Socket]' ListenStream=/run/t-socket
unit t-socket.service '[Service]' 'ExecStart=sleep infinity'
unit t-needs.socket '[Socket]' ListenStream=/run/t-needs
unit t-needs.service '[Unit]' Requires=t-needs.socket After=t-needs.socket '[Service]' 'ExecStart=sleep infinity'
unit t-path.path '[Path]' PathExists=/run/never
unit t-path.service '[Service]' 'ExecStart=true'
unit t-hand.target '[Unit]' Description=x
useradd -m t-user && loginctl enable-linger t-user
systemctl daemon-reload
systemctl -q enable --now t-enabled.service
systemctl start t-hand.service t-wall.service t-timer.timer t-socket.socket t-needs.service t-path.path t-hand.target ssh.service
systemd-run -q --unit=t-transient sleep infinity
echo | nc -U -w1 -N /run/t-socket || true
active() { for u in "$@"; do for i in $(seq 100); do systemctl -q is-active $u && continue 2; sleep 0.2; done; echo $u; exit 1; done; }
active t-timer.service t-socket.service user@$(id -u t-user).service
systemd-run -q --user -M t-user@ --unit=t-job sleep infinity
systemd-run -q --unit=t-login -p PAMName=login -p User=t-user sleep infinity
for i in $(seq 100); do loginctl list-sessions --no-legend | grep -q t-user && break; sleep 0.2; done
active t-enabled.service t-hand.service t-wall.service t-timer.timer t-timer.service t-socket.socket \
  t-socket.service t-needs.service t-path.path t-hand.target t-transient.service ssh.service
"#;

const ISOLATE: &str = "systemctl isolate mesh-converged.target";

/// The gate replaced by `true` or `false`; `more` goes before its command in the drop-in.
fn gate(vm: &mut Vm, command: &str, more: &str) -> Result<()> {
    vm.run(&format!(
        "mkdir -p /run/systemd/system/mesh-flip.service.d
         printf '{more}[Service]\\nType=oneshot\\nExecStart=\\nExecStart=/usr/bin/{command}\\n' \\
           >/run/systemd/system/mesh-flip.service.d/gate.conf
         systemctl daemon-reload"
    ))
    .map(drop)
}

/// The whole spike.
pub fn spike(bed: &Bed, vm: &mut Vm, notes: &mut Notes) -> Result<()> {
    node::install(bed, vm)?;
    node::configure(vm)?;
    vm.run(BYSTANDERS)?;

    let mut now = node::units(vm)?;
    let refused = quiet(vm, &mut now, notes, "no mode", ISOLATE)?;
    ensure!(refused.exit != 0 && refused.all().contains("may not be isolated"), "no mode: {refused:?}");

    node::set_mode(vm, Some("adopted"))?;
    let refused = quiet(vm, &mut now, notes, "adopted, the shipped gate refuses", ISOLATE)?;
    ensure!(refused.exit != 0, "the shipped gate grants: {refused:?}");
    notes.saw(vm.run("systemctl show mesh-flip.service -p Result -p ExecMainStatus | paste -sd' '")?.trim());
    vm.run("! systemctl -q is-active mesh-converged.target")?;
    gate(vm, "true", "")?;
    let granted = quiet(vm, &mut now, notes, "adopted, the gate grants", ISOLATE)?;
    ensure!(granted.exit == 0, "{granted:?}");
    vm.run("systemctl is-active mesh-converged.target")?;
    quiet(vm, &mut now, notes, "adopted, another target is isolated", "systemctl isolate multi-user.target")?;

    // The control: the same target may be isolated, but nothing keeps the others. (The shipped gate asserts the mode
    // file, and an assertion that fails stops nothing: it is the gate itself that must fail.)
    node::set_mode(vm, None)?;
    vm.run(
        "systemctl stop mesh-converged.target mesh-flip.service; mkdir -p /run/systemd/system/mesh-converged.target.d
         printf '[Unit]\\nAllowIsolate=yes\\n' >/run/systemd/system/mesh-converged.target.d/allow.conf",
    )?;
    gate(vm, "false", "[Unit]\\nAssertPathExists=\\n")?;
    let refused = vm.try_run(ISOLATE, Duration::from_secs(120))?;
    ensure!(refused.exit != 0, "the control's gate grants: {refused:?}");
    let gone = node::disturbed(&now, &node::units(vm)?);
    notes.saw(format!(
        "control, no drop-ins, the gate refuses: {} of {} units stopped: {}",
        gone.len(),
        now.len(),
        gone.join(" ")
    ));
    for unit in [
        "t-enabled.service",
        "t-hand.service",
        "t-wall.service",
        "t-transient.service",
        "t-needs.service",
        "ssh.service",
    ] {
        ensure!(gone.iter().any(|name| name == unit), "the control does not stop {unit}, so this shows nothing");
    }
    // What a stop does is done too: this one's would have opened the firewall.
    vm.run("test -e /run/wall-is-down").map(drop)
}

/// Runs a command that must not disturb any unit of `now`, and waits until its jobs are done.
fn quiet(vm: &mut Vm, now: &mut Units, notes: &mut Notes, case: &str, command: &str) -> Result<Output> {
    let output = vm.try_run(command, Duration::from_secs(120))?;
    let after = node::units(vm)?;
    let disturbed = node::disturbed(now, &after);
    ensure!(disturbed.is_empty(), "{case}: disturbed: {}", disturbed.join(" "));
    ensure!(now.keys().filter(|unit| unit.starts_with("t-")).count() >= 12, "{case}: too few run: {now:?}");
    // A user's own manager is no unit of PID 1's: its job apart.
    vm.run("test ! -e /run/wall-is-down && systemctl --user -M t-user@ is-active t-job.service")?;
    notes.saw(format!("{case}: exit {}, 0 of {} units disturbed", output.exit, now.len()));
    *now = after;
    Ok(output)
}
