//! The ledger as a value: one JSON object a line, each line bound to the one before (DESIGN §11).
//!
//! Here is what a line is, how a whole file is read, and what is wrong with it; the writing is
//! `mesh::record::ledger`'s. A line ends in `"sum"`, the SHA-256 over its own bytes before `,"sum"`, and holds in
//! `"prev"` the SHA-256 of the whole line before it (64 zeros in the first). `prev` finds a line that was changed once
//! another follows; `sum` finds it in the last line too, before the next append would bind it in. Both can be had with
//! `sha256sum`. They are against accidents and torn writes: who is root can write a whole new ledger.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt;

/// The schema number of an entry.
pub const SCHEMA: u32 = 1;

/// `prev` of the first line.
pub const NO_PREV: &str = "0000000000000000000000000000000000000000000000000000000000000000";

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)*) => {
        /// What an entry tells.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum Kind {
            $($(#[$doc])* $variant,)*
            /// A kind that this version does not know: read and shown, never written.
            Unknown(String),
        }

        impl Kind {
            /// All kinds that this version writes.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The word in the ledger and in `MESH_EVENT`.
            pub fn word(&self) -> &str {
                match self {
                    $(Kind::$variant => $word,)*
                    Kind::Unknown(word) => word,
                }
            }
        }

        impl From<String> for Kind {
            fn from(word: String) -> Kind {
                match word.as_str() {
                    $($word => Kind::$variant,)*
                    _ => Kind::Unknown(word),
                }
            }
        }
    };
}

kinds! {
    /// An adoption begins; the plan's digest is known.
    AdoptBegun = "adopt-begun",
    /// The machine is adopted and was verified.
    Adopted = "adopted",
    /// An adoption failed and what it had done was undone.
    AdoptUndone = "adopt-undone",
    /// A release begins.
    ReleaseBegun = "release-begun",
    /// The machine is as it was found.
    Released = "released",
    /// What a crash left in the middle was finished or undone.
    Recovered = "recovered",
    /// A verb failed; the text says what state it left.
    VerbFailed = "verb-failed",
    /// The mode file was written or removed.
    ModeWritten = "mode-written",
    /// A mode, node or manifest file is invalid and the machine was left as found.
    ConfigInvalid = "config-invalid",
    /// A path was taken into custody: its first sight.
    CustodyTaken = "custody-taken",
    /// A path in custody was changed by others; the new version is kept too.
    CustodyChanged = "custody-changed",
    /// A path could not be taken into custody.
    CustodyRefused = "custody-refused",
    /// A path was written back from custody.
    CustodyRestored = "custody-restored",
    /// A flow was opened through the found firewall.
    OpeningOpened = "opening-opened",
    /// An opening's rules were removed.
    OpeningClosed = "opening-closed",
    /// An opening was missing and is in force again.
    OpeningRestored = "opening-restored",
    /// An opening was applied, could not be proven, and was taken back.
    TakenBack = "taken-back",
    /// A unit of the control was stopped.
    UnitStopped = "unit-stopped",
    /// A unit of the control was started again.
    UnitStarted = "unit-started",
    /// A unit of the control was found running while it must not be.
    ControlAlive = "control-alive",
    /// Cron entries of the control were taken out of force.
    CronHeld = "cron-held",
    /// Cron entries of the control are in force again.
    CronReleased = "cron-released",
    /// A bare process of the control was ended.
    ProcessEnded = "process-ended",
    /// The ledger's last line was torn and was cut off, kept beside.
    LedgerTorn = "ledger-torn",
    /// The ledger could not be written: this event stands in the journal only.
    LedgerAbsent = "ledger-absent",
}

impl From<Kind> for String {
    fn from(kind: Kind) -> String {
        kind.word().to_owned()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What an entry is about, at most one of three.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The node as a whole.
    Node,
    /// A flip, by its id.
    Flip(String),
    /// An opening, by its mark.
    Opening(String),
    /// A module, by its name.
    Module(String),
}

/// When, by the clocks of the boot it happened in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// `/proc/sys/kernel/random/boot_id`, 32 hex digits without dashes.
    pub boot_id: String,
    /// Microseconds since 1970.
    pub realtime_us: u64,
    /// Microseconds since boot (`CLOCK_MONOTONIC`).
    pub monotonic_us: u64,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct Entry {
    /// From 1, without gaps.
    pub seq: u64,
    /// When.
    pub at: Stamp,
    /// What.
    pub kind: Kind,
    /// About what.
    pub subject: Subject,
    /// SHA-256 of the line before, 64 lower-case hex digits.
    pub prev: String,
    /// What else is to be known; no content of files.
    pub data: Map<String, Value>,
}

/// An entry as it is written, without `sum`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    schema: u32,
    seq: u64,
    boot_id: String,
    realtime_us: u64,
    monotonic_us: u64,
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opening: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    prev: String,
    data: Map<String, Value>,
}

