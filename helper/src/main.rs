//! `/usr/bin/mesh`: parse, run, exit code.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = mesh::cli::Cli::parse();
    let _verb = cli.verb;
    ExitCode::SUCCESS
}
