//! What a verb says when it does not do what was asked: one kind, one exit code, and what to do next.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of failure, each with its exit code (DESIGN §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// It failed; the state is as before, or the text says what it is.
    Failed,
    /// The command line, or a flow in it, is malformed.
    Usage,
    /// Refused; nothing was changed.
    Refused,
    /// The caller may not do this.
    NoPermission,
    /// It was applied and taken back.
    TakenBack,
    /// A ruleset or dump is not understood.
    NotUnderstood,
    /// A port is held.
    PortHeld,
    /// Another verb is at work, or the machine moved since the plan.
    Busy,
    /// A mode, node or manifest file is wrong.
    Config,
}

impl Kind {
    /// The exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Failed => 1,
            Kind::Usage => 2,
            Kind::Refused => 3,
            Kind::NoPermission => 4,
            Kind::TakenBack => 5,
            Kind::NotUnderstood => 65,
            Kind::PortHeld => 69,
            Kind::Busy => 75,
            Kind::Config => 78,
        }
    }

    /// The word in `mesh.error/1`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Failed => "failed",
            Kind::Usage => "usage",
            Kind::Refused => "refused",
            Kind::NoPermission => "no-permission",
            Kind::TakenBack => "taken-back",
            Kind::NotUnderstood => "not-understood",
            Kind::PortHeld => "port-held",
            Kind::Busy => "busy",
            Kind::Config => "config",
        }
    }
}

/// A failure as the operator sees it: `what` went wrong, `place` (file:line:column, rule, unit or holder), `remedy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Failure {
    /// Decides the exit code.
    pub kind: Kind,
    /// One sentence, no full stop: what is wrong, naming the thing.
    pub what: String,
    /// Where, when there is a place.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// What to do next, as a sentence or a line to type.
    pub remedy: Option<String>,
}

impl Failure {
    /// A failure without place and remedy; add them with [`Failure::at`] and [`Failure::remedy`].
    pub fn new(kind: Kind, what: impl Into<String>) -> Failure {
        Failure { kind, what: what.into(), place: None, remedy: None }
    }

    /// Shorthand for [`Kind::Refused`].
    pub fn refused(what: impl Into<String>) -> Failure {
        Failure::new(Kind::Refused, what)
    }

    /// Names the place.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Failure {
        self.place = Some(place.into());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Failure {
        self.remedy = Some(remedy.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}