impl From<Entry> for Raw {
    fn from(e: Entry) -> Raw {
        let (flip, opening, module) = match e.subject {
            Subject::Node => (None, None, None),
            Subject::Flip(id) => (Some(id), None, None),
            Subject::Opening(mark) => (None, Some(mark), None),
            Subject::Module(name) => (None, None, Some(name)),
        };
        Raw {
            schema: SCHEMA,
            seq: e.seq,
            boot_id: e.at.boot_id,
            realtime_us: e.at.realtime_us,
            monotonic_us: e.at.monotonic_us,
            kind: e.kind,
            flip,
            opening,
            module,
            prev: e.prev,
            data: e.data,
        }
    }
}

impl TryFrom<Raw> for Entry {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Entry, String> {
        if raw.schema != SCHEMA {
            return Err(format!("schema {} is not known to this version, which reads {SCHEMA}", raw.schema));
        }
        let subject = match (raw.flip, raw.opening, raw.module) {
            (None, None, None) => Subject::Node,
            (Some(id), None, None) => Subject::Flip(id),
            (None, Some(mark), None) => Subject::Opening(mark),
            (None, None, Some(name)) => Subject::Module(name),
            _ => return Err("more than one of flip, opening and module".into()),
        };
        Ok(Entry {
            seq: raw.seq,
            at: Stamp { boot_id: raw.boot_id, realtime_us: raw.realtime_us, monotonic_us: raw.monotonic_us },
            kind: raw.kind,
            subject,
            prev: raw.prev,
            data: raw.data,
        })
    }
}

const SUM_KEY: &str = ",\"sum\":\"";

impl Entry {
    /// The line, without its newline.
    pub fn line(&self) -> Result<String, serde_json::Error> {
        let mut line = serde_json::to_string(self)?;
        line.pop();
        let sum = hex_sha256(line.as_bytes());
        Ok(format!("{line}{SUM_KEY}{sum}\"}}"))
    }

    /// Reads one line without its newline; the error says what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Entry, String> {
        Entry::decode(Entry::whole(line)?)
    }

    /// The object of a line whose own checksum holds, without its end. A line that fails here was cut or changed.
    fn whole(line: &[u8]) -> Result<&str, String> {
        let line = std::str::from_utf8(line).map_err(|e| format!("it is not UTF-8 from byte {}", e.valid_up_to()))?;
        let (body, sum) = line
            .strip_suffix("\"}")
            .and_then(|l| l.split_at_checked(l.len().checked_sub(64)?))
            .and_then(|(body, sum)| Some((body.strip_suffix(SUM_KEY)?, sum)))
            .ok_or_else(|| "it does not end in its own checksum".to_owned())?;
        if hex_sha256(body.as_bytes()) != sum {
            return Err("its own checksum does not match: it was changed after it was written".into());
        }
        Ok(body)
    }

    /// What a whole line says. One that fails here was written like this, by another version.
    fn decode(body: &str) -> Result<Entry, String> {
        serde_json::from_str(&format!("{body}}}")).map_err(|e| e.to_string())
    }
}

/// A whole ledger, read and verified.
#[derive(Debug, Clone, PartialEq)]
pub struct Ledger {
    /// All entries, oldest first.
    pub entries: Vec<Entry>,
    /// SHA-256 of the last whole line: `prev` of the next.
    pub head: String,
    /// How many bytes the whole lines take.
    pub whole: usize,
    /// The torn last line, if there is one.
    pub torn: Option<Torn>,
}

/// A last line that was not written whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// Its number, from 1.
    pub line: usize,
    /// Its bytes, as they are.
    pub bytes: Vec<u8>,
    /// What is wrong with it.
    pub why: String,
}

