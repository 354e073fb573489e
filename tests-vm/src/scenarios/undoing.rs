//! Is everything as it was? Release against a full snapshot, and the mode file deleted by hand.

use super::stage::{Stage, WATCHED, comparable};
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::prober::{Opened, Prober, targets};
use crate::snapshot::{Depth, Snapshot};
use crate::world::{Size, control};
use anyhow::{Result, ensure};
use std::time::Duration;

pub(super) const CASES: &[Scenario] = &[
    Scenario { name: "untouched_machine_compares_as_the_same", run: untouched },
    Scenario { name: "release_leaves_no_trace", run: release_leaves_no_trace },
    Scenario { name: "release_after_reboot_leaves_no_trace", run: release_after_reboot_leaves_no_trace },
    Scenario { name: "mode_file_deleted_by_hand", run: mode_file_deleted_by_hand },
    Scenario { name: "release_after_harm", run: release_after_harm },
    Scenario { name: "release_after_the_predecessor_was_removed", run: release_after_removal },
];

/// Fails, with each difference, unless the machine is as it was.
pub fn same_as(stage: &mut Stage, before: &Snapshot, depth: Depth) -> Result<()> {
    let after = stage.snapshot(depth)?;
    let (was, is) = (comparable(before), comparable(&after));
    for (part, things) in &was.parts {
        figure(&format!("{part} compared"), things.len());
    }
    let differences = was.differences(&is, |_, _| false);
    figure("differences", differences.len());
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

/// The control of every comparison: a machine that nobody touches does not differ, and one that somebody did does.
fn untouched(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Full, "untouched")?.show(|stage| {
        let before = stage.snapshot(Depth::Full)?;
        std::thread::sleep(Duration::from_secs(8));
        same_as(stage, &before, Depth::Full)?;
        stage.run("chmod g+w /etc/apps/edge-tls.env; nft add rule inet filter input tcp dport 1 drop; systemctl restart resolver")?;
        let differences = comparable(&before).differences(&comparable(&stage.snapshot(Depth::Quick)?), |_, _| false);
        ensure!(differences.len() >= 2, "a restart and a rule are not seen: {differences:?}");
        let differences = comparable(&before).differences(&comparable(&stage.snapshot(Depth::Full)?), |p, _| p != "files");
        ensure!(differences.len() == 1 && differences[0].contains("edge-tls.env"), "{}", differences.join("\n"));
        Ok(())
    })
}

fn release_leaves_no_trace(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Full, "release")?.show(|stage| {
        let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::No)?)?;
        let before = stage.snapshot(Depth::Full)?;
        stage.adopt()?;
        let plan = stage.mesh_says("release --dry-run", 0, &["fleet-agent.service"])?;
        ensure!(stage.mode()? == "adopted", "the dry run changed the mode:\n{}", plan.out);
        stage.mesh_says("release", 0, &[])?;
        ensure!(stage.mode()? == "unmanaged", "the mode is {}", stage.mode()?);
        let target = stage.run("systemctl is-active mesh-adopt.target mesh-adopt.service || true")?;
        ensure!(!target.lines().any(|l| l == "active"), "the target would not start again: {target}");
        same_as(stage, &before, Depth::Full)?;
        stage.control_is_on(&before)?;
        let mut run = prober.report()?;
        // Open while adopted, and so it must be.
        run.targets.retain(|label, _| !label.contains("/9443") && !label.contains("/9444"));
        figure("adopt and release", &run);
        ensure!(run.failures() == 0 && run.restarted().is_empty(), "{}", run.failed().join("\n"));
        ensure!(run.streams.broken + run.streams.wrong == 0, "{run}");
        std::thread::sleep(Duration::from_secs(2));
        prober.report()?;
        std::thread::sleep(Duration::from_secs(6));
        let shut = prober.report()?;
        ensure!(shut.failures() == 0, "after the release:\n{}", shut.failed().join("\n"));
        Ok(())
    })
}

