//! `mesh-generator`: derives the node's units from one mode file, at boot and at each `daemon-reload`, for PID 1 and for
//! users' managers.
//!
//! ```text
//! environment ─→ read (files) ─→ Inputs ─→ generate (pure) ─→ UnitTree ─→ write
//! ```
//!
//! It asks nobody (no bus, no subprocess, no `/var`), and it never fails a boot: what is wrong is said to the kernel's
//! log and by `mesh-mode-invalid.service`, and the machine is left as it was found.
#![forbid(unsafe_code)]

mod environment;
mod generate;
mod log;
mod module_unit;
mod read;
mod tree;
mod unit_text;
mod write;

use environment::Environment;
use log::Line;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The initrd has another /etc; what boots after the switch of roots generates anew.
    if std::env::var_os("SYSTEMD_IN_INITRD").is_some_and(|v| v == "1") {
        return ExitCode::SUCCESS;
    }
    let Some(environment) = Environment::of_process() else {
        log::say(&[Line::error(environment::USAGE)], false);
        return ExitCode::from(2);
    };
    let (inputs, mut lines) = read::read(&environment);
    let (tree, warnings) = generate::generate(&inputs);
    lines.extend(warnings.into_iter().map(Line::warning));
    if environment.dry_run {
        if write!(std::io::stdout(), "{tree}").is_err() {
            return ExitCode::FAILURE;
        }
    } else if let Some((normal, early)) = environment.folders.as_ref().filter(|_| !tree.is_empty()) {
        if let Err(e) = write::write_tree(&tree, normal, early) {
            lines.push(Line::error(e));
        }
    }
    log::say(&lines, environment.kernel_log());
    // Not by returning: giving back piece by piece what the kernel takes back whole is a tenth of the time.
    std::process::exit(0)
}