/// A bad line that is not the last: what follows it cannot be trusted to follow it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the ledger is bad: {why}")]
pub struct Broken {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl Ledger {
    /// The sequence number of the next entry.
    pub fn next_seq(&self) -> u64 {
        self.entries.last().map_or(1, |e| e.seq + 1)
    }
}

/// Reads and verifies a whole file. Only the last line may be torn: one without a newline, or one whose checksum is
/// wrong (a cut in an append can leave any mix of its blocks). A last line that is whole but does not follow from the
/// one before is broken, not torn: no power cut writes that.
pub fn read(file: &[u8]) -> Result<Ledger, Broken> {
    let (entries, broken) = read_until_broken(file);
    match broken {
        None => Ok(entries),
        Some(broken) => Err(broken),
    }
}

/// Like [`read`], with what stands before the bad line; for showing, never for appending.
pub fn read_until_broken(file: &[u8]) -> (Ledger, Option<Broken>) {
    let mut ledger = Ledger { entries: Vec::new(), head: NO_PREV.to_owned(), whole: 0, torn: None };
    let mut rest = file;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let (line, after, ended) = match rest.iter().position(|b| *b == b'\n') {
            Some(at) => (&rest[..at], &rest[at + 1..], true),
            None => (rest, &rest[rest.len()..], false),
        };
        let whole = if ended { Entry::whole(line) } else { Err("it does not end in a newline".into()) };
        match whole {
            Ok(body) => {
                let entry = match Entry::decode(body) {
                    Ok(entry) => entry,
                    Err(why) => return (ledger, Some(Broken { line: number, why })),
                };
                if entry.seq != ledger.next_seq() {
                    let why = format!("it has seq {} where {} must follow", entry.seq, ledger.next_seq());
                    return (ledger, Some(Broken { line: number, why }));
                }
                if entry.prev != ledger.head {
                    let why = "it was not written after the line that stands before it".into();
                    return (ledger, Some(Broken { line: number, why }));
                }
                ledger.head = hex_sha256(line);
                ledger.whole += line.len() + 1;
                ledger.entries.push(entry);
            }
            Err(why) if after.is_empty() => {
                ledger.torn = Some(Torn { line: number, bytes: rest.to_vec(), why });
            }
            Err(why) => return (ledger, Some(Broken { line: number, why })),
        }
        rest = after;
    }
    (ledger, None)
}

