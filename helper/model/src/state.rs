//! `/etc/mesh/state.toml`: what the helper learnt and boot must know. Written by the helper only; release removes it.

use crate::diagnostic::Diagnostics;
use crate::document::{Source, merge, quoted};
use crate::manifest::ModuleName;
use crate::unit::{Scope, UnitName};
use crate::walk::{Section, Walk, Wrong, before, taken, twice};
use crate::words;
use serde::Serialize;
use std::collections::BTreeMap;

/// What one control unit was before the adoption.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ControlState {
    /// Whose manager.
    pub scope: Scope,
    /// The unit.
    pub unit: UnitName,
    /// Its `ActiveState` before it was stopped; release starts again exactly what was `active`, `activating` or
    /// `reloading`.
    pub was: String,
}

/// A control unit in whose place the generator puts a no-op unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StandIn {
    /// Whose manager.
    pub scope: Scope,
    /// The unit.
    pub unit: UnitName,
}

/// A cron file that is covered while adopted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CoveredCron {
    /// Absolute path.
    pub file: String,
    /// Its modification time before it was covered, nanoseconds since the epoch: systemd touches a mount point
    /// (src/core/mount.c), and release puts the time back.
    pub mtime_ns: i64,
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct State {
    /// Foundation modules that genesis raised.
    pub raised: Vec<ModuleName>,
    /// Modules that were migrated.
    pub migrated: Vec<ModuleName>,
    /// The unit that loads the found firewall, as detected.
    pub loader: Option<UnitName>,
    /// Packages that were not installed when the machine was adopted.
    pub absent_packages: Vec<String>,
    /// Control as it was found.
    pub control: Vec<ControlState>,
    /// Where a no-op unit stands in.
    pub stand_ins: Vec<StandIn>,
    /// Cron files that are covered.
    pub covered: Vec<CoveredCron>,
    /// The modification time of `/etc/mesh` before the adoption, nanoseconds since the epoch; release puts it back.
    pub etc_mtime_ns: Option<i64>,
}

/// What `ActiveState` can be (org.freedesktop.systemd1(5)).
const ACTIVE_STATES: [&str; 8] =
    ["active", "reloading", "inactive", "failed", "activating", "deactivating", "maintenance", "refreshing"];

/// `system` or `user:NAME`, as state.toml writes a scope.
pub fn scope_word(scope: &Scope) -> String {
    match scope {
        Scope::System => "system".into(),
        Scope::User(name) => format!("user:{name}"),
    }
}

/// The scope of its word.
pub fn scope_from_word(word: &str) -> Option<Scope> {
    match word {
        "system" => Some(Scope::System),
        other => other
            .strip_prefix("user:")
            .filter(|name| words::account(name).is_ok())
            .map(|name| Scope::User(name.to_string())),
    }
}

impl State {
    /// Reads the file strictly; the error holds every fault.
    pub fn parse(source: Source) -> Result<State, Diagnostics> {
        let doc = merge(vec![source])?;
        let mut walk = Walk::new(&doc);
        let root = walk.section(
            doc.root(),
            doc.beginning(),
            "",
            &[
                "schema",
                "raised",
                "migrated",
                "loader",
                "absent_packages",
                "control",
                "stand_ins",
                "covered",
                "etc_mtime_ns",
            ],
        );
        root.schema(&mut walk);
        let state = State {
            raised: modules(&mut walk, &root, "raised"),
            migrated: modules(&mut walk, &root, "migrated"),
            loader: root.parsed(&mut walk, "loader", words::unit),
            absent_packages: root
                .each(&mut walk, "absent_packages", |t| Ok(t.to_string()))
                .into_iter()
                .map(|(p, _)| p)
                .collect(),
            control: control(&mut walk, &root),
            stand_ins: stand_ins(&mut walk, &root),
            covered: covered(&mut walk, &root),
            etc_mtime_ns: time(&mut walk, &root, "etc_mtime_ns"),
        };
        walk.finish(Some(state)).map(|(state, _)| state)
    }

    /// The file's text; the same state has the same text.
    pub fn render(&self) -> String {
        let list = |items: Vec<&str>| {
            let items: Vec<String> = items.into_iter().map(quoted).collect();
            format!("[{}]", items.join(", "))
        };
        let names = |m: &[ModuleName]| list(m.iter().map(ModuleName::as_str).collect());
        let mut out = String::from(
            "# Written by mesh: what it learnt and boot must know. Not for editing; mesh release removes it.\nschema = 1\n",
        );
        out.push_str(&format!("raised = {}\nmigrated = {}\n", names(&self.raised), names(&self.migrated)));
        if let Some(loader) = &self.loader {
            out.push_str(&format!("loader = {}\n", quoted(loader.as_str())));
        }
        let packages = list(self.absent_packages.iter().map(String::as_str).collect());
        out.push_str(&format!("absent_packages = {packages}\n"));
        if let Some(ns) = self.etc_mtime_ns {
            out.push_str(&format!("etc_mtime_ns = {ns}\n"));
        }
        for s in &self.stand_ins {
            let (scope, unit) = (quoted(&scope_word(&s.scope)), quoted(s.unit.as_str()));
            out.push_str(&format!("\n[[stand_ins]]\nscope = {scope}\nunit = {unit}\n"));
        }
        for c in &self.covered {
            out.push_str(&format!("\n[[covered]]\nfile = {}\nmtime_ns = {}\n", quoted(&c.file), c.mtime_ns));
        }
        for c in &self.control {
            let (scope, unit) = (quoted(&scope_word(&c.scope)), quoted(c.unit.as_str()));
            out.push_str(&format!("\n[[control]]\nscope = {scope}\nunit = {unit}\nwas = {}\n", quoted(&c.was)));
        }
        out
    }
}

