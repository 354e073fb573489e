//! The one way to write down what was done: each event goes to the ledger, and then to the journal.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use mesh::{adapters::lock::{Lock, Wait}, layout::Layout, record::audit::Recorder};
//! use mesh_model::event::Event;
//! let layout = Layout::default();
//! let lock = Lock::take(&layout, "release", Wait::No)?;
//! let mut recorder = Recorder::new(&layout, &lock, "alpha")?;
//! recorder.event(&Event::Released)?;
//! # Ok(())
//! # }
//! ```

use crate::adapters::journal;
use crate::adapters::lock::Lock;
use crate::layout::Layout;
use crate::record::ledger::Ledger;
use anyhow::Context as _;
use mesh_model::event::Event;
use mesh_model::ledger::{Kind, Subject};
use mesh_model::message::{self, Field};
use serde_json::{Map, Value};

/// Writes events down, for as long as the lock is held.
#[derive(Debug)]
pub struct Recorder<'l> {
    /// None where the ledger cannot be written and that was said.
    ledger: Option<Ledger<'l>>,
    node: String,
    actor: Actor,
    /// Tests and `--root` do not write to this machine's journal.
    journal: bool,
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Actor {
    /// The user who logged in, where the kernel knows (`loginuid` survives sudo); else the effective one.
    uid: u32,
    /// The unit or session scope that this process is in.
    unit: Option<String>,
}