/// SHA-256 as 64 lower-case hex digits.
pub fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn entry(seq: u64, prev: &str, kind: Kind, subject: Subject, text: &str) -> Entry {
        let Value::Object(data) = json!({"text": text, "n": seq}) else { unreachable!("an object") };
        let at = Stamp { boot_id: "0".repeat(32), realtime_us: 1_700_000_000_000_000 + seq, monotonic_us: seq };
        Entry { seq, at, kind, subject, prev: prev.to_owned(), data }
    }

    /// A valid file of `texts.len()` entries, and its lines.
    fn file(texts: &[String]) -> (Vec<u8>, Vec<String>) {
        let (mut bytes, mut lines, mut head) = (Vec::new(), Vec::new(), NO_PREV.to_owned());
        for (i, text) in texts.iter().enumerate() {
            let kind = Kind::ALL[i % Kind::ALL.len()].clone();
            let subject = match i % 4 {
                0 => Subject::Node,
                1 => Subject::Flip("f1".into()),
                2 => Subject::Opening("mesh:v1:ff41f7ffb4abe626".into()),
                _ => Subject::Module("registry".into()),
            };
            let line = entry(i as u64 + 1, &head, kind, subject, text).line().unwrap();
            head = hex_sha256(line.as_bytes());
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
            lines.push(line);
        }
        (bytes, lines)
    }

    #[test]
    fn a_line_is_the_contract_s() {
        let e = entry(1, NO_PREV, Kind::OpeningOpened, Subject::Opening("mesh:v1:ff41f7ffb4abe626".into()), "x");
        let line = e.line().unwrap();
        let (body, _) = line.split_once(",\"sum\"").unwrap();
        assert_eq!(
            body,
            format!(
                "{{\"schema\":1,\"seq\":1,\"boot_id\":\"{}\",\"realtime_us\":1700000000000001,\"monotonic_us\":1,\
                 \"kind\":\"opening-opened\",\"opening\":\"mesh:v1:ff41f7ffb4abe626\",\"prev\":\"{NO_PREV}\",\
                 \"data\":{{\"n\":1,\"text\":\"x\"}}",
                "0".repeat(32)
            )
        );
        assert_eq!(Entry::parse(line.as_bytes()).unwrap(), e);
    }

    #[test]
    fn kinds_have_words_of_their_own_and_unknown_ones_are_kept() {
        for kind in Kind::ALL {
            assert_eq!(&Kind::from(kind.word().to_owned()), kind);
            assert!(kind.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{kind}");
        }
        let e = entry(1, NO_PREV, Kind::Unknown("of-tomorrow".into()), Subject::Node, "");
        assert_eq!(Entry::parse(e.line().unwrap().as_bytes()).unwrap(), e);
    }

    #[test]
    fn bad_lines_are_named_by_number() {
        let (bytes, lines) = file(&["a".into(), "b".into(), "c".into()]);
        assert_eq!(read(&bytes).unwrap().entries.len(), 3);
        assert_eq!(read(b"").unwrap(), Ledger { entries: vec![], head: NO_PREV.into(), whole: 0, torn: None });
        let join = |l: &[&str]| l.iter().map(|l| format!("{l}\n")).collect::<String>().into_bytes();
        let [a, b, c] = [&lines[0], &lines[1], &lines[2]].map(String::as_str);
        for (bad, line, why) in [
            (join(&[a, c]), 2, "seq 3 where 2"),
            (join(&[b, c]), 1, "seq 2 where 1"),
            (join(&[a, b, b]), 3, "seq 2 where 3"),
            (join(&[a, "", c]), 2, "checksum"),
            (join(&[a, &b.replace("\"b\"", "\"B\""), c]), 2, "changed after"),
        ] {
            let e = read(&bad).unwrap_err();
            assert_eq!(e.line, line, "{e}");
            assert!(e.why.contains(why), "{e}");
        }
        // Whole by its own checksum, but of another chain.
        let other = entry(2, &"f".repeat(64), Kind::Adopted, Subject::Node, "b").line().unwrap();
        let e = read(&join(&[a, &other])).unwrap_err();
        assert_eq!((e.line, e.why.as_str()), (2, "it was not written after the line that stands before it"));
        // A last line that only a newer version can have written is not taken for torn.
        let newer = a.split_once(",\"sum\"").unwrap().0.replace("\"schema\":1", "\"schema\":2");
        let newer = format!("{newer},\"sum\":\"{}\"}}", hex_sha256(newer.as_bytes()));
        let e = read(&join(&[&newer])).unwrap_err();
        assert!(e.line == 1 && e.why.contains("schema 2"), "{e}");
    }

    proptest! {
        #[test]
        fn a_cut_anywhere_is_valid_or_torn(texts in prop::collection::vec(".{0,40}", 1..6), at in any::<prop::sample::Index>()) {
            let (bytes, lines) = file(&texts);
            let cut = at.index(bytes.len() + 1);
            let ledger = read(&bytes[..cut]).unwrap();
            let whole = bytes[..cut].iter().filter(|b| **b == b'\n').count();
            prop_assert_eq!(ledger.entries.len(), whole);
            prop_assert_eq!(ledger.whole, lines[..whole].iter().map(|l| l.len() + 1).sum::<usize>());
            prop_assert_eq!(ledger.torn.map_or(0, |t| t.bytes.len()), cut - ledger.whole);
        }

        #[test]
        fn a_changed_byte_anywhere_is_found(texts in prop::collection::vec(".{0,40}", 1..6), at in any::<prop::sample::Index>(), xor in 1u8..) {
            let (mut bytes, lines) = file(&texts);
            let at = at.index(bytes.len());
            let line = bytes[..at].iter().filter(|b| **b == b'\n').count();
            bytes[at] ^= xor;
            match read(&bytes) {
                // The line itself, or, where its newline went, the line that it now runs into.
                Err(e) => prop_assert_eq!(e.line, line + 1),
                Ok(ledger) => {
                    let torn = ledger.torn.unwrap();
                    prop_assert!(line + 2 >= lines.len(), "only at the end");
                    prop_assert_eq!(torn.line, line + 1);
                    prop_assert_eq!(ledger.entries.len(), line);
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(ledger) = read(&bytes) {
                prop_assert_eq!(ledger.entries.len(), 0);
            }
            prop_assert!(Entry::parse(&bytes).is_err());
        }
    }
}
