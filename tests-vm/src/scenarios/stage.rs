//! A world with the mesh installed, and the questions that every scenario asks of it.

use crate::bed::Bed;
use crate::image::Suite;
use crate::node::{Node, Output};
use crate::process::{Checked, command};
use crate::snapshot::{Depth, Snapshot};
use crate::world::{Site, Size, World, control, node_toml};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the synced files are watched: the slowest of the control's daemons writes every three seconds.
pub const WATCHED: Duration = Duration::from_secs(5);

/// Every control unit, as `SCOPE UNIT`.
fn control_units() -> impl Iterator<Item = String> {
    let system = control::SYSTEM_UNITS.iter().map(|u| format!("system {u}"));
    system.chain(control::USER_UNITS.iter().map(|u| format!("user:{} {u}", control::USER)))
}

/// A booted world with the mesh.
#[derive(Debug)]
pub struct Stage {
    /// The machine with its outside.
    pub site: Site,
}

impl Stage {
    /// Boots a world, installs the mesh on the running machine, and declares it in `node.toml`.
    pub fn new(bed: &Bed, suite: Suite, size: Size, name: &str) -> Result<Stage> {
        Stage::with(bed, suite, size, name, &node_toml::adopting())
    }

    /// As [`Stage::new`], with another `node.toml`.
    pub fn with(bed: &Bed, suite: Suite, size: Size, name: &str, node_toml: &str) -> Result<Stage> {
        let installed = installed()?;
        let site = World { suite, size }.boot(bed, name)?;
        let mut stage = Stage { site };
        stage.site.node.copy_in(&installed, "/")?;
        // As a package does when it is installed.
        stage.run("systemd-tmpfiles --create /usr/lib/tmpfiles.d/mesh.conf")?;
        stage.site.node.put("/etc/mesh/node.toml", node_toml.as_bytes(), 0o644)?;
        stage.reload()?;
        Ok(stage)
    }

    /// Runs a test on the machine; when it fails, its journal and console are kept and named.
    pub fn show(mut self, test: impl FnOnce(&mut Stage) -> Result<()>) -> Result<()> {
        test(&mut self).map_err(|error| match self.site.node.keep_evidence() {
            Ok(place) => error.context(format!("evidence is in {place}")),
            Err(lost) => error.context(format!("no evidence could be kept: {lost:#}")),
        })
    }

    /// `daemon-reload` of PID 1 and of the lingering user's manager.
    pub fn reload(&mut self) -> Result<()> {
        self.run(&format!("systemctl daemon-reload; systemctl --user -M {}@ daemon-reload", control::USER))?;
        Ok(())
    }

    /// Runs a script on the machine that must succeed.
    pub fn run(&mut self, script: &str) -> Result<String> {
        self.site.node.run(script)
    }

    /// Runs the helper, whatever it says.
    pub fn mesh(&mut self, arguments: &str) -> Result<Output> {
        self.site.node.try_run(&format!("exec mesh {arguments}"), Duration::from_secs(120))
    }

    /// Runs the helper, which must exit with `exit` and say each of `words`.
    pub fn mesh_says(&mut self, arguments: &str, exit: i32, words: &[&str]) -> Result<Output> {
        let output = self.mesh(arguments)?;
        ensure!(output.exit == exit, "mesh {arguments}: exit {}, not {exit}:\n{}", output.exit, output.all());
        for word in words {
            ensure!(output.all().contains(word), "mesh {arguments} does not say {word:?}:\n{}", output.all());
        }
        Ok(output)
    }

    /// Adopts as an operator does: by the target. Gives how long it took.
    pub fn adopt(&mut self) -> Result<Duration> {
        let started = Instant::now();
        let output = self.site.node.try_run("systemctl start mesh-adopt.target", Duration::from_secs(120))?;
        if output.exit != 0 {
            let status =
                self.run("systemctl status mesh-adopt.service; journalctl -b -t mesh --no-pager | tail -50")?;
            bail!("the adoption failed:\n{}\n{status}", output.all());
        }
        Ok(started.elapsed())
    }

    /// What is compared.
    pub fn snapshot(&mut self, depth: Depth) -> Result<Snapshot> {
        Snapshot::take(&mut self.site.node, &[control::USER], depth)
    }

    /// The mode in force.
    pub fn mode(&mut self) -> Result<String> {
        Ok(self.run("cat /etc/mesh/mode 2>/dev/null || echo unmanaged")?.trim().to_string())
    }

    /// Times of modification of the 12 synced files and the counts of the control's rounds.
    fn pulse(&mut self) -> Result<String> {
        let files: Vec<&str> = control::SYSTEM_FILES.iter().chain(&control::HOME_FILES).copied().collect();
        self.run(&format!(
            "stat -c '%n %y' {}; for f in {}; do echo $f $(cat $f 2>/dev/null); done",
            files.join(" "),
            control::COUNTS.join(" ")
        ))
    }

    /// Which of the 12 files and of the control's counters still move, watched for `time`.
    pub fn still_moving(&mut self, time: Duration) -> Result<Vec<String>> {
        let before = self.pulse()?;
        std::thread::sleep(time);
        let after = self.pulse()?;
        let moved = before.lines().zip(after.lines()).filter(|(b, a)| a != b);
        Ok(moved.filter_map(|(_, a)| a.split(' ').next()).map(String::from).collect())
    }

