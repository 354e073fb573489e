//! What a kill, a crash and a cut leave: never something in between that stays.

use super::stage::{Stage, comparable};
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::node::Node;
use crate::snapshot::{Depth, Snapshot};
use crate::world::Size;
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

pub(super) const CASES: &[Scenario] = &[
    Scenario { name: "killed_adopt_recovers", run: |b, s| killed(b, s, "adopt") },
    Scenario { name: "killed_release_recovers", run: |b, s| killed(b, s, "release") },
    Scenario { name: "killed_unit_recovers_by_itself", run: killed_unit },
    Scenario { name: "cut_adopt_recovers_at_boot", run: |b, s| cut(b, s, "adopt") },
    Scenario { name: "cut_release_recovers_at_boot", run: |b, s| cut(b, s, "release") },
];

/// At how many moments, spread over the verb, it is killed.
const MOMENTS: u32 = 6;

/// How long `verb` takes when nobody disturbs it; the machine is adopted (or released) after.
fn undisturbed(stage: &mut Stage, verb: &str) -> Result<Duration> {
    let took = stage.run(&format!("s=$(date +%s%N); mesh {verb} >&2; e=$(date +%s%N); echo $((e - s))"))?;
    Ok(Duration::from_nanos(took.trim().parse()?))
}

/// Begins `verb` and kills it after `wait`; whether it was still at work.
fn kill_after(stage: &mut Stage, verb: &str, wait: Duration) -> Result<bool> {
    let script = format!(
        "setsid mesh {verb} >/root/killed.log 2>&1 & p=$!; sleep {:.4}; kill -9 $p 2>/dev/null && echo killed; wait $p 2>/dev/null; true",
        wait.as_secs_f64()
    );
    Ok(stage.run(&script)?.contains("killed"))
}

/// Whole: either as before the adoption or adopted, never in between, nothing pending.
fn is_whole(stage: &mut Stage, before: &Snapshot) -> Result<&'static str> {
    ensure!(stage.run("test -e /etc/mesh/pending && echo pending || true")?.trim().is_empty(), "still pending");
    match stage.mode()?.as_str() {
        "adopted" => {
            stage.control_is_off()?;
            Ok("adopted")
        }
        "unmanaged" => {
            let after = stage.snapshot(Depth::Full)?;
            let differences = comparable(before)
                .differences(&comparable(&after), |_, name| name == "/root/killed.log" || name == "/root");
            ensure!(differences.is_empty(), "{}", differences.join("\n"));
            stage.control_is_on(before)?;
            Ok("as it was")
        }
        other => bail!("the mode is {other}"),
    }
}

fn killed(bed: &Bed, suite: Suite, verb: &str) -> Result<()> {
    Stage::new(bed, suite, Size::Small, &format!("kill-{verb}"))?.show(|stage| {
        stage.run("touch /root/killed.log")?;
        let before = stage.snapshot(Depth::Full)?;
        let adopting = undisturbed(stage, "adopt")?;
        let releasing = undisturbed(stage, "release")?;
        let whole = if verb == "adopt" { adopting } else { releasing };
        figure("undisturbed", format!("adopt {adopting:.2?}, release {releasing:.2?}"));
        let mut outcomes = Vec::new();
        for moment in 1..=MOMENTS {
            if verb == "release" {
                stage.mesh_says("adopt", 0, &[])?;
            }
            let killed = kill_after(stage, verb, whole * moment / (MOMENTS + 1))?;
            let pending = stage.run("test -e /etc/mesh/pending && echo yes || echo no")?.trim() == "yes";
            stage.mesh_says("recover", 0, &[])?;
            let end = is_whole(stage, &before)?;
            outcomes.push(format!("{moment}/{}: killed {killed}, pending {pending}, {end}", MOMENTS + 1));
            if end == "adopted" {
                stage.mesh_says("release", 0, &[])?;
                ensure!(is_whole(stage, &before)? == "as it was", "the release is not whole");
            }
        }
        figure("outcomes", outcomes.join("\n      "));
        ensure!(outcomes.iter().any(|o| o.contains("pending true")), "no kill hit the verb at work");
        Ok(())
    })
}