fn modules(walk: &mut Walk<'_>, root: &Section<'_>, key: &str) -> Vec<ModuleName> {
    root.each(walk, key, |t| ModuleName::new(t).map_err(words::split)).into_iter().map(|(m, _)| m).collect()
}

fn scope(text: &str) -> Result<Scope, Wrong> {
    scope_from_word(text)
        .ok_or_else(|| (format!("{text:?} is not a scope"), "it is \"system\" or \"user:NAME\"".into()))
}

fn scope_and_unit(walk: &mut Walk<'_>, s: &Section<'_>) -> Option<(Scope, UnitName)> {
    let scope = s.required(walk, "scope", "\"system\"").and_then(|(t, at)| taken(walk, at, scope(t)));
    let unit = s.required(walk, "unit", "\"NAME.service\"").and_then(|(t, at)| taken(walk, at, words::unit(t)));
    Some((scope?, unit?))
}

fn control(walk: &mut Walk<'_>, root: &Section<'_>) -> Vec<ControlState> {
    let mut out = Vec::new();
    let mut seen = BTreeMap::new();
    for (table, at) in root.tables(walk, "control", "write [[control]] with scope, unit and was") {
        let s = walk.section(table, at, "[[control]]", &["scope", "unit", "was"]);
        let both = scope_and_unit(walk, &s);
        let was = s.required(walk, "was", "\"active\"").and_then(|(text, at)| {
            let known = ACTIVE_STATES.contains(&text);
            if !known {
                walk.fault(
                    at,
                    format!("{text:?} is not a unit's state"),
                    format!("it is one of {}", ACTIVE_STATES.join(", ")),
                );
            }
            known.then(|| text.to_string())
        });
        let (Some((scope, unit)), Some(was)) = (both, was) else { continue };
        match before(&mut seen, (scope.clone(), unit.clone()), at) {
            Some(first) => twice(walk, at, &format!("{unit} of {}", scope_word(&scope)), first),
            None => out.push(ControlState { scope, unit, was }),
        }
    }
    out
}

fn stand_ins(walk: &mut Walk<'_>, root: &Section<'_>) -> Vec<StandIn> {
    let mut out: Vec<StandIn> = Vec::new();
    let mut seen = BTreeMap::new();
    for (table, at) in root.tables(walk, "stand_ins", "write [[stand_ins]] with scope and unit") {
        let s = walk.section(table, at, "[[stand_ins]]", &["scope", "unit"]);
        let Some((scope, unit)) = scope_and_unit(walk, &s) else { continue };
        match before(&mut seen, (scope.clone(), unit.clone()), at) {
            Some(first) => twice(walk, at, &format!("{unit} of {}", scope_word(&scope)), first),
            None => out.push(StandIn { scope, unit }),
        }
    }
    out
}

fn covered(walk: &mut Walk<'_>, root: &Section<'_>) -> Vec<CoveredCron> {
    let mut out = Vec::new();
    for (table, at) in root.tables(walk, "covered", "write [[covered]] with file and mtime_ns") {
        let s = walk.section(table, at, "[[covered]]", &["file", "mtime_ns"]);
        let file = s.required(walk, "file", "\"/etc/cron.d/NAME\"").map(|(t, _)| t.to_string());
        let mtime = time(walk, &s, "mtime_ns");
        if let (Some(file), Some(mtime_ns)) = (file, mtime) {
            out.push(CoveredCron { file, mtime_ns });
        }
    }
    out
}

fn time(walk: &mut Walk<'_>, section: &Section<'_>, key: &str) -> Option<i64> {
    let item = section.item(key)?;
    match item.value {
        crate::document::Value::Integer(n) if i64::try_from(n).is_ok() => i64::try_from(n).ok(),
        _ => {
            walk.fault(item.at, format!("{key} is not a time"), "write nanoseconds since the epoch, a whole number");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> State {
        State {
            raised: vec![ModuleName::new("store").unwrap()],
            migrated: vec![ModuleName::new("registry").unwrap()],
            loader: Some(UnitName::new("nftables.service").unwrap()),
            absent_packages: vec!["rabbitmq-server".into()],
            control: vec![ControlState {
                scope: Scope::User("fleet".into()),
                unit: UnitName::new("fleet\\x2dsync.timer").unwrap(),
                was: "active".into(),
            }],
            stand_ins: vec![StandIn { scope: Scope::System, unit: UnitName::new("a.service").unwrap() }],
            covered: vec![CoveredCron { file: "/etc/cron.d/x".into(), mtime_ns: 7 }],
            etc_mtime_ns: Some(-1),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for state in [State::default(), full()] {
            let text = state.render();
            let read = State::parse(Source { file: "state.toml".into(), text: text.clone() }).unwrap();
            assert_eq!(read, state);
            assert_eq!(read.render(), text);
        }
    }
}
