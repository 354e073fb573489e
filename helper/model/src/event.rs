//! What happened, as one value: the ledger entry and the journal record are both made of it.
//!
//! Each variant has exactly what its kind carries, so that no record lacks a field; [`crate::message`] has the ids.
//! Nothing here can hold the content of a file.

use crate::custody::{Aspect, FoundPath, Sight, escape};
use crate::ledger::{Kind, Subject};
use crate::message::Field;
use crate::mode::Mode;
use crate::opening::Opening;
use crate::unit::{Scope, UnitName};
use serde_json::{Map, Value};

/// The process that changed a ruleset or wrote a file, as the kernel told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committer {
    /// Its name (`comm`, at most 15 bytes): any process can choose its own.
    pub name: String,
    /// Its pid at that time.
    pub pid: u32,
}

/// What a recovery did with a verb that was cut in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried to its end.
    Finished,
    /// It was taken back.
    Undone,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of message::Field, documented there; Kind documents the variants")]
pub enum Event {
    AdoptBegun { plan: String },
    Adopted { files: usize, openings: usize, units: usize },
    AdoptUndone { why: String },
    ReleaseBegun { plan: String },
    Released,
    Recovered { verb: String, outcome: Outcome },
    VerbFailed { verb: String, why: String },
    ModeWritten { before: Mode, after: Mode },
    ConfigInvalid { file: String, why: String },
    CustodyTaken { path: FoundPath, sight: Sight },
    CustodyChanged { path: FoundPath, before: Sight, after: Sight, writer: Option<Committer> },
    CustodyRefused { path: FoundPath, why: String },
    CustodyRestored { path: FoundPath, version: u32, before: Sight, after: Sight },
    OpeningOpened { opening: Opening, rules: Vec<String> },
    OpeningClosed { opening: Opening, rules: Vec<String> },
    OpeningRestored { opening: Opening, rules: Vec<String>, committer: Option<Committer> },
    TakenBack { opening: Opening, why: String },
    UnitStopped { scope: Scope, unit: UnitName, was: String },
    UnitStarted { scope: Scope, unit: UnitName },
    ControlAlive { scope: Scope, unit: UnitName },
    CronHeld { path: FoundPath, lines: usize },
    CronReleased { path: FoundPath },
    ProcessEnded { executable: FoundPath, pid: u32, uid: u32 },
}

