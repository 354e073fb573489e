//! What ran before an adoption, from the ledger: for a machine whose `state.toml` somebody removed or broke while it was
//! adopted. Without it a release would take the masks away and start nothing again.

use mesh_model::ledger::{Entry, Kind};
use mesh_model::state::{ControlState, State};
use mesh_model::unit::{Scope, UnitName};
use serde_json::Value;

/// The control units that this adoption stopped, as they were. Where the ledger holds no adoption, nothing.
pub fn from_ledger(entries: &[Entry]) -> State {
    let mut control: Vec<ControlState> = Vec::new();
    for entry in entries {
        let word = |key: &str| entry.data.get(key).and_then(Value::as_str).unwrap_or_default();
        match entry.kind {
            // Whatever was stopped before this runs again, or was never of an adoption that is in force.
            Kind::Released | Kind::AdoptUndone => control.clear(),
            Kind::Recovered if (word("verb"), word("outcome")) != ("adopt", "finished") => control.clear(),
            Kind::UnitStopped => {
                let (Some(scope), Ok(unit)) = (scope(word("scope")), UnitName::new(word("unit"))) else { continue };
                // What ran at the first sight is what release starts again, whatever was stopped later.
                if !control.iter().any(|c| c.scope == scope && c.unit == unit) {
                    control.push(ControlState { scope, unit, was: "active".into() });
                }
            }
            _ => {}
        }
    }
    State { control, ..State::default() }
}

/// The scope of the word that an event has for it.
fn scope(word: &str) -> Option<Scope> {
    match word.strip_prefix("user ") {
        Some(name) => Some(Scope::User(name.to_owned())),
        None => (word == "system").then_some(Scope::System),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_model::event::{Event, Outcome};
    use mesh_model::ledger::{NO_PREV, Stamp, Subject};

    fn ledger(events: &[Event]) -> Vec<Entry> {
        let entry = |(n, e): (usize, &Event)| Entry {
            seq: n as u64 + 1,
            at: Stamp { boot_id: "0".repeat(32), realtime_us: 1, monotonic_us: 1 },
            kind: e.kind(),
            subject: Subject::Node,
            prev: NO_PREV.into(),
            data: e.data(),
        };
        events.iter().enumerate().map(entry).collect()
    }

    fn stopped(scope: Scope, unit: &str) -> Event {
        Event::UnitStopped { scope, unit: UnitName::new(unit).unwrap(), was: "activating".into() }
    }

    #[test]
    fn only_what_the_adoption_in_force_stopped() {
        let undone = |why: &str| Event::AdoptUndone { why: why.into() };
        let recovered = |verb: &str, outcome| Event::Recovered { verb: verb.into(), outcome };
        let user = || Scope::User("fleet".into());
        for before in [
            vec![],
            vec![stopped(Scope::System, "old.service"), Event::Released],
            vec![stopped(Scope::System, "old.service"), undone("x")],
            vec![stopped(Scope::System, "old.service"), recovered("adopt", Outcome::Undone)],
            vec![stopped(Scope::System, "old.service"), recovered("release", Outcome::Finished)],
        ] {
            let mut events = before;
            events.push(stopped(user(), "sync.timer"));
            events.push(stopped(Scope::System, "agent@a.service"));
            events.push(recovered("adopt", Outcome::Finished));
            events.push(stopped(user(), "sync.timer"));
            let state = from_ledger(&ledger(&events));
            let got: Vec<_> =
                state.control.iter().map(|c| (c.scope.clone(), c.unit.as_str(), c.was.as_str())).collect();
            assert_eq!(got, [(user(), "sync.timer", "active"), (Scope::System, "agent@a.service", "active")]);
        }
    }
}