impl<'l> Recorder<'l> {
    /// With the ledger; an error where that cannot be written or is bad. What changes the machine uses this one.
    pub fn new(layout: &Layout, lock: &'l Lock, node: &str) -> anyhow::Result<Recorder<'l>> {
        let mut ledger = Ledger::open(layout, lock)?;
        let torn = ledger.torn_cut();
        let recorder = Recorder::with(layout, node, Some(ledger));
        if let Some((kept, why)) = torn {
            let fields = [(Field::File, kept), (Field::Why, why)];
            recorder.to_journal(&Kind::LedgerTorn, &Subject::Node, "the ledger's last line was torn", &fields, None);
        }
        Ok(recorder)
    }

    /// Like [`Recorder::new`], but without a writable ledger it records to the journal only, and says so there first:
    /// for what keeps openings in force early in the boot and must not wait for `/var`.
    pub fn journal_only_without_ledger(layout: &Layout, lock: &'l Lock, node: &str) -> Recorder<'l> {
        match Recorder::new(layout, lock, node) {
            Ok(recorder) => recorder,
            Err(e) => {
                let recorder = Recorder::with(layout, node, None);
                recorder.say_absent(&e);
                recorder
            }
        }
    }

    fn with(layout: &Layout, node: &str, ledger: Option<Ledger<'l>>) -> Recorder<'l> {
        Recorder { ledger, node: node.to_owned(), actor: Actor::of_this_process(), journal: layout.is_machine() }
    }

    /// Writes one event down. Once this returns, the ledger has it on disk (or its absence was said). An error is
    /// the ledger's; the journal's are said on stderr. Returns the event's number in the ledger, where there is one.
    pub fn event(&mut self, event: &Event) -> anyhow::Result<Option<u64>> {
        let (kind, subject) = (event.kind(), event.subject());
        let seq = match &mut self.ledger {
            None => None,
            Some(ledger) => {
                let mut data = event.data();
                data.extend(self.actor.data());
                Some(ledger.append(kind.clone(), subject.clone(), data).with_context(|| format!("recording {kind}"))?)
            }
        };
        self.to_journal(&kind, &subject, &event.text(), &event.fields(), seq);
        Ok(seq)
    }

    /// The `seq` of the ledger's last entry (0 before the first), or none without a ledger.
    pub fn position(&self) -> Option<u64> {
        self.ledger.as_ref().map(Ledger::position)
    }

    fn say_absent(&self, error: &anyhow::Error) {
        let why = mesh_model::custody::escape(format!("{error:#}").as_bytes());
        let text = format!("recording to the journal only: {why}");
        self.to_journal(&Kind::LedgerAbsent, &Subject::Node, &text, &[(Field::Why, why)], None);
    }

    fn to_journal(&self, kind: &Kind, subject: &Subject, text: &str, fields: &[(Field, String)], seq: Option<u64>) {
        let Some(row) = message::of(kind) else { return };
        let all = journal_fields(&self.node, &self.actor, kind, subject, fields, seq);
        if self.journal {
            journal::send(row.id, row.priority, text, &all);
        }
    }
}

/// The whole record: what every one has, then what its kind has.
fn journal_fields(
    node: &str,
    actor: &Actor,
    kind: &Kind,
    subject: &Subject,
    fields: &[(Field, String)],
    seq: Option<u64>,
) -> Vec<(String, String)> {
    let mut all = vec![("MESH_EVENT", kind.word().to_owned()), ("MESH_NODE", node.to_owned())];
    if let Subject::Flip(id) = subject {
        all.push(("MESH_FLIP", id.clone()));
    }
    if let Some(seq) = seq {
        all.push(("MESH_LEDGER_SEQ", seq.to_string()));
    }
    all.push(("MESH_ACTOR_UID", actor.uid.to_string()));
    if let Some(unit) = &actor.unit {
        all.push(("MESH_ACTOR_UNIT", unit.clone()));
    }
    all.extend(fields.iter().map(|(field, value)| (field.name(), value.clone())));
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl Actor {
    fn of_this_process() -> Actor {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Actor {
            uid: login_uid(&read("/proc/self/loginuid")).unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            unit: unit_of(&read("/proc/self/cgroup")),
        }
    }

    fn data(&self) -> Map<String, Value> {
        let unit = self.unit.iter().map(|u| ("actor_unit".to_owned(), Value::String(u.clone())));
        [("actor_uid".to_owned(), Value::from(self.uid))].into_iter().chain(unit).collect()
    }
}

/// The kernel writes 2^32-1 where nobody logged in (a service).
fn login_uid(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|uid| *uid != u32::MAX)
}

/// The innermost service or scope of the unified hierarchy (cgroups(7): the line that begins with `0::`).
fn unit_of(cgroup: &str) -> Option<String> {
    let path = cgroup.lines().find_map(|l| l.strip_prefix("0::"))?;
    path.rsplit('/').find(|c| c.ends_with(".service") || c.ends_with(".scope")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::lock::Wait;
    use crate::record::ledger;
    use mesh_model::mode::Mode;
    use mesh_model::opening::Opening;

    #[test]
    fn an_event_is_in_the_ledger_with_its_actor() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let lock = Lock::take(&layout, "adopt", Wait::No).unwrap();
        let mut recorder = Recorder::new(&layout, &lock, "alpha").unwrap();
        assert_eq!(recorder.position(), Some(0));
        recorder.event(&Event::ModeWritten { before: Mode::Unmanaged, after: Mode::Adopted }).unwrap();
        let opening = Opening { module: "registry".into(), flow: "tcp/5000".parse().unwrap() };
        recorder.event(&Event::OpeningOpened { opening: opening.clone(), rules: vec!["r".into()] }).unwrap();
        assert_eq!(recorder.position(), Some(2));
        let (read, broken) = ledger::read(&layout).unwrap();
        assert_eq!(broken, None);
        assert_eq!(read.entries[0].data["mode_after"], "adopted");
        assert_eq!(read.entries[0].data["text"], "mode unmanaged → adopted");
        assert!(read.entries[0].data["actor_uid"].is_u64());
        assert_eq!(read.entries[1].subject, Subject::Opening(opening.mark().as_str().into()));
    }

    #[test]
    fn without_var_it_goes_on_and_a_changing_verb_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let lock = Lock::take(&layout, "openings", Wait::No).unwrap();
        std::fs::write(dir.path().join("var"), "in the way").unwrap();
        assert!(Recorder::new(&layout, &lock, "alpha").is_err());
        let mut recorder = Recorder::journal_only_without_ledger(&layout, &lock, "alpha");
        recorder.event(&Event::Released).unwrap();
        assert_eq!(recorder.position(), None);
    }

    #[test]
    fn a_journal_record_has_the_common_fields_first() {
        let actor = Actor { uid: 1000, unit: Some("session-3.scope".into()) };
        let fields = [(Field::Flow, "tcp/1".to_owned())];
        let all = journal_fields("alpha", &actor, &Kind::OpeningOpened, &Subject::Flip("f".into()), &fields, Some(7));
        let names: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(
            names[..message::COMMON.len()].iter().copied().collect::<std::collections::BTreeSet<_>>(),
            message::COMMON.iter().copied().collect()
        );
        assert_eq!(all.last().unwrap(), &("MESH_FLOW".to_owned(), "tcp/1".to_owned()));
    }

    #[test]
    fn the_actor_is_read_as_the_kernel_writes_it() {
        assert_eq!(login_uid("1000"), Some(1000));
        assert_eq!(login_uid("4294967295\n"), None);
        assert_eq!(login_uid(""), None);
        for (text, want) in [
            ("0::/system.slice/mesh-adopt.service\n", Some("mesh-adopt.service")),
            ("1:name=systemd:/x.service\n0::/user.slice/user-0.slice/session-3.scope", Some("session-3.scope")),
            ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope/inner", Some("run-1.scope")),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(unit_of(text).as_deref(), want);
        }
    }
}