    /// Fails unless the control is off: nothing runs, nothing moves.
    pub fn control_is_off(&mut self) -> Result<()> {
        let units = self.snapshot(Depth::Quick)?.part("units");
        for name in control_units() {
            let state = units.get(&name).cloned().unwrap_or_default();
            let up = ["ActiveState=active", "ActiveState=activating", "ActiveState=reloading"];
            ensure!(!up.iter().any(|u| state.contains(u)), "{name} is up: {state}");
        }
        let bare = self.run(&format!("pgrep -f '^{} ' || true", control::BARE))?;
        ensure!(bare.trim().is_empty(), "the bare process runs: {bare}");
        let moving = self.still_moving(WATCHED)?;
        ensure!(moving.is_empty(), "still written: {moving:?}");
        Ok(())
    }

    /// Fails unless everything of the control that ran in `before` is up again and writes.
    pub fn control_is_on(&mut self, before: &Snapshot) -> Result<()> {
        let (was, is) = (before.part("units"), self.snapshot(Depth::Quick)?.part("units"));
        for name in control_units() {
            let state = |units: &BTreeMap<String, String>| units.get(&name).and_then(|s| field(s, "ActiveState"));
            // What a timer starts for a moment may be caught at it.
            let moment = ["fleet-policy.service", "fleet-beat.service"].iter().any(|m| name.ends_with(m));
            ensure!(moment || state(&was) == state(&is), "{name} was {:?} and is {:?}", state(&was), state(&is));
        }
        let moving = self.still_moving(WATCHED)?;
        for count in [control::COUNTS[0], control::COUNTS[4]] {
            ensure!(moving.iter().any(|m| m == count), "{count} stands still");
        }
        Ok(())
    }
}

/// One `KEY=VALUE` of a unit's line.
pub fn field(line: &str, key: &str) -> Option<String> {
    line.split(' ').find_map(|w| w.strip_prefix(key)?.strip_prefix('=')).map(String::from)
}

/// What serves: every unit up at `before` that is neither control nor of the mesh nor the test's, with the fields that
/// tell a restart; and every container.
pub fn serving(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let control: Vec<String> = control_units().collect();
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (name, line) in snapshot.part("units") {
        let ours = name.contains(" mesh-") || name.contains(".scope") || name.contains(".mount");
        let is_service = name.ends_with(".service") && field(&line, "SubState").as_deref() == Some("running");
        if is_service && !ours && !control.contains(&name) && !passing(&name) {
            let fields = ["MainPID", "ExecMainStartTimestampMonotonic", "InvocationID", "NRestarts"];
            all.insert(name, fields.map(|f| field(&line, f).unwrap_or_default()).join(" "));
        }
    }
    all.extend(snapshot.part("containers"));
    all
}

/// What comes and goes because the test asks, by the bus.
fn passing(name: &str) -> bool {
    ["systemd-hostnamed.", "systemd-timedated.", "polkit."].iter().any(|p| name.contains(p))
}

/// How an undone adoption may differ from the machine before it: nothing but what DESIGN §6.5 leaves out. Gives both
/// snapshots with that taken away.
pub fn comparable(snapshot: &Snapshot) -> Snapshot {
    let control: Vec<String> = control_units().collect();
    let synced: Vec<&str> = control::SYSTEM_FILES.iter().chain(&control::HOME_FILES).copied().collect();
    let mut parts = snapshot.parts.clone();
    parts.remove("processes");
    if let Some(units) = parts.get_mut("units") {
        units.retain(|name, line| {
            // A unit that somebody looked at stays in PID 1's memory for a while; its file is compared with the files.
            let unused = field(line, "ActiveState").as_deref() == Some("inactive") && !control.contains(name);
            !unused
                && !name.contains(".scope")
                && !name.contains(" mesh-test")
                && !passing(name)
                && !name.contains(" run-")
        });
        for (name, line) in units.iter_mut().filter(|(name, _)| control.contains(name)) {
            // Control was started again, on purpose; what it is must be the same, not which process it is.
            let moment = name.ends_with("fleet-policy.service") || name.ends_with("fleet-beat.service");
            let keep = ["LoadState", "UnitFileState", "FragmentPath", "DropInPaths", "ActiveState", "SubState"];
            // A timer is `running` for the moment in which what it started runs.
            let keep = match () {
                () if moment => &keep[..4],
                () if name.ends_with(".timer") => &keep[..5],
                () => &keep[..],
            };
            *line = keep
                .iter()
                .map(|k| format!("{k}={}", field(line, k).unwrap_or_default()))
                .collect::<Vec<_>>()
                .join(" ");
        }
    }
    if let Some(files) = parts.get_mut("files") {
        for (_, line) in files.iter_mut().filter(|(path, _)| synced.contains(&path.as_str())) {
            // The control writes these again; compared by content, owner and mode.
            *line = line.split(' ').filter(|w| !w.starts_with("mtime=")).collect::<Vec<_>>().join(" ");
        }
    }
    Snapshot { parts }
}

/// The built mesh as a distribution would install it, made once a run.
pub fn installed() -> Result<PathBuf> {
    static MADE: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = made.as_ref() {
        return Ok(place.clone());
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is in no workspace")?;
    let place = workspace.join("target/installed");
    command("rm", ["-rf"]).arg(&place).checked()?;
    let destination = format!("DESTDIR={}", place.display());
    command("make", ["-s", "-C"]).arg(workspace).args(["install", "PROFILE=ci", &destination]).checked()?;
    *made = Some(place.clone());
    Ok(place)
}