/// The adoption as an operator starts it, its main process killed: `OnFailure=` makes it whole without anybody's help.
fn killed_unit(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "kill-unit")?.show(|stage| {
        stage.run("touch /root/killed.log")?;
        let before = stage.snapshot(Depth::Full)?;
        let whole = undisturbed(stage, "adopt")?;
        undisturbed(stage, "release")?;
        let (mut hit, mut outcomes) = (0, Vec::new());
        for moment in 1..=5u32 {
            let pending = stage.run(&format!(
                "systemctl start --no-block mesh-adopt.target; sleep {:.4}; systemctl kill -s KILL mesh-adopt.service; \
                 test -e /etc/mesh/pending && echo yes || echo no",
                (whole * moment / 10).as_secs_f64()
            ))?;
            hit += u32::from(pending.trim() == "yes");
            stage.site.node.wait_for(
                "! test -e /etc/mesh/pending && [ -z \"$(systemctl list-jobs --no-legend 'mesh-*')\" ]",
                Duration::from_secs(60),
            )?;
            let state = stage.run("systemctl show mesh-adopt.service -p Result; systemctl reset-failed 'mesh-*'")?;
            ensure!(pending.trim() == "no" || state.contains("Result=signal"), "the kill is not shown: {state}");
            let end = is_whole(stage, &before).with_context(|| format!("moment {moment}/10"))?;
            outcomes.push(format!("{moment}/10: pending {}, {end}", pending.trim()));
            if end == "adopted" {
                stage.mesh_says("release", 0, &[])?;
            }
            stage.run("systemctl stop mesh-adopt.target")?;
        }
        figure("outcomes", outcomes.join("\n      "));
        ensure!(hit > 0, "no kill hit the adoption at work");
        Ok(())
    })
}

fn cut(bed: &Bed, suite: Suite, verb: &str) -> Result<()> {
    Stage::new(bed, suite, Size::Small, &format!("cut-{verb}"))?.show(|stage| {
        // A boot writes files of its own: the comparison begins after one.
        stage.site.reboot()?;
        let before = stage.snapshot(Depth::Full)?;
        let adopting = undisturbed(stage, "adopt")?;
        let releasing = undisturbed(stage, "release")?;
        let whole = if verb == "adopt" { adopting } else { releasing };
        let (mut hit, mut outcomes) = (0, Vec::new());
        for moment in 1..=4u32 {
            if verb == "release" {
                stage.mesh_says("adopt", 0, &[])?;
            }
            stage.run(&format!(
                "setsid mesh {verb} >/dev/null 2>&1 & sleep {:.4}",
                (whole * moment / 5).as_secs_f64()
            ))?;
            let pending = stage.site.node.under("/etc/mesh/pending");
            stage.site.node.cut()?;
            let was_pending = pending.exists();
            hit += u32::from(was_pending);
            stage.site.node.start()?;
            stage.site.node.wait_running()?;
            ensure!(!pending.exists(), "the boot did not finish or undo it");
            let mode = stage.mode()?;
            outcomes.push(format!("{moment}/5: pending {was_pending}, {mode} after the boot"));
            match mode.as_str() {
                "adopted" => {
                    stage.control_is_off()?;
                    stage.mesh_says("release", 0, &[])?;
                }
                "unmanaged" => {}
                other => bail!("the mode is {other}"),
            }
            // The cut may have caught the control, which writes in place, between emptying a file and filling it.
            stage.control_is_on(&before)?;
            let after = stage.snapshot(Depth::Full)?;
            let differences = comparable(&before).differences(&comparable(&after), |part, _| part == "units");
            ensure!(differences.is_empty(), "{}", differences.join("\n"));
        }
        figure("outcomes", outcomes.join("\n      "));
        ensure!(hit > 0, "no cut hit the verb at work");
        Ok(())
    })
}
