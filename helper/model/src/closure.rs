//! What would be dragged along if the predecessor's control were stopped, over the dependencies that systemd knows.
//!
//! *Measured*: a service that requires a control unit is stopped with it, and cannot start again while it is masked
//! (DESIGN §9). Pure: the graph is a value that the helper reads over D-Bus.

use crate::unit::UnitName;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// How a unit hangs on another, seen from the one that is dragged (systemd.unit(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Hold {
    /// `Requires=`: stopped with it, and cannot start without it.
    Requires,
    /// `Requisite=`: stopped with it, and fails at once without it.
    Requisite,
    /// `BindsTo=`: stopped as soon as it is inactive, whoever made it so.
    BindsTo,
    /// `PartOf=`: stopped and restarted with it.
    PartOf,
    /// The other has `PropagatesStopTo=` this one.
    PropagatesStopTo,
}

impl Hold {
    /// The setting's name.
    pub fn setting(self) -> &'static str {
        match self {
            Hold::Requires => "Requires=",
            Hold::Requisite => "Requisite=",
            Hold::BindsTo => "BindsTo=",
            Hold::PartOf => "PartOf=",
            Hold::PropagatesStopTo => "PropagatesStopTo=",
        }
    }

    /// Whether a unit that hangs so cannot start while the other is masked.
    pub fn needs_it_to_start(self) -> bool {
        matches!(self, Hold::Requires | Hold::Requisite | Hold::BindsTo)
    }

    /// Whether a no-op unit of the same name suffices: stopping with `ignore-dependencies` leaves the dependent alone,
    /// except by `BindsTo=`, which looks at the state itself (systemd src/core/unit.c, `unit_check_binds_to`).
    pub fn stand_in_suffices(self) -> bool {
        self != Hold::BindsTo
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.setting())
    }
}

/// What is known of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Known {
    /// Active, activating, reloading or deactivating.
    pub active: bool,
    /// Enabled: it would be started at the next boot.
    pub enabled: bool,
    /// The units that hang on this one.
    pub dependents: Vec<(Hold, UnitName)>,
}

/// The units of one manager, as far as they hang on control.
pub type Graph = BTreeMap<UnitName, Known>;

/// One unit outside the control that would suffer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Dragged {
    /// The unit.
    pub unit: UnitName,
    /// How it hangs on `on`.
    pub hold: Hold,
    /// The unit it hangs on: control, or another dragged one.
    pub on: UnitName,
    /// The control unit it all begins with.
    pub control: UnitName,
    /// It runs now and would be stopped; else it is enabled and would fail at the next boot.
    pub running: bool,
}

/// Every unit outside `control` that would be stopped with it, or could not start again; each once, nearest first.
pub fn dragged(graph: &Graph, control: &BTreeSet<UnitName>) -> Vec<Dragged> {
    let mut out = Vec::new();
    let mut seen: BTreeSet<&UnitName> = control.iter().collect();
    let mut queue: VecDeque<(&UnitName, &UnitName)> = control.iter().map(|c| (c, c)).collect();
    while let Some((on, root)) = queue.pop_front() {
        let Some(known) = graph.get(on) else { continue };
        for (hold, unit) in &known.dependents {
            if seen.contains(unit) {
                continue;
            }
            let state = graph.get(unit).cloned().unwrap_or_default();
            let suffers = state.active || (state.enabled && hold.needs_it_to_start());
            if !suffers {
                continue;
            }
            seen.insert(unit);
            out.push(Dragged {
                unit: unit.clone(),
                hold: *hold,
                on: on.clone(),
                control: root.clone(),
                running: state.active,
            });
            queue.push_back((unit, root));
        }
    }
    out
}

/// The control units for which a stand-in is needed, or the first dragged unit for which none suffices.
pub fn stand_ins(dragged: &[Dragged]) -> Result<BTreeSet<UnitName>, Dragged> {
    let mut out = BTreeSet::new();
    for d in dragged {
        // A stand-in keeps the direct dependents, and with them all that hangs on those.
        if d.on == d.control {
            if !d.hold.stand_in_suffices() || !matches!(d.control.kind(), "service" | "target") {
                return Err(d.clone());
            }
            out.insert(d.control.clone());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u(name: &str) -> UnitName {
        UnitName::new(name).unwrap()
    }

    fn graph(edges: &[(&str, Hold, &str)], active: &[&str], enabled: &[&str]) -> Graph {
        let mut g = Graph::new();
        for (on, hold, unit) in edges {
            g.entry(u(on)).or_default().dependents.push((*hold, u(unit)));
            g.entry(u(unit)).or_default();
        }
        for a in active {
            g.entry(u(a)).or_default().active = true;
        }
        for e in enabled {
            g.entry(u(e)).or_default().enabled = true;
        }
        g
    }

    #[test]
    fn every_kind_of_hold_drags_a_running_service() {
        for hold in [Hold::Requires, Hold::Requisite, Hold::BindsTo, Hold::PartOf, Hold::PropagatesStopTo] {
            let g = graph(&[("c.service", hold, "web.service")], &["web.service"], &[]);
            let d = dragged(&g, &[u("c.service")].into());
            assert_eq!(d.len(), 1, "{hold}");
            assert_eq!((d[0].hold, d[0].running), (hold, true));
            assert_eq!(stand_ins(&d).is_ok(), hold != Hold::BindsTo);
        }
    }

    #[test]
    fn a_chain_is_followed_and_control_itself_is_not_dragged() {
        let g = graph(
            &[
                ("c.service", Hold::Requires, "c2.service"),
                ("c2.service", Hold::PartOf, "a.service"),
                ("a.service", Hold::BindsTo, "b.service"),
            ],
            &["c2.service", "a.service", "b.service"],
            &[],
        );
        let d = dragged(&g, &[u("c.service"), u("c2.service")].into());
        assert_eq!(d.iter().map(|d| d.unit.as_str()).collect::<Vec<_>>(), ["a.service", "b.service"]);
        assert_eq!(d[1].control, u("c2.service"));
        assert_eq!(stand_ins(&d).unwrap(), [u("c2.service")].into());
    }

    #[test]
    fn what_neither_runs_nor_is_enabled_does_not_suffer() {
        let edges = [("c.service", Hold::Requires, "web.service"), ("c.service", Hold::PartOf, "off.service")];
        assert!(dragged(&graph(&edges, &[], &[]), &[u("c.service")].into()).is_empty());
        let d = dragged(&graph(&edges, &[], &["web.service", "off.service"]), &[u("c.service")].into());
        assert_eq!(d.len(), 1, "PartOf= does not keep a unit from starting");
        assert!(!d[0].running);
    }

    #[test]
    fn a_timer_has_no_stand_in() {
        let g = graph(&[("c.timer", Hold::Requires, "web.service")], &["web.service"], &[]);
        assert!(stand_ins(&dragged(&g, &[u("c.timer")].into())).is_err());
    }
}
