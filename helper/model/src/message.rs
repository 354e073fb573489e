//! The table of journal records: for each kind of event a fixed `MESSAGE_ID`, a priority and the fields it carries.
//!
//! The ids never change and are never used for anything else: operators filter on them
//! (`journalctl MESSAGE_ID=…`), and `packaging/systemd/mesh.catalog` explains each (`journalctl -x`). A test holds
//! table, events and catalog together.

use crate::ledger::Kind;

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A journal field of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Field {
            $($(#[$doc])* $variant,)*
        }

        impl Field {
            /// All fields.
            pub const ALL: &'static [Field] = &[$(Field::$variant,)*];

            /// Its name in the journal.
            pub fn name(self) -> &'static str {
                match self {
                    $(Field::$variant => $name,)*
                }
            }

            /// Its key in the ledger's `data`: the name in lower case, without `MESH_`.
            pub fn key(self) -> String {
                self.name().trim_start_matches("MESH_").to_ascii_lowercase()
            }
        }
    };
}

fields! {
    /// The digest of the plan that is applied.
    Plan = "MESH_PLAN",
    /// How many paths are in custody.
    Files = "MESH_FILES",
    /// How many openings are in force.
    Openings = "MESH_OPENINGS",
    /// How many units of the control were stopped.
    Units = "MESH_UNITS",
    /// The verb.
    Verb = "MESH_VERB",
    /// What a recovery did: `finished` or `undone`.
    Outcome = "MESH_OUTCOME",
    /// The reason, in words.
    Why = "MESH_WHY",
    /// The mode before.
    ModeBefore = "MESH_MODE_BEFORE",
    /// The mode after.
    ModeAfter = "MESH_MODE_AFTER",
    /// A path, escaped where it is not printable.
    File = "MESH_FILE",
    /// What is at the path: `file`, `link`, `directory`, `absent`.
    FileType = "MESH_FILE_TYPE",
    /// Which version in custody.
    FileVersion = "MESH_FILE_VERSION",
    /// In what it differs, words with commas.
    Aspects = "MESH_ASPECTS",
    /// SHA-256 of the content before; absent where that was no file.
    HashBefore = "MESH_HASH_BEFORE",
    /// SHA-256 of the content after; absent where that is no file.
    HashAfter = "MESH_HASH_AFTER",
    /// The mark of an opening.
    Opening = "MESH_OPENING",
    /// The flow of an opening, canonical.
    Flow = "MESH_FLOW",
    /// For which module.
    Module = "MESH_MODULE",
    /// The rules added or removed: family, table, chain, handle; one a line.
    Rules = "MESH_RULES",
    /// The process that changed the ruleset or wrote the file, where the kernel tells it.
    Committer = "MESH_COMMITTER",
    /// Its pid.
    CommitterPid = "MESH_COMMITTER_PID",
    /// Whose manager a unit belongs to.
    Scope = "MESH_SCOPE",
    /// A unit.
    Unit = "MESH_UNIT",
    /// What the unit was before: its active state.
    UnitWas = "MESH_UNIT_WAS",
    /// How many lines.
    Lines = "MESH_LINES",
    /// The path of a process's executable.
    Executable = "MESH_EXECUTABLE",
    /// The pid of a process that was ended.
    ProcessPid = "MESH_PROCESS_PID",
    /// The user of a process that was ended.
    ProcessUid = "MESH_PROCESS_UID",
}

/// The fields of every record, whatever its kind.
pub const COMMON: &[&str] =
    &["MESH_EVENT", "MESH_NODE", "MESH_FLIP", "MESH_LEDGER_SEQ", "MESH_ACTOR_UID", "MESH_ACTOR_UNIT"];

/// How much it matters (syslog(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Something does not work.
    Error = 3,
    /// Somebody should look.
    Warning = 4,
    /// It is as asked.
    Notice = 5,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The kind.
    pub kind: &'static Kind,
    /// 128 bits, 32 lower-case hex digits.
    pub id: &'static str,
    /// How much it matters.
    pub priority: Priority,
    /// What it carries beside [`COMMON`]; one without a value is left out of the record.
    pub fields: &'static [Field],
}

const fn row(kind: &'static Kind, id: &'static str, priority: Priority, fields: &'static [Field]) -> Message {
    Message { kind, id, priority, fields }
}

