//! One fault in a file that somebody wrote: where it is, what stands there, and what would be right.

use crate::failure::{Failure, Kind};
use serde::Serialize;
use std::fmt;

/// A fault in a mode, node, manifest or state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The file as the operator knows it, for example `/etc/mesh/node.toml`.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The key or value at fault, as written; never the value of a secret.
    pub value: String,
    /// What is wrong, one clause.
    pub what: String,
    /// What would be right.
    pub remedy: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}; {}", self.file, self.line, self.column, self.what, self.remedy)
    }
}

/// All faults found in one reading, in file order; never empty when it is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            d.fmt(f)?;
        }
        Ok(())
    }
}

impl From<Diagnostics> for Failure {
    /// The first fault, with the number of the others; exit code 78.
    fn from(all: Diagnostics) -> Failure {
        let Some(first) = all.0.first() else {
            return Failure::new(Kind::Config, "a file is invalid");
        };
        let what = match all.0.len() - 1 {
            0 => first.what.clone(),
            n => format!("{} (and {n} more: mesh cat-config lists them)", first.what),
        };
        Failure::new(Kind::Config, what)
            .at(format!("{}:{}:{}", first.file, first.line, first.column))
            .remedy(first.remedy.clone())
    }
}
