//! What `mesh release` would undo, from what the adoption left in `/etc/mesh`. No I/O.

use crate::plan::adopt::{ADOPT_PLAN_SCHEMA, AdoptPlan, CoverCron, StopUnit};
use mesh_model::node::CronEntry;
use mesh_model::state::State;
use mesh_model::unit::{UnitName, unescape_path};
use serde::{Deserialize, Serialize};

/// What the undo of an adoption needs; kept in `/etc/mesh/pending` while a verb is at work, so that it needs no `/var`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    /// What was, or was to be, done.
    pub plan: AdoptPlan,
    /// The modification time of `/etc/mesh` before it, nanoseconds since the epoch.
    pub etc_mtime_ns: Option<i64>,
}

/// The adoption as it is recorded, which release undoes; `covers` are the names in `/etc/mesh/cron`. What node.toml
/// says by now plays no part: an operator may have edited it since.
pub fn plan(state: &State, covers: &[String], name: &str) -> Undo {
    let units = state
        .control
        .iter()
        .map(|c| StopUnit {
            scope: c.scope.clone(),
            unit: c.unit.clone(),
            running: matches!(c.was.as_str(), "active" | "activating" | "reloading"),
            stand_in: state.stand_ins.iter().any(|s| s.scope == c.scope && s.unit == c.unit),
        })
        .collect();
    let cron = covers
        .iter()
        .filter_map(|stored| {
            let unit = UnitName::new(format!("{stored}.mount")).ok()?;
            let entry = CronEntry { file: unescape_path(stored), lines_with: None };
            let mtime_ns = state.covered.iter().find(|c| c.file == entry.file)?.mtime_ns;
            Some(CoverCron { entry, stored: stored.clone(), unit, lines_off: 0, mtime_ns })
        })
        .collect();
    let plan = AdoptPlan {
        schema: ADOPT_PLAN_SCHEMA,
        node: name.to_string(),
        custody: vec![],
        openings: vec![],
        opening_rules: vec![],
        units,
        cron,
        processes: vec![],
        loader: state.loader.clone(),
        absent_packages: vec![],
        notes: vec![],
    };
    Undo { plan, etc_mtime_ns: state.etc_mtime_ns }
}

/// What is done, one line a step, for people.
pub fn lines(what: &Undo) -> Vec<String> {
    let mut out = vec!["close every opening that carries the mesh's mark".to_string()];
    out.extend(what.plan.cron.iter().map(|c| format!("uncover {}", c.entry.file)));
    out.push("remove the mode, reload (the masks go)".into());
    for u in what.plan.units.iter().rev() {
        if u.running {
            out.push(format!("start {} ({}): it ran before the adoption", u.unit, u.scope));
        }
    }
    out
}