/// Every kind that this version writes.
pub const MESSAGES: &[Message] = &[
    row(&Kind::AdoptBegun, "ac492d7436a1484ab3c7a6b04d960810", Priority::Notice, &[Field::Plan]),
    row(
        &Kind::Adopted,
        "bb7e16859f134fa1942f7e247f31f9a4",
        Priority::Notice,
        &[Field::Files, Field::Openings, Field::Units],
    ),
    row(&Kind::AdoptUndone, "f64b0eef626d4501a6e196f08c849855", Priority::Warning, &[Field::Why]),
    row(&Kind::ReleaseBegun, "109d9762ca604718bb8a3eda30dccded", Priority::Notice, &[Field::Plan]),
    row(&Kind::Released, "ab6f0c3c498d4ab9be9cd4066f952e6c", Priority::Notice, &[]),
    row(&Kind::Recovered, "66c89d6f2aac4c288b6b943254094e1e", Priority::Warning, &[Field::Verb, Field::Outcome]),
    row(&Kind::VerbFailed, "a766dc532d0447fda0a23389bf5aaa7c", Priority::Error, &[Field::Verb, Field::Why]),
    row(
        &Kind::ModeWritten,
        "9080b335bea4480f85281a3a83033c28",
        Priority::Notice,
        &[Field::ModeBefore, Field::ModeAfter],
    ),
    row(&Kind::ConfigInvalid, "454c543b9df94f6fb87570caf94a59ac", Priority::Error, &[Field::File, Field::Why]),
    row(
        &Kind::CustodyTaken,
        "03421b3919db49849c589ee26a247bca",
        Priority::Notice,
        &[Field::File, Field::FileType, Field::HashAfter],
    ),
    row(
        &Kind::CustodyChanged,
        "dad105f9b8cd46b7b6a3dd87e525ba18",
        Priority::Warning,
        &[Field::File, Field::Aspects, Field::HashBefore, Field::HashAfter, Field::Committer, Field::CommitterPid],
    ),
    row(&Kind::CustodyRefused, "ad9b6e5bc6a6469b803a25750dc8379f", Priority::Warning, &[Field::File, Field::Why]),
    row(
        &Kind::CustodyRestored,
        "28bc62f84a5a4443958820f46632ce65",
        Priority::Notice,
        &[Field::File, Field::FileVersion, Field::HashBefore, Field::HashAfter],
    ),
    row(
        &Kind::OpeningOpened,
        "2cd835f6f55c48eea5202dfc5c2b8f3a",
        Priority::Notice,
        &[Field::Opening, Field::Flow, Field::Module, Field::Rules],
    ),
    row(
        &Kind::OpeningClosed,
        "d5b8ac584e4e433f8cbd6ab4865c2c1c",
        Priority::Notice,
        &[Field::Opening, Field::Flow, Field::Module, Field::Rules],
    ),
    row(
        &Kind::OpeningRestored,
        "6a71a3fd2cef47d3a8f10e71af5ebe36",
        Priority::Warning,
        &[Field::Opening, Field::Flow, Field::Module, Field::Rules, Field::Committer, Field::CommitterPid],
    ),
    row(
        &Kind::TakenBack,
        "90c85c7186bb448a9843bebc1a3e639e",
        Priority::Error,
        &[Field::Opening, Field::Flow, Field::Module, Field::Why],
    ),
    row(
        &Kind::UnitStopped,
        "40d0d3325a18479292f98db31f7c5fc7",
        Priority::Notice,
        &[Field::Scope, Field::Unit, Field::UnitWas],
    ),
    row(&Kind::UnitStarted, "5051181d39244e89a11d1ee678feb728", Priority::Notice, &[Field::Scope, Field::Unit]),
    row(&Kind::ControlAlive, "230f0e33bfa94c39911303f2ff7ef5ed", Priority::Warning, &[Field::Scope, Field::Unit]),
    row(&Kind::CronHeld, "d15a1029ad14434dad5a13c5455cbff8", Priority::Notice, &[Field::File, Field::Lines]),
    row(&Kind::CronReleased, "b34eee604973437bb04a0bbb5952b9b4", Priority::Notice, &[Field::File]),
    row(
        &Kind::ProcessEnded,
        "a2d8cbb084234ce781c32d10d7331ba2",
        Priority::Notice,
        &[Field::Executable, Field::ProcessPid, Field::ProcessUid],
    ),
    row(&Kind::LedgerTorn, "1a1f53aff31142c69e12536b68e9d4f8", Priority::Warning, &[Field::File, Field::Why]),
    row(&Kind::LedgerAbsent, "65451ec1e6ca48ce865b4f4f687669a3", Priority::Warning, &[Field::Why]),
];

