//! `/etc/mesh/pending`: what a verb is in the middle of, so that the next boot can finish or undo it.

use crate::diagnostic::{Diagnostic, Diagnostics};
use serde::{Deserialize, Serialize};

/// The verbs that leave a pending file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PendingVerb {
    /// `mesh adopt`.
    Adopt,
    /// `mesh release`.
    Release,
}

/// The whole file, JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pending {
    /// [`PENDING_SCHEMA`].
    pub schema: u32,
    /// What was begun.
    pub verb: PendingVerb,
    /// The boot that it was begun in (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// The ledger's last sequence number before it began.
    pub ledger_seq: u64,
    /// When, microseconds since the epoch.
    pub realtime_us: u64,
    /// The plan, whole, as the verb understands it.
    pub plan: serde_json::Value,
}

/// The schema number of [`Pending`].
pub const PENDING_SCHEMA: u32 = 1;

impl Pending {
    /// Reads the file strictly; `file` is its path as shown to people.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Pending, Diagnostics> {
        let fault = |line: usize, column: usize, value: String, what: String, remedy: &str| {
            let (line, column, remedy) = (line.max(1), column.max(1), remedy.to_string());
            Diagnostics(vec![Diagnostic { file: file.into(), line, column, value, what, remedy }])
        };
        let by_hand = "it is written by mesh alone: run mesh recover with the release that wrote it, or see mesh log";
        let pending: Pending = serde_json::from_slice(bytes).map_err(|e| {
            let text = e.to_string();
            // serde_json repeats the place in its message; the diagnostic has it already.
            let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_string();
            fault(e.line(), e.column(), String::new(), what, by_hand)
        })?;
        if pending.schema == PENDING_SCHEMA {
            Ok(pending)
        } else {
            let what = format!("schema {} is not known to this release", pending.schema);
            Err(fault(1, 1, pending.schema.to_string(), what, by_hand))
        }
    }

    /// The file's text: one JSON document and a newline; the same value has the same text.
    pub fn render(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .unwrap_or_else(|e| unreachable!("a map with text keys and no custom serializer always becomes JSON: {e}"));
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is() {
        let pending = Pending {
            schema: 1,
            verb: PendingVerb::Adopt,
            boot_id: "b".into(),
            ledger_seq: 7,
            realtime_us: 9,
            plan: serde_json::json!({"steps": [1, {"z": 1, "a": 2}]}),
        };
        let text = pending.render();
        assert_eq!(Pending::parse("/etc/mesh/pending", text.as_bytes()), Ok(pending));
        for (bad, line, what) in [
            ("", 1, "EOF"),
            ("{}\n", 1, "missing field"),
            (&text.replace("\"adopt\"", "\"flip\""), 3, "unknown variant"),
            (&text.replace("\"verb\"", "\"verv\""), 3, "unknown field"),
            (&text.replace("\"schema\": 1", "\"schema\": 2"), 1, "schema 2"),
            (&text[..20], 3, "EOF"),
        ] {
            let e = Pending::parse("/etc/mesh/pending", bad.as_bytes()).unwrap_err();
            assert!(e.0[0].what.contains(what), "{bad:?}: {e}");
            assert!(e.0[0].line.abs_diff(line) <= 1, "{bad:?}: {e}");
        }
    }
}