impl Event {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Event::AdoptBegun { .. } => Kind::AdoptBegun,
            Event::Adopted { .. } => Kind::Adopted,
            Event::AdoptUndone { .. } => Kind::AdoptUndone,
            Event::ReleaseBegun { .. } => Kind::ReleaseBegun,
            Event::Released => Kind::Released,
            Event::Recovered { .. } => Kind::Recovered,
            Event::VerbFailed { .. } => Kind::VerbFailed,
            Event::ModeWritten { .. } => Kind::ModeWritten,
            Event::ConfigInvalid { .. } => Kind::ConfigInvalid,
            Event::CustodyTaken { .. } => Kind::CustodyTaken,
            Event::CustodyChanged { .. } => Kind::CustodyChanged,
            Event::CustodyRefused { .. } => Kind::CustodyRefused,
            Event::CustodyRestored { .. } => Kind::CustodyRestored,
            Event::OpeningOpened { .. } => Kind::OpeningOpened,
            Event::OpeningClosed { .. } => Kind::OpeningClosed,
            Event::OpeningRestored { .. } => Kind::OpeningRestored,
            Event::TakenBack { .. } => Kind::TakenBack,
            Event::UnitStopped { .. } => Kind::UnitStopped,
            Event::UnitStarted { .. } => Kind::UnitStarted,
            Event::ControlAlive { .. } => Kind::ControlAlive,
            Event::CronHeld { .. } => Kind::CronHeld,
            Event::CronReleased { .. } => Kind::CronReleased,
            Event::ProcessEnded { .. } => Kind::ProcessEnded,
        }
    }

    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Event::OpeningOpened { opening, .. }
            | Event::OpeningClosed { opening, .. }
            | Event::OpeningRestored { opening, .. }
            | Event::TakenBack { opening, .. } => Subject::Opening(opening.mark().as_str().to_owned()),
            _ => Subject::Node,
        }
    }

    /// One line for people: what happened, and to what. No control characters, whatever the names hold.
    pub fn text(&self) -> String {
        let text = match self {
            Event::AdoptBegun { .. } => "adopting this machine".into(),
            Event::Adopted { files, openings, units } => format!(
                "adopted: {files} paths in custody, {openings} openings in force, {units} control units stopped"
            ),
            Event::AdoptUndone { why } => format!("the adoption failed and was undone: {why}"),
            Event::ReleaseBegun { .. } => "releasing this machine".into(),
            Event::Released => {
                "released: the openings are closed, and the predecessor's control is no longer masked".into()
            }
            Event::Recovered { verb, outcome: Outcome::Finished } => format!("finished {verb}, which had been cut"),
            Event::Recovered { verb, outcome: Outcome::Undone } => format!("undid {verb}, which had been cut"),
            Event::VerbFailed { verb, why } => format!("{verb} failed: {why}"),
            Event::ModeWritten { before, after } => format!("mode {before} → {after}"),
            Event::ConfigInvalid { file, why } => format!("{file} is invalid, the machine is left as found: {why}"),
            Event::CustodyTaken { path, sight } => format!("took {path} into custody ({})", sight.what.word()),
            Event::CustodyChanged { path, before, after, writer } => {
                let by = writer.as_ref().map_or(String::new(), |w| format!(" by {} (pid {})", w.name, w.pid));
                format!("{path} was changed{by}: {}", aspects(before, after))
            }
            Event::CustodyRefused { path, why } => format!("could not take {path} into custody: {why}"),
            Event::CustodyRestored { path, version, .. } => format!("put back {path} as in version {version}"),
            Event::OpeningOpened { opening, .. } => format!("opened {} for {}", opening.flow, opening.module),
            Event::OpeningClosed { opening, .. } => format!("closed {} of {}", opening.flow, opening.module),
            Event::OpeningRestored { opening, committer, .. } => {
                let by = committer.as_ref().map_or(String::new(), |c| format!(" by {} (pid {})", c.name, c.pid));
                format!("opened {} for {} again after the ruleset was changed{by}", opening.flow, opening.module)
            }
            Event::TakenBack { opening, why } => format!("took the opening {} back: {why}", opening.flow),
            Event::UnitStopped { scope, unit, was } => format!("stopped {unit} ({scope}), which was {was}"),
            Event::UnitStarted { scope, unit } => format!("started {unit} ({scope}) again"),
            Event::ControlAlive { scope, unit } => format!("{unit} ({scope}) runs although it was stopped"),
            Event::CronHeld { path, lines } => format!("took {lines} cron lines of {path} out of force"),
            Event::CronReleased { path } => format!("the cron lines of {path} are in force again"),
            Event::ProcessEnded { executable, pid, uid } => format!("ended {executable} (pid {pid}, uid {uid})"),
        };
        printable(&text)
    }

    /// The fields with a value, as [`crate::message::MESSAGES`] lists them for the kind.
    pub fn fields(&self) -> Vec<(Field, String)> {
        let opening = |o: &Opening| {
            vec![
                (Field::Opening, o.mark().as_str().to_owned()),
                (Field::Flow, o.flow.to_string()),
                (Field::Module, o.module.clone()),
            ]
        };
        let hash = |field, sight: &Sight| sight.sha256().map(|h| (field, h.to_owned()));
        let writer = |c: &Option<Committer>| {
            c.iter()
                .flat_map(|c| [(Field::Committer, c.name.clone()), (Field::CommitterPid, c.pid.to_string())])
                .collect::<Vec<_>>()
        };
        let mut all = match self {
            Event::AdoptBegun { plan } | Event::ReleaseBegun { plan } => vec![(Field::Plan, plan.clone())],
            Event::Adopted { files, openings, units } => vec![
                (Field::Files, files.to_string()),
                (Field::Openings, openings.to_string()),
                (Field::Units, units.to_string()),
            ],
            Event::AdoptUndone { why } => vec![(Field::Why, why.clone())],
            Event::Released => vec![],
            Event::Recovered { verb, outcome } => {
                let word = match outcome {
                    Outcome::Finished => "finished",
                    Outcome::Undone => "undone",
                };
                vec![(Field::Verb, verb.clone()), (Field::Outcome, word.into())]
            }
            Event::VerbFailed { verb, why } => vec![(Field::Verb, verb.clone()), (Field::Why, why.clone())],
            Event::ModeWritten { before, after } => {
                vec![(Field::ModeBefore, before.to_string()), (Field::ModeAfter, after.to_string())]
            }
            Event::ConfigInvalid { file, why } => vec![(Field::File, file.clone()), (Field::Why, why.clone())],
            Event::CustodyTaken { path, sight } => {
                vec![(Field::File, path.to_string()), (Field::FileType, sight.what.word().into())]
                    .into_iter()
                    .chain(hash(Field::HashAfter, sight))
                    .collect()
            }
            Event::CustodyChanged { path, before, after, writer: by } => {
                vec![(Field::File, path.to_string()), (Field::Aspects, aspects(before, after))]
                    .into_iter()
                    .chain(hash(Field::HashBefore, before))
                    .chain(hash(Field::HashAfter, after))
                    .chain(writer(by))
                    .collect()
            }
            Event::CustodyRefused { path, why } => vec![(Field::File, path.to_string()), (Field::Why, why.clone())],
            Event::CustodyRestored { path, version, before, after } => {
                vec![(Field::File, path.to_string()), (Field::FileVersion, version.to_string())]
                    .into_iter()
                    .chain(hash(Field::HashBefore, before))
                    .chain(hash(Field::HashAfter, after))
                    .collect()
            }
            Event::OpeningOpened { opening: o, rules } | Event::OpeningClosed { opening: o, rules } => {
                opening(o).into_iter().chain([(Field::Rules, rules.join("\n"))]).collect()
            }
            Event::OpeningRestored { opening: o, rules, committer } => {
                opening(o).into_iter().chain([(Field::Rules, rules.join("\n"))]).chain(writer(committer)).collect()
            }
            Event::TakenBack { opening: o, why } => opening(o).into_iter().chain([(Field::Why, why.clone())]).collect(),
            Event::UnitStopped { scope, unit, was } => {
                vec![(Field::Scope, scope.to_string()), (Field::Unit, unit.to_string()), (Field::UnitWas, was.clone())]
            }
            Event::UnitStarted { scope, unit } | Event::ControlAlive { scope, unit } => {
                vec![(Field::Scope, scope.to_string()), (Field::Unit, unit.to_string())]
            }
            Event::CronHeld { path, lines } => {
                vec![(Field::File, path.to_string()), (Field::Lines, lines.to_string())]
            }
            Event::CronReleased { path } => vec![(Field::File, path.to_string())],
            Event::ProcessEnded { executable, pid, uid } => vec![
                (Field::Executable, executable.to_string()),
                (Field::ProcessPid, pid.to_string()),
                (Field::ProcessUid, uid.to_string()),
            ],
        };
        for (_, value) in &mut all {
            *value = value.split('\n').map(printable).collect::<Vec<_>>().join("\n");
        }
        all
    }

    /// What the ledger keeps of it: the text, and each field under its key.
    pub fn data(&self) -> Map<String, Value> {
        let fields = self.fields().into_iter().map(|(field, value)| (field.key(), Value::String(value)));
        fields.chain([("text".to_owned(), Value::String(self.text()))]).collect()
    }
}

