//! The table of broken files (`helper/model/tests/bad`) on a machine: each gives its error and exit code, is seen in
//! `systemctl --failed` where it is the generators' to see, and changes nothing.

use super::stage::Stage;
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::node::Node;
use crate::process::{Checked, command};
use crate::snapshot::{Depth, Snapshot};
use crate::world::Size;
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

/// What must not move: unit files, which units are up, the ruleset.
fn essence(stage: &mut Stage) -> Result<Snapshot> {
    let mut snapshot = super::stage::comparable(&stage.snapshot(Depth::Quick)?);
    if let Some(units) = snapshot.parts.get_mut("units") {
        // The unit that makes the fault visible is the one thing that may appear.
        units.retain(|name, _| !name.contains(" mesh-mode-invalid.service"));
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
    let files = stage.run("cd /etc/mesh && find . -type f -exec sha256sum {} + | sort")?;
    let output = stage.mesh("adopt")?;
    ensure!(output.exit == expected.exit, "exit {}, not {}:\n{}", output.exit, expected.exit, output.all());
    for (place, what) in &expected.faults {
        ensure!(output.all().contains(what), "{place} {what:?} is not said:\n{}", output.all());
    }
    stage.reload()?;
    // What pulls the unit in is the default target; starting that starts nothing else that is up already.
    let script = "test -e /run/systemd/generator/multi-user.target.wants/mesh-mode-invalid.service || exit 9; \
                  systemctl start mesh-mode-invalid.service; systemctl --failed --no-legend --plain; \
                  systemctl status mesh-mode-invalid.service --no-pager; true";
    let seen = stage.site.node.try_run(script, Duration::from_secs(30))?;
    if seen.exit == 0 {
        ensure!(seen.out.contains("mesh-mode-invalid.service"), "not in systemctl --failed:\n{}", seen.all());
        *visible += 1;
    }
    let after = essence(stage)?;
    let differences = before.differences(&after, |_, _| false);
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    let now = stage.run("cd /etc/mesh && find . -type f -exec sha256sum {} + | sort")?;
    ensure!(files == now, "/etc/mesh was changed:\n{files}\n{now}");
    Ok(())
}
