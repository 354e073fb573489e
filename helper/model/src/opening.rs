//! What the mesh keeps open through the found firewall: a flow, for whom, and the mark that says so.

use crate::flow::{Flow, Mark};
use serde::{Deserialize, Serialize};

/// One opening. Two with the same module and flow are the same opening.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// For whom; `operator` for one typed by hand.
    pub module: String,
    /// What.
    pub flow: Flow,
}

impl Opening {
    /// The mark on each of its rules.
    pub fn mark(&self) -> Mark {
        Mark::of(&self.module, &self.flow)
    }
}

/// `/etc/mesh/openings.json`: what boot and the watcher keep open; written by the helper only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpeningsFile {
    /// `1`.
    pub schema: u32,
    /// Sorted, without doubles.
    pub openings: Vec<Opening>,
}

/// The schema number of [`OpeningsFile`].
pub const OPENINGS_SCHEMA: u32 = 1;
