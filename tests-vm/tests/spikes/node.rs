//! What the spikes share: the project installed in the machine, a node's configuration, and a look at every unit.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mesh_tests_vm::process::Checked;
use mesh_tests_vm::{Bed, Node, Vm};

/// Installs what is shipped, as a distribution would.
pub fn install(bed: &Bed, vm: &mut Vm) -> Result<()> {
    let stage = bed.run_dir("stage")?;
    Command::new("make")
        .args(["-s", "install", "PROFILE=ci"])
        .arg(format!("DESTDIR={}", stage.display()))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .checked()?;
    vm.copy_in(&stage, "/")?;
    std::fs::remove_dir_all(stage)?;
    vm.run("systemctl daemon-reload").map(drop)
}

/// A node with something of every kind that the generator derives: control to mask, a cron entry, a module.
const CONFIGURATION: &str = r#"set -e
mkdir -p /etc/mesh/catalogue /etc/mesh/cron /etc/cron.d
cat >/etc/mesh/node.toml <<'END'
schema = 1
name = "alpha"
role = "node"
modules = ["echo"]
[foundation]
at = "control"
[predecessor]
units = ["fleet-agent.service"]
cron = [{ file = "/etc/cron.d/fleet" }]
END
cat >/etc/mesh/catalogue/echo.toml <<'END'
schema = 1
summary = "Waits"
[run]
exec = ["/usr/bin/sleep", "infinity"]
type = "exec"
END
printf 'schema = 1\nraised = ["echo"]\n' >/etc/mesh/state.toml
echo '* * * * * root /opt/fleet/sync' >/etc/cron.d/fleet
echo '# taken out' >/etc/mesh/cron/etc-cron.d-fleet
printf '[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/fleet-agent.service
"#;

/// Lays the configuration of a node down; no mode yet.
pub fn configure(vm: &mut Vm) -> Result<()> {
    vm.run(CONFIGURATION).map(drop)
}

/// Writes a mode (or takes it away) and reloads.
pub fn set_mode(vm: &mut Vm, mode: Option<&str>) -> Result<()> {
    match mode {
        Some(mode) => vm.run(&format!("echo {mode} >/etc/mesh/mode && systemctl daemon-reload"))?,
        None => vm.run("rm -f /etc/mesh/mode && systemctl daemon-reload")?,
    };
    Ok(())
}

/// Each active unit, with what changes if it is stopped or started again.
pub type Units = BTreeMap<String, String>;

/// Waits until no job is left, then looks at every unit.
pub fn units(vm: &mut Vm) -> Result<Units> {
    vm.wait_for("[ -z \"$(systemctl list-jobs --no-legend)\" ]", Duration::from_secs(120))?;
    let text = vm.run(
        "systemctl show --property=Id,ActiveState,MainPID,InvocationID -- \
         $(systemctl list-units --state=active --no-legend --plain | awk '{print $1}' | grep -vE '[.](device|slice)$')",
    )?;
    text.split("\n\n")
        .map(|block| {
            let values: BTreeMap<&str, &str> = block.lines().filter_map(|line| line.split_once('=')).collect();
            let id = values.get("Id").with_context(|| format!("a unit without a name: {block}"))?;
            let rest: Vec<&str> =
                ["ActiveState", "MainPID", "InvocationID"].iter().filter_map(|key| values.get(key).copied()).collect();
            Ok(((*id).to_owned(), rest.join(" ")))
        })
        .collect()
}

/// Units of `before` that are gone or were started again; the mesh's own are looked at apart.
pub fn disturbed(before: &Units, after: &Units) -> Vec<String> {
    before
        .iter()
        .filter(|(unit, state)| !unit.starts_with("mesh-") && after.get(*unit) != Some(state))
        .map(|(unit, _)| unit.clone())
        .collect()
}

/// What the journal of this boot says about jobs that could not be ordered.
pub fn no_cycle(vm: &mut Vm) -> Result<()> {
    let said = vm.run(
        "journalctl -b --no-pager -o cat | grep -iE 'ordering cycle|deleted to break|ordering dependency' || true",
    )?;
    if !said.is_empty() {
        bail!("an ordering cycle:\n{said}");
    }
    Ok(())
}