fn aspects(before: &Sight, after: &Sight) -> String {
    before.differs(after).into_iter().map(Aspect::word).collect::<Vec<_>>().join(", ")
}

/// The same text with what could fool a terminal escaped; what [`escape`] wrote already stays as it is.
fn printable(text: &str) -> String {
    text.split('\\').map(|part| escape(part.as_bytes())).collect::<Vec<_>>().join("\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custody::What;
    use crate::message;
    use std::collections::BTreeSet;

    /// One of each kind, with every optional field there.
    fn one_of_each() -> Vec<Event> {
        let path = || FoundPath::new(&b"/etc/a\xff\n"[..]).unwrap();
        let sight =
            |sha: &str| Sight { what: What::File { size: 1, sha256: sha.repeat(64), sparse: false }, meta: None };
        let opening = || Opening { module: "registry".into(), flow: "tcp/5000".parse().unwrap() };
        let rules = || vec!["inet filter input handle 7".to_owned(), "inet filter forward handle 9".to_owned()];
        let committer = || Some(Committer { name: "nft\x1b[2J".into(), pid: 7 });
        let (scope, unit) = (|| Scope::User("fleet".into()), || UnitName::new("fleet-sync.timer").unwrap());
        let why = || "because\nof this".to_owned();
        vec![
            Event::AdoptBegun { plan: "p".into() },
            Event::Adopted { files: 12, openings: 3, units: 4 },
            Event::AdoptUndone { why: why() },
            Event::ReleaseBegun { plan: "p".into() },
            Event::Released,
            Event::Recovered { verb: "adopt".into(), outcome: Outcome::Undone },
            Event::VerbFailed { verb: "adopt".into(), why: why() },
            Event::ModeWritten { before: Mode::Unmanaged, after: Mode::Adopted },
            Event::ConfigInvalid { file: "/etc/mesh/node.toml:1:1".into(), why: why() },
            Event::CustodyTaken { path: path(), sight: sight("a") },
            Event::CustodyChanged { path: path(), before: sight("a"), after: sight("b"), writer: committer() },
            Event::CustodyRefused { path: path(), why: why() },
            Event::CustodyRestored { path: path(), version: 1, before: sight("b"), after: sight("a") },
            Event::OpeningOpened { opening: opening(), rules: rules() },
            Event::OpeningClosed { opening: opening(), rules: rules() },
            Event::OpeningRestored { opening: opening(), rules: rules(), committer: committer() },
            Event::TakenBack { opening: opening(), why: why() },
            Event::UnitStopped { scope: scope(), unit: unit(), was: "active".into() },
            Event::UnitStarted { scope: scope(), unit: unit() },
            Event::ControlAlive { scope: scope(), unit: unit() },
            Event::CronHeld { path: path(), lines: 2 },
            Event::CronReleased { path: path() },
            Event::ProcessEnded { executable: path(), pid: 7, uid: 1000 },
        ]
    }

    #[test]
    fn each_kind_carries_what_the_table_says() {
        let mut seen = BTreeSet::new();
        for event in one_of_each() {
            let kind = event.kind();
            let row = message::of(&kind).unwrap();
            let carried: BTreeSet<Field> = event.fields().into_iter().map(|(field, _)| field).collect();
            assert_eq!(carried, row.fields.iter().copied().collect(), "{kind}");
            seen.insert(kind.word().to_owned());
        }
        // The ledger writes these two about itself.
        seen.extend([Kind::LedgerTorn, Kind::LedgerAbsent].map(|k| k.word().to_owned()));
        assert_eq!(seen, Kind::ALL.iter().map(|k| k.word().to_owned()).collect());
    }

    #[test]
    fn nothing_in_it_can_fool_a_terminal() {
        for event in one_of_each() {
            assert!(event.text().chars().all(|c| !c.is_control()), "{:?}", event.text());
            for (field, value) in event.fields() {
                assert!(value.chars().all(|c| c == '\n' || !c.is_control()), "{field:?} {value:?}");
            }
        }
        let taken = &one_of_each()[9];
        assert_eq!(taken.text(), "took /etc/a\\xff\\x0a into custody (file)");
        assert_eq!(taken.data()["file"], "/etc/a\\xff\\x0a");
    }

    #[test]
    fn texts_say_who_and_what() {
        let text = |i: usize| one_of_each()[i].text();
        assert_eq!(text(7), "mode unmanaged → adopted");
        assert_eq!(text(10), "/etc/a\\xff\\x0a was changed by nft\\x1b[2J (pid 7): content");
        assert_eq!(text(13), "opened tcp/5000 for registry");
        assert_eq!(text(17), "stopped fleet-sync.timer (user fleet), which was active");
    }
}
