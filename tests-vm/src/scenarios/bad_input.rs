//! The table of broken files (`helper/model/tests/bad`) on a machine: each gives its error and exit code, is seen in
//! `systemctl --failed` where it is the generators' to see, and changes nothing.

use super::stage::Stage;
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::node::Node;
use crate::process::{Checked, command};
use crate::snapshot::{Depth, Snapshot};
use crate::world::{Size, node_toml};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const CASES: &[Scenario] = &[Scenario { name: "bad_input_changes_nothing", run: bad_input_changes_nothing }];

/// What an `expected` file says.
#[derive(Debug, Default)]
struct Expected {
    exit: i32,
    /// `FILE:LINE:COLUMN` and the fault in words, in order.
    faults: Vec<(String, String)>,
}

fn expected(text: &str) -> Result<Expected> {
    let mut lines = text.lines();
    let exit = lines.next().and_then(|l| l.strip_prefix("exit ")).context("no exit code")?.parse()?;
    let mut all = Expected { exit, faults: Vec::new() };
    let mut place = String::new();
    for line in lines {
        if line.starts_with('/') {
            place = line.to_string();
        } else if let Some(what) = line.strip_prefix("what: ") {
            all.faults.push((place.clone(), what.to_string()));
        }
    }
    Ok(all)
}

fn cases() -> Result<Vec<PathBuf>> {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("helper").join("model/tests/bad");
    let mut all: Vec<PathBuf> = fs::read_dir(&table)
        .with_context(|| format!("listing {}", table.display()))?
        .map(|e| Ok(e?.path()))
        .collect::<Result<_>>()?;
    all.sort();
    Ok(all)
}

/// What must not move: unit files, which units are up, the ruleset. What makes a fault, or a cut, visible may appear.
fn essence(stage: &mut Stage) -> Result<Snapshot> {
    let mut snapshot = super::stage::comparable(&stage.snapshot(Depth::Quick)?);
    let shown = |name: &str| name.contains(" mesh-mode-invalid.service") || name.contains(" mesh-recover.service");
    for part in ["units", "unit-files"] {
        snapshot.parts.entry(part).or_default().retain(|name, _| !shown(name));
    }
    Ok(snapshot)
}

fn bad_input_changes_nothing(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "bad-input")?.show(|stage| {
        stage.run("rm -rf /etc/mesh; mkdir /etc/mesh")?;
        stage.reload()?;
        let before = essence(stage)?;
        let (mut visible, mut wrong) = (0, Vec::new());
        let cases = cases()?;
        for case in &cases {
            let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Err(e) = one(stage, case, &before, &mut visible) {
                wrong.push(format!("{name}: {e:#}"));
            }
            stage.run(
                "rm -rf /etc/mesh; mkdir /etc/mesh; systemctl reset-failed mesh-mode-invalid.service 2>/dev/null; true",
            )?;
            stage.reload()?;
        }
        figure("broken inputs", cases.len());
        figure("of these visible in systemctl --failed", visible);
        figure("wrong", wrong.len());
        ensure!(cases.len() >= 40, "only {} cases", cases.len());
        ensure!(visible > 0, "none is visible in systemctl --failed");
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
}

fn one(stage: &mut Stage, case: &Path, before: &Snapshot, visible: &mut u32) -> Result<()> {
    let expected = expected(&fs::read_to_string(case.join("expected"))?)?;
    let to = stage.site.node.under("/etc/mesh");
    command("cp", ["-rT"]).arg(case).arg(&to).checked()?;
    fs::remove_file(to.join("expected"))?;
    let (place, what) = expected.faults.first().context("no fault is expected")?;
    if !to.join("node.toml").exists() && !place.starts_with("/etc/mesh/node.toml") {
        fs::write(to.join("node.toml"), node_toml::adopting())?;
    }
    let listing = "cd /etc/mesh && find . -type f -exec sha256sum {} + | sort";
    let files = stage.run(listing)?;
    let output = stage.mesh("adopt")?;
    ensure!(output.exit == expected.exit, "exit {}, not {}:\n{}", output.exit, expected.exit, output.all());
    // A verb says the first fault and how many there are; check-config and the unit that runs it say each. A file that is
    // not there has no line, and to adopt it is the same whatever the mode says.
    let missing = place.starts_with("/etc/mesh/node.toml:") && !to.join("node.toml").exists();
    let words =
        if missing { ["/etc/mesh/node.toml", "there is no node.toml"] } else { [place.as_str(), what.as_str()] };
    for word in words {
        ensure!(output.all().contains(word), "adopt does not say {word:?}:\n{}", output.all());
    }
    stage.reload()?;
    unchanged(stage, before).context("unmanaged")?;
    ensure!(stage.run(listing)? == files, "/etc/mesh was changed");

    // The same on a machine that says it is adopted: the generators see it, change nothing, and show it. What is wrong
    // with a pending file is for recovery to say: the generators ask only whether there is one.
    if place.starts_with("/etc/mesh/pending") {
        return Ok(());
    }
    if !to.join("mode").exists() {
        fs::write(to.join("mode"), "adopted\n")?;
    }
    stage.reload()?;
    let link = "test -e /run/systemd/generator/multi-user.target.wants/mesh-mode-invalid.service";
    let linked = stage.site.node.try_run(link, Duration::from_secs(30))?.exit == 0;
    ensure!(linked, "{place} {what}: not shown by the generator");
    // The default target wants it; to start that starts nothing else, since all of it is up.
    let script = "systemctl start multi-user.target; systemctl --failed --no-legend --plain; \
                  systemctl status mesh-mode-invalid.service --no-pager --full --lines=200; true";
    let seen = stage.run(script)?;
    ensure!(seen.lines().any(|l| l.starts_with("mesh-mode-invalid.service")), "not in systemctl --failed:\n{seen}");
    for (place, what) in &expected.faults {
        ensure!(seen.contains(place) && seen.contains(what), "the unit does not say {place} {what:?}:\n{seen}");
    }
    *visible += 1;
    unchanged(stage, before).context("adopted")
}

fn unchanged(stage: &mut Stage, before: &Snapshot) -> Result<()> {
    let differences = before.differences(&essence(stage)?, |_, _| false);
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}
