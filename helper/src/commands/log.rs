//! The verb `log`: the ledger in words, and whether its lines still follow from each other.

use super::Context;
use crate::cli;
use crate::record::ledger::{self, broken_ledger};
use crate::show::{json, text};
use mesh_model::ledger::Entry;
use serde_json::json;

/// Runs `mesh log`. What stands before a bad line is shown, then the bad line is the failure.
pub fn run(ctx: &Context, args: &cli::Log) -> anyhow::Result<()> {
    let (read, broken) = ledger::read(&ctx.layout)?;
    let skip = args.lines.map_or(0, |n| read.entries.len().saturating_sub(n));
    let entries = &read.entries[skip..];
    let failure = broken.map(|b| broken_ledger(&ctx.layout.ledger(), &b));
    if ctx.json {
        // One document on stdout: where the ledger is bad, that is the error document, and `main` prints it.
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        let torn = read.torn.as_ref().map(|t| json!({"line": t.line, "bytes": t.bytes.len(), "why": t.why}));
        let body = json!({"entries": entries, "verified": true, "head": read.head, "torn": torn});
        return text::out(&serde_json::to_string_pretty(&json::document("log", &ctx.head(), &body)?)?);
    }
    for entry in entries {
        text::out(&line(entry))?;
    }
    if let Some(torn) = &read.torn {
        text::err(&format!(
            "line {} is torn ({}); the next verb keeps it beside and cuts it off",
            torn.line, torn.why
        ))?;
    }
    match failure {
        Some(failure) => Err(failure.into()),
        None if read.entries.is_empty() => text::err("nothing is recorded yet"),
        None => Ok(()),
    }
}

/// `2026-11-30 23:55:01 +00:00  adopted  adopted: 12 paths …`, in the zone of the machine.
fn line(entry: &Entry) -> String {
    let time = i64::try_from(entry.at.realtime_us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    let time = time.map_or_else(
        || format!("{} µs", entry.at.realtime_us),
        |t| t.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string(),
    );
    let said = entry.data.get("text").and_then(|t| t.as_str()).unwrap_or("");
    // A ledger is only text: whoever wrote it, it must not reach the terminal as commands.
    let said: String = said.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    format!("{time}  {:5}  {:18} {said}", entry.seq, entry.kind.word().escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_model::ledger::{Kind, NO_PREV, Stamp, Subject};
    use serde_json::{Map, Value};

    #[test]
    fn a_line_says_when_and_what_and_cannot_fool_a_terminal() {
        let at = Stamp { boot_id: "0".repeat(32), realtime_us: 1_700_000_000_000_000, monotonic_us: 1 };
        let data = Map::from_iter([("text".to_owned(), Value::from("mode\x1b[2J"))]);
        let kind = Kind::Unknown("x\ny".into());
        let entry = Entry { seq: 7, at, kind, subject: Subject::Node, prev: NO_PREV.into(), data };
        let line = line(&entry);
        assert!(line.starts_with("2023-11-1") && line.ends_with("mode\u{fffd}[2J"), "{line}");
        assert!(line.contains("      7  x\\ny"), "{line}");
        assert!(line.chars().all(|c| !c.is_control()));
    }
}