/// The row of a kind; none for [`Kind::Unknown`].
pub fn of(kind: &Kind) -> Option<&'static Message> {
    MESSAGES.iter().find(|m| m.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Id, header lines, prose.
    type Explained = (String, Vec<(String, String)>, String);

    /// The catalog as systemd reads it (systemd: catalog.c, catalog_import_file).
    fn catalog() -> Vec<Explained> {
        let text = include_str!("../../../packaging/systemd/mesh.catalog");
        let mut entries = Vec::new();
        for part in text.split("\n-- ").skip(1) {
            let (id, rest) = part.split_once('\n').unwrap();
            let (head, prose) = rest.split_once("\n\n").unwrap();
            let head = head.lines().map(|l| l.split_once(": ").unwrap()).map(|(k, v)| (k.into(), v.into())).collect();
            entries.push((id.to_owned(), head, prose.to_owned()));
        }
        entries
    }

    fn referenced(text: &str) -> BTreeSet<&str> {
        text.split('@').skip(1).step_by(2).collect()
    }

    #[test]
    fn every_kind_has_one_row_with_an_id_of_its_own() {
        let kinds: Vec<&Kind> = MESSAGES.iter().map(|m| m.kind).collect();
        assert_eq!(kinds, Kind::ALL.iter().collect::<Vec<_>>());
        let ids: BTreeSet<&str> = MESSAGES.iter().map(|m| m.id).collect();
        assert_eq!(ids.len(), MESSAGES.len());
        assert!(
            ids.iter().all(|i| i.len() == 32 && i.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
        );
    }

    #[test]
    fn fields_are_valid_for_the_journal_and_each_is_used() {
        let used: BTreeSet<Field> = MESSAGES.iter().flat_map(|m| m.fields).copied().collect();
        assert_eq!(used, Field::ALL.iter().copied().collect());
        for name in Field::ALL.iter().map(|f| f.name()).chain(COMMON.iter().copied()) {
            // systemd: journal-file.c, journal_field_valid.
            assert!(name.len() <= 64 && name.starts_with("MESH_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        }
        let names: BTreeSet<&str> = Field::ALL.iter().map(|f| f.name()).collect();
        assert_eq!(names.len(), Field::ALL.len());
    }

    #[test]
    fn table_and_catalog_say_the_same() {
        let catalog = catalog();
        let ids: Vec<&str> = catalog.iter().map(|(id, ..)| id.as_str()).collect();
        assert_eq!(ids, MESSAGES.iter().map(|m| m.id).collect::<Vec<_>>(), "same ids, same order");
        for ((_, head, prose), message) in catalog.iter().zip(MESSAGES) {
            let keys: Vec<&str> = head.iter().map(|(k, _)| k.as_str()).collect();
            assert_eq!(keys, ["Subject", "Defined-By", "Documentation"], "{}", message.kind);
            assert_eq!(head[1].1, "mesh");
            assert!(head[2].1.starts_with("man:mesh"), "{}", message.kind);
            let carried: BTreeSet<&str> =
                message.fields.iter().map(|f| f.name()).chain(COMMON.iter().copied()).collect();
            for field in referenced(&head[0].1).union(&referenced(prose)) {
                assert!(carried.contains(field), "{} does not carry {field}", message.kind);
            }
            assert!(prose.trim().len() > 80, "{}: what happened, when, what to do", message.kind);
        }
        let text = include_str!("../../../packaging/systemd/mesh.catalog");
        for line in text.lines().filter(|l| !l.starts_with("Subject:")) {
            assert!(line.chars().count() <= 76, "{line}");
        }
    }

    #[test]
    fn the_catalog_explains_the_fields_of_its_records() {
        // What an operator needs to act on must be said in the subject or the prose: the thing it is about.
        for ((_, head, prose), message) in catalog().iter().zip(MESSAGES) {
            let said = head[0].1.clone() + prose;
            let names = referenced(&said);
            for field in [Field::File, Field::Flow, Field::Unit, Field::Verb, Field::Why, Field::ModeAfter] {
                assert!(
                    !message.fields.contains(&field) || names.contains(field.name()),
                    "{}: {field:?}",
                    message.kind
                );
            }
        }
    }
}
