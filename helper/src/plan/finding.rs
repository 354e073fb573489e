//! What a plan has to say besides its steps: notes, and what stops it.

use mesh_model::failure::{Failure, Kind};
use serde::{Deserialize, Serialize};

/// Something found while planning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable word for programs.
    pub key: String,
    /// One sentence.
    pub title: String,
    /// `Some` when it stops the verb: the kind of failure.
    pub inhibits: Option<Kind>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Finding {
    /// Something to know.
    pub fn note(key: &str, title: String) -> Finding {
        Finding { key: key.into(), title, inhibits: None, remedy: None }
    }

    /// Something that stops the verb.
    pub fn inhibitor(kind: Kind, key: &str, title: String) -> Finding {
        Finding { key: key.into(), title, inhibits: Some(kind), remedy: None }
    }

    /// Adds what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    /// In one line.
    pub fn words(&self) -> String {
        match &self.remedy {
            Some(r) => format!("{}; {r}", self.title),
            None => self.title.clone(),
        }
    }
}

/// All inhibitors as one failure: the first one's kind, every one in words.
///
/// A port that is held decides the code where there is one, since that is what `69` is for.
pub fn refusal(inhibitors: &[Finding]) -> Failure {
    let kinds: Vec<Kind> = inhibitors.iter().filter_map(|f| f.inhibits).collect();
    let kind =
        if kinds.contains(&Kind::PortHeld) { Kind::PortHeld } else { kinds.first().copied().unwrap_or(Kind::Refused) };
    let what = match inhibitors {
        [one] => one.title.clone(),
        many => many
            .iter()
            .map(|f| format!("\n  - {}", f.words()))
            .fold(format!("{} findings stand in the way; nothing was changed:", many.len()), |all, line| all + &line),
    };
    let failure = Failure::new(kind, what);
    match inhibitors {
        [Finding { remedy: Some(r), .. }] => failure.remedy(r.clone()),
        _ => failure,
    }
}
