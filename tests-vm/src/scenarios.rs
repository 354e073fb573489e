//! What an operator sees on a machine in use, one scenario a case: each boots its own machine and prints its figures.
//!
//! | file | question it answers |
//! | --- | --- |
//! | `stage` | how a world with the mesh installed is put up |
//! | `serving` | do the services notice (adoption under the prober, dry run, twice, reboot) |
//! | `undoing` | is everything as it was (release, the mode file deleted by hand) |
//! | `openings` | are openings in force, and come back |
//! | `refusals` | what is refused, by name and code, with nothing changed |
//! | `interrupted` | what a kill, a crash and a cut leave |
//! | `bad_input` | what each broken file gives on a machine |

mod bad_input;
mod interrupted;
mod openings;
mod refusals;
mod serving;
pub mod stage;
mod undoing;

use crate::bed::Bed;
use crate::image::Suite;
use anyhow::Result;

/// One case.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name, as given on the command line.
    pub name: &'static str,
    /// What is shown.
    pub run: fn(&Bed, Suite) -> Result<()>,
}

/// All of them, the telling ones first.
pub fn all() -> Vec<Scenario> {
    [serving::CASES, undoing::CASES, openings::CASES, refusals::CASES, interrupted::CASES, bad_input::CASES].concat()
}

/// A figure of the running scenario.
pub fn figure(what: &str, value: impl std::fmt::Display) {
    eprintln!("    {what}: {value}");
}
