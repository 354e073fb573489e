//! `make check-long`: every scenario on both releases, several times, and what came out as `tests-vm/RESULTS.md`.
//!
//! Resumable: what is finished is kept in the cache under the commit it was run on, and not run again. The document is
//! written after each run, so that a campaign that was stopped has said what it saw.

use anyhow::{Context, Result, ensure};
use mesh_tests_vm::process::{Checked, command};
use mesh_tests_vm::{Bed, Suite, scenarios};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// How often each is run, unless `MESH_TEST_REPETITIONS` says otherwise.
const REPETITIONS: u32 = 3;

/// One finished run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Outcome {
    suite: String,
    scenario: String,
    repetition: u32,
    passed: bool,
    seconds: f64,
    /// What it printed.
    figures: Vec<String>,
}

fn main() -> ExitCode {
    match campaign() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("mesh-campaign: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn campaign() -> Result<bool> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = |words: &[&str]| Command::new("git").arg("-C").arg(here).args(words).checked();
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_string();
    let changed = git(&["status", "--porcelain", "--", ":!tests-vm/RESULTS.md"])?;
    ensure!(changed.trim().is_empty(), "results are of a commit; commit these first:\n{changed}");
    let folder = Bed::open()?.path("campaign");
    fs::create_dir_all(&folder)?;
    let kept = folder.join(format!("{commit}.jsonl"));
    let mut outcomes = read(&kept)?;
    command("cargo", ["build", "--locked", "--quiet", "--package", "mesh-tests-vm"]).current_dir(here).checked()?;
    let runner = std::env::current_exe()?.with_file_name("mesh-tests-vm");
    let repetitions = match std::env::var("MESH_TEST_REPETITIONS") {
        Ok(text) => text.parse().with_context(|| format!("MESH_TEST_REPETITIONS is {text:?}, not a number"))?,
        Err(_) => REPETITIONS,
    };
    let planned = scenarios::all().len() * Suite::ALL.len() * usize::try_from(repetitions)?;
    for repetition in 1..=repetitions {
        for suite in Suite::ALL {
            for scenario in scenarios::all() {
                let done = outcomes
                    .iter()
                    .any(|o| o.repetition == repetition && o.suite == suite.name() && o.scenario == scenario.name);
                if done {
                    continue;
                }
                let outcome = one(&runner, suite, scenario.name, repetition)?;
                eprintln!("{} {} {repetition}: {}", outcome.suite, outcome.scenario, outcome.passed);
                let mut file = fs::OpenOptions::new().create(true).append(true).open(&kept)?;
                writeln!(file, "{}", serde_json::to_string(&outcome)?)?;
                outcomes.push(outcome);
                let date = command("date", ["--utc", "+%Y-%m-%d %H:%M UTC"]).checked()?;
                fs::write(here.join("RESULTS.md"), results(&outcomes, planned, &commit, date.trim()))?;
            }
        }
    }
    Ok(outcomes.iter().all(|o| o.passed))
}

fn read(kept: &Path) -> Result<Vec<Outcome>> {
    let text = match fs::read_to_string(kept) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e).with_context(|| format!("reading {}", kept.display())),
    };
    // A run that was killed while writing leaves half a line: that scenario is run again.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn one(runner: &Path, suite: Suite, scenario: &str, repetition: u32) -> Result<Outcome> {
    let started = Instant::now();
    let output = Command::new(runner)
        .args(["--exact", &format!("{}::{scenario}", suite.name())])
        .env("MESH_TEST_SUITES", suite.name())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {}", runner.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut figures: Vec<String> = said.lines().filter_map(|l| l.strip_prefix("    ")).map(String::from).collect();
    if !output.status.success() {
        figures.extend(String::from_utf8_lossy(&output.stdout).lines().map(String::from));
    }
    Ok(Outcome {
        suite: suite.name().into(),
        scenario: scenario.into(),
        repetition,
        passed: output.status.success(),
        seconds: started.elapsed().as_secs_f64(),
        figures,
    })
}

/// The whole document.
fn results(outcomes: &[Outcome], planned: usize, commit: &str, date: &str) -> String {
    let passed = outcomes.iter().filter(|o| o.passed).count();
    let mut text = format!(
        "# Results of `make check-long`\n\nCommit {commit}, {date}: {} of {planned} runs done, {passed} of them passed. \
         The command is `sudo make check-long`.\n\n\
         | release | scenario | passed | seconds |\n| --- | --- | --- | --- |\n",
        outcomes.len()
    );
    let mut rows: BTreeMap<(&str, &str), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        rows.entry((&outcome.suite, &outcome.scenario)).or_default().push(outcome);
    }
    let mut details = String::new();
    for ((suite, scenario), runs) in &rows {
        let good = runs.iter().filter(|o| o.passed).count();
        let longest = runs.iter().map(|o| o.seconds).fold(0.0, f64::max);
        let row = writeln!(text, "| {suite} | {scenario} | {good} of {} | {longest:.0} |", runs.len());
        // The first that failed, else the last.
        let shown = runs.iter().find(|o| !o.passed).or(runs.last());
        let shown = shown.map(|o| o.figures.join("\n")).unwrap_or_default();
        let detail = write!(details, "\n## {scenario}, {suite}\n\n```\n{shown}\n```\n");
        if row.is_err() || detail.is_err() {
            break;
        }
    }
    text + &details
}
