//! Do the services notice? Adoption while the prober runs, the dry run, adopting twice, and the reboot.

use super::stage::{Stage, comparable, serving};
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::node::Node;
use crate::prober::{Opened, Prober, Report, targets};
use crate::snapshot::{Depth, Snapshot};
use crate::world::{Size, control};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Scenario] = &[
    Scenario { name: "adopt_under_probing", run: adopt_under_probing },
    Scenario { name: "dry_run_changes_nothing", run: dry_run_changes_nothing },
    Scenario { name: "adopt_twice_changes_nothing", run: adopt_twice_changes_nothing },
    Scenario { name: "adopted_stays_adopted_over_reboot", run: adopted_stays_adopted_over_reboot },
];

/// How long the control run and the run with the adoption in it are.
const RUN: Duration = Duration::from_secs(25);

/// Fails unless `run` lost nothing that `control` did not lose, and nothing was started again.
pub fn nothing_lost(control: &Report, run: &Report) -> Result<()> {
    ensure!(run.failures() <= control.failures(), "failed beyond the control run:\n{}", run.failed().join("\n"));
    ensure!(run.streams.broken <= control.streams.broken, "long connections broke: {run}");
    ensure!(run.streams.wrong <= control.streams.wrong, "lines came back wrong: {run}");
    ensure!(run.restarted().is_empty(), "started again: {:?}", run.restarted());
    Ok(())
}

/// A report over `length` from now on, with what `during` does in it.
pub fn probe_for(prober: &mut Prober, length: Duration, during: impl FnOnce() -> Result<()>) -> Result<Report> {
    prober.report()?;
    let started = Instant::now();
    during()?;
    std::thread::sleep(length.saturating_sub(started.elapsed()));
    prober.report()
}

fn adopt_under_probing(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Full, "adopt")?.show(|stage| {
        let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::No)?)?;
        let control_run = probe_for(&mut prober, RUN, || Ok(()))?;
        figure("control run", &control_run);
        ensure!(control_run.failures() == 0, "the bed itself loses:\n{}", control_run.failed().join("\n"));
        let before = stage.snapshot(Depth::Quick)?;
        let mut took = Duration::ZERO;
        // What must stay shut before is open after: not counted in this run.
        let mut knocking = targets(Size::Full, Opened::No)?;
        knocking.retain(|t| !t.label.contains("/9443") && !t.label.contains("/9444"));
        drop(prober);
        let mut prober = Prober::start(&stage.site.outside, knocking)?;
        let run = probe_for(&mut prober, RUN, || {
            std::thread::sleep(Duration::from_secs(3));
            took = stage.adopt()?;
            Ok(())
        })?;
        figure("with the adoption", &run);
        figure("adoption took", format!("{:.2} s", took.as_secs_f64()));
        nothing_lost(&control_run, &run)?;
        ensure!(stage.mode()? == "adopted", "the mode is {}", stage.mode()?);

        let (was, is) = (serving(&before), serving(&stage.snapshot(Depth::Quick)?));
        let changed: Vec<&String> = was.iter().filter(|(name, id)| is.get(*name) != Some(id)).map(|(n, _)| n).collect();
        figure("services and containers", was.len());
        figure("of these with another process or start time", changed.len());
        ensure!(changed.is_empty(), "changed: {changed:?}");

        stage.control_is_off()?;
        let own_stops = format!("cat {} {}", control::STOPPED_SYSTEM, control::STOPPED_USER);
        let stopped = stage.run(&own_stops)?;
        for unit in ["fleet-agent.service", "fleet-sync.service"] {
            let times = stopped.lines().filter(|l| *l == unit).count();
            ensure!(times == 1, "ExecStop= of {unit} ran {times} times:\n{stopped}");
        }
        figure("synced files still written", 0);

        let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::Yes)?)?;
        let adopted = probe_for(&mut prober, Duration::from_secs(8), || Ok(()))?;
        figure("adopted, openings included", &adopted);
        nothing_lost(&control_run, &adopted)?;
        stage.mesh_says("status", 0, &["adopted"])?;
        // Each thing that was done has its record, also what a started target does on the way.
        let kinds = ["adopt-begun", "custody-taken", "opening-opened", "unit-stopped", "mode-written", "cron-held"];
        stage.mesh_says("log", 0, &kinds)?;
        stage.mesh_says("log", 0, &["process-ended", "adopted"])?;
        Ok(())
    })
}

fn dry_run_changes_nothing(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "dry-run")?.show(|stage| {
        let before = stage.snapshot(Depth::Full)?;
        stage.mesh_says("adopt --dry-run", 0, &["fleet-agent.service", "fleet-sync.service", "9443"])?;
        stage.mesh_says("adopt --dry-run --json", 0, &["mesh.adopt/1"])?;
        let after = stage.snapshot(Depth::Full)?;
        let differences = comparable(&before).differences(&comparable(&after), |_, _| false);
        figure("differences", differences.len());
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        stage.control_is_on(&before)
    })
}

fn adopt_twice_changes_nothing(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "twice")?.show(|stage| {
        stage.adopt()?;
        let first = (stage.snapshot(Depth::Full)?, stage.mesh_says("custody list", 0, &[])?.out);
        stage.mesh_says("adopt", 0, &[])?;
        let second = (stage.snapshot(Depth::Full)?, stage.mesh_says("custody list", 0, &[])?.out);
        // The mesh's own files may be written again; what is in them may not be different.
        let own = |s: &Snapshot| {
            let mut s = comparable(s);
            for (_, line) in s.parts.get_mut("files").into_iter().flatten().filter(|(p, _)| p.starts_with("/etc/mesh"))
            {
                *line = line.split(' ').filter(|w| !w.starts_with("mtime=")).collect::<Vec<_>>().join(" ");
            }
            s
        };
        let differences = own(&first.0).differences(&own(&second.0), |_, _| false);
        figure("differences", differences.len());
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        ensure!(first.1 == second.1, "custody moved:\n{}\n{}", first.1, second.1);
        stage.control_is_off()
    })
}

fn adopted_stays_adopted_over_reboot(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Full, "reboot")?.show(|stage| {
        let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::No)?)?;
        let control_run = probe_for(&mut prober, Duration::from_secs(8), || Ok(()))?;
        figure("before", &control_run);
        stage.adopt()?;
        drop(prober);
        // Over the boot: the openings must never stand open wider than asked, whatever is up already.
        let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::Yes)?)?;
        let started = Instant::now();
        stage.site.reboot()?;
        figure("reboot took", format!("{:.1} s", started.elapsed().as_secs_f64()));
        let over = prober.report()?;
        let opened: Vec<String> = over.failed().into_iter().filter(|f| f.contains("open: ")).collect();
        ensure!(opened.is_empty(), "what must be shut was open during the boot: {opened:?}");

        stage.site.node.wait_for("[ $(podman ps -q | wc -l) = 60 ]", Duration::from_secs(60))?;
        // An attempt that began before its container ran is given up after four seconds.
        std::thread::sleep(Duration::from_secs(6));
        let after = probe_for(&mut prober, Duration::from_secs(10), || Ok(()))?;
        figure("after the reboot", &after);
        nothing_lost(&control_run, &after)?;
        ensure!(stage.mode()? == "adopted", "the mode is {}", stage.mode()?);
        stage.control_is_off()?;
        stage.mesh_says("status", 0, &["adopted"])?;
        let order = stage.run("systemctl show mesh-firewall.service -p ActiveState -p Result")?;
        ensure!(order.contains("ActiveState=active"), "{order}");
        Ok(())
    })
}