fn release_after_reboot_leaves_no_trace(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "release-boot")?.show(|stage| {
        // A boot writes files of its own: the comparison begins after one.
        stage.site.reboot()?;
        let before = stage.snapshot(Depth::Full)?;
        stage.adopt()?;
        stage.site.reboot()?;
        stage.control_is_off()?;
        stage.mesh_says("release", 0, &[])?;
        let after = stage.snapshot(Depth::Full)?;
        // Another boot: every process is another; files, unit files and ruleset are the same.
        let differences = comparable(&before).differences(&comparable(&after), |part, _| part == "units");
        figure("differences", differences.len());
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        stage.control_is_on(&before)
    })
}

fn mode_file_deleted_by_hand(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "by-hand")?.show(|stage| {
        let before = stage.snapshot(Depth::Quick)?;
        stage.adopt()?;
        let adopted = stage.snapshot(Depth::Quick)?;
        let masked = adopted.part("unit-files").values().filter(|s| s.starts_with("masked")).count();
        figure("unit files masked while adopted", masked);
        ensure!(masked >= control::SYSTEM_UNITS.len(), "only {masked} are masked");
        stage.run("rm /etc/mesh/mode")?;
        stage.reload()?;
        let after = stage.snapshot(Depth::Quick)?;
        let tree = |s: &Snapshot| Snapshot { parts: [("unit-files", s.part("unit-files"))].into() };
        let differences = tree(&before).differences(&tree(&after), |_, _| false);
        figure("unit files that differ", differences.len());
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        // What runs on is said, with how to stop it.
        stage.mesh_says("status", 0, &["unmanaged"])?;
        // And it starts as ever.
        stage.run(&format!(
            "systemctl start fleet-agent.service fleet-policy.timer; systemctl --user -M {}@ start fleet-sync.service",
            control::USER
        ))?;
        let moving = stage.still_moving(WATCHED)?;
        ensure!(moving.iter().any(|m| m == control::COUNTS[0]), "the control does not start again: {moving:?}");
        Ok(())
    })
}

/// What somebody broke or removed while adopted keeps nothing of the mesh in force, and nothing of the control down.
fn release_after_harm(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "harm")?.show(|stage| {
        let before = stage.snapshot(Depth::Quick)?;
        stage.adopt()?;
        stage.run("systemctl isolate mesh-converged.target && exit 1; echo rubbish >/etc/mesh/openings.json")?;
        stage.mesh_says("status", 0, &["openings.json"])?;
        stage.run("rm /etc/mesh/state.toml")?;
        stage.mesh_says("release", 0, &["ran before the adoption"])?;
        same_as(stage, &before, Depth::Quick)?;
        let failed = stage.run("systemctl list-units --failed --no-legend --plain 'mesh-*'")?;
        ensure!(failed.trim().is_empty(), "still failed: {failed}");
        stage.control_is_on(&before)?;
        // With a state that cannot be read: adopting refuses, releasing goes by the ledger.
        stage.run("systemctl start mesh-adopt.target; echo 'x =' >/etc/mesh/state.toml")?;
        stage.mesh_says("adopt", 78, &["state.toml"])?;
        stage.mesh_says("release", 0, &[])?;
        stage.control_is_on(&before)
    })
}

/// Control whose unit is gone by the time of the release is named, once, and nothing stays in the middle.
fn release_after_removal(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "removed")?.show(|stage| {
        stage.adopt()?;
        stage.run("rm /etc/systemd/system/fleet-agent.service; systemctl daemon-reload")?;
        stage.mesh_says("release", 1, &["this machine is released", "fleet-agent.service", "does not exist"])?;
        stage.mesh_says("recover", 0, &["nothing was cut"])?;
        stage.mesh_says("status", 0, &["unmanaged"])?;
        stage.mesh_says("adopt", 0, &["fleet-agent.service"])?;
        stage.mesh_says("release", 0, &[]).map(drop)
    })
}
