//! `make try`: a throw-away machine in use is adopted while a client outside probes it, shown, and released.
//!
//! Everything happens in namespaces of this machine; nothing is left of it but the image in the cache. The exit code is
//! 0 only if every row of the table at the end is as it must be.

use anyhow::{Context, Result};
use mesh_tests_vm::prober::{Opened, Prober, Report, targets};
use mesh_tests_vm::scenarios::stage::{Stage, WATCHED, comparable, serving};
use mesh_tests_vm::snapshot::Depth;
use mesh_tests_vm::world::{Size, control, plan};
use mesh_tests_vm::{Bed, Suite};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Length of the control run and of the run with the adoption in it.
const RUN: Duration = Duration::from_secs(20);

/// One row of the table at the end.
struct Row {
    what: &'static str,
    value: String,
    good: bool,
}

fn main() -> ExitCode {
    match try_it() {
        Ok(rows) => table(&rows),
        Err(e) => {
            eprintln!("\nmesh-try: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn step(text: &str) {
    eprintln!("\n==> {text}");
}

fn table(rows: &[Row]) -> ExitCode {
    eprintln!("\n{:<58} {:>22}", "what", "measured");
    for row in rows {
        eprintln!("{:<58} {:>22}  {}", row.what, row.value, if row.good { "ok" } else { "NOT AS IT MUST BE" });
    }
    if rows.iter().all(|r| r.good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Counts for `length`, with what `during` does in it; what the mesh opens is not counted (shut before, open after).
fn count(prober: &mut Prober, during: impl FnOnce() -> Result<()>) -> Result<Report> {
    prober.report()?;
    let started = Instant::now();
    during()?;
    std::thread::sleep(RUN.saturating_sub(started.elapsed()));
    let mut report = prober.report()?;
    let opened = [plan::OPENED_ADMIN, plan::OPENED_ANY].map(|p| format!("/{p}"));
    report.targets.retain(|label, _| !opened.iter().any(|o| label.contains(o.as_str())));
    Ok(report)
}

fn try_it() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut row = |what, value: String, good| rows.push(Row { what, value, good });
    step("building the mesh, the image and the predecessor's world (the first time takes a few minutes), booting it");
    let bed = Bed::open()?;
    let mut stage = Stage::new(&bed, Suite::Trixie, Size::Full, "try")?;
    let world = format!(
        "echo \"$(cat /etc/hostname): $(podman ps -q | wc -l) containers, \
         $(nft list chain inet filter input | grep -cE '(accept|drop|reset)( comment.*)?$') input and \
         $(nft list chain inet filter forward | grep -cE '(accept|drop)( comment.*)?$') forward rules; control: \
         $(systemctl list-units 'fleet*' --no-legend --plain | wc -l) system units, \
         $(systemctl --user -M {}@ list-units 'fleet*' --no-legend --plain | wc -l) of a user\"",
        control::USER
    );
    eprintln!("{}", stage.run(&world)?.trim());

    step("control run: what the bed itself loses");
    let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::No)?)?;
    let control_run = count(&mut prober, || Ok(()))?;
    eprintln!("{control_run}");

    step("mesh adopt --dry-run");
    eprintln!("{}", stage.mesh_says("adopt --dry-run", 0, &[])?.out);
    let before = stage.snapshot(Depth::Full)?;

    step("systemctl start mesh-adopt.target, while the prober runs");
    let mut took = Duration::ZERO;
    let run = count(&mut prober, || {
        std::thread::sleep(Duration::from_secs(3));
        took = stage.adopt()?;
        Ok(())
    })?;
    eprintln!("{run}");
    row("the adoption took", format!("{:.2} s", took.as_secs_f64()), true);
    row("connections in the control run", control_run.attempts().to_string(), control_run.attempts() > 1000);
    row("connections with the adoption in it", run.attempts().to_string(), run.attempts() > 1000);
    row("failed in the control run", control_run.failures().to_string(), true);
    row("failed with the adoption in it", run.failures().to_string(), run.failures() <= control_run.failures());
    let broken = run.streams.broken + run.streams.wrong;
    row("long connections broken or garbled", broken.to_string(), broken == 0);
    let (was, is) = (serving(&before), serving(&stage.snapshot(Depth::Quick)?));
    row("services and containers watched", was.len().to_string(), was.len() >= 80);
    let changed = was.iter().filter(|(name, id)| is.get(*name) != Some(id)).count();
    row("of these with another process or start time", changed.to_string(), changed == 0);
    let moving = stage.still_moving(WATCHED)?;
    row(
        "of 12 synced files, still rewritten",
        moving.iter().filter(|m| !m.ends_with(".count")).count().to_string(),
        moving.is_empty(),
    );

    step("mesh status");
    eprintln!("{}", stage.mesh_says("status", 0, &[])?.out);
    row("mode", stage.mode()?, stage.mode()? == "adopted");
    drop(prober);
    let mut prober = Prober::start(&stage.site.outside, targets(Size::Full, Opened::Yes)?)?;
    std::thread::sleep(Duration::from_secs(6));
    let opened = prober.report()?;
    row("failed with the openings counted", opened.failures().to_string(), opened.failures() == 0);

    step("mesh release");
    eprintln!("{}", stage.mesh_says("release", 0, &[])?.out);
    let differences = comparable(&before).differences(&comparable(&stage.snapshot(Depth::Full)?), |_, _| false);
    for difference in &differences {
        eprintln!("{difference}");
    }
    let compared: usize = before.parts.values().map(|part| part.len()).sum();
    row("files, units, containers and rules compared", compared.to_string(), compared > 1000);
    row("of these different after the release", differences.len().to_string(), differences.is_empty());
    stage.control_is_on(&before).context("after the release")?;
    row("the control after the release", "runs as before".into(), true);

    step("mesh log");
    eprintln!("{}", stage.mesh_says("log", 0, &[])?.out);
    Ok(rows)
}
