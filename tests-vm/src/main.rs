//! Scenarios on booted machines: `cargo run -p mesh-tests-vm -- [FILTER] [--list]`, as root.
//!
//! Each scenario is run on Debian 13; with `MESH_TEST_SUITES=trixie,bookworm` (or either) on those named.

use anyhow::{Result, bail};
use libtest_mimic::{Arguments, Failed, Trial};
use mesh_tests_vm::{Bed, Suite, scenarios};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One machine at a time: a second one only makes both slow, and the prober's numbers worse.
    arguments.test_threads = Some(1);
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(e) => {
            eprintln!("mesh-tests-vm: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn trials() -> Result<Vec<Trial>> {
    let mut all = Vec::new();
    for suite in suites()? {
        for scenario in scenarios::all() {
            let name = format!("{}::{}", suite.name(), scenario.name);
            all.push(Trial::test(name, move || run(scenario, suite).map_err(|e| Failed::from(format!("{e:#}")))));
        }
    }
    Ok(all)
}

fn run(scenario: scenarios::Scenario, suite: Suite) -> Result<()> {
    let started = std::time::Instant::now();
    eprintln!("\n  {} on {}", scenario.name, suite.name());
    let result = (scenario.run)(&Bed::open()?, suite);
    scenarios::figure("time", format!("{:.1} s", started.elapsed().as_secs_f64()));
    result
}

fn suites() -> Result<Vec<Suite>> {
    let Ok(names) = std::env::var("MESH_TEST_SUITES") else { return Ok(vec![Suite::Trixie]) };
    let mut all = Vec::new();
    for name in names.split(',') {
        match Suite::ALL.iter().find(|s| s.name() == name) {
            Some(suite) => all.push(*suite),
            None => bail!("MESH_TEST_SUITES has {name:?}; known are trixie and bookworm"),
        }
    }
    Ok(all)
}
