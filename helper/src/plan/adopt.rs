//! What `mesh adopt` would do, as a value: printed by `--dry-run`, executed unchanged by `apply`. No I/O.
//!
//! The order is DESIGN §9's: custody, openings, stop timers, paths and sockets, then services; cover cron entries, end
//! processes; mode file and reload. `release` is the reverse.

use crate::plan::finding::Finding;
use mesh_model::closure::{self, Graph};
use mesh_model::failure::Kind;
use mesh_model::node::{CronEntry, Node, Role};
use mesh_model::opening::Opening;
use mesh_model::unit::{Scope, UnitName, escape_path};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// What probe found of one control unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundUnit {
    /// Whose manager.
    pub scope: Scope,
    /// The unit.
    pub unit: UnitName,
    /// Its manager does not know it.
    pub missing: bool,
    /// It runs now.
    pub up: bool,
    /// Its file, where it has one.
    pub fragment: String,
}

/// What probe found of one declared cron file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundCron {
    /// As declared.
    pub entry: CronEntry,
    /// The file's lines, or nothing when it does not exist.
    pub content: Option<String>,
    /// It is a regular file with one name, which a bind mount can cover.
    pub regular: bool,
    /// Its modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
}

/// A process of the declared control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndProcess {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot (proc_pid_stat(5), field 22): with it the pid cannot be mistaken.
    pub start_ticks: u64,
    /// Its executable.
    pub executable: String,
    /// Its user.
    pub uid: u32,
}

/// Everything the plan is made of.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Every declared control unit.
    pub control: Vec<FoundUnit>,
    /// What hangs on them, by scope.
    pub graphs: BTreeMap<Scope, Graph>,
    /// Declared cron files.
    pub cron: Vec<FoundCron>,
    /// Cron files that an earlier adoption covered, with their times before that.
    pub covered: Vec<(String, i64)>,
    /// Declared bare processes that run.
    pub processes: Vec<EndProcess>,
    /// Declared paths that cannot be taken into custody, with the reason.
    pub unkeepable: Vec<(String, String)>,
    /// What openings would be refused, with the reason.
    pub unopenable: Option<(Kind, String, Option<String>)>,
    /// Rules that would be added for openings, in words.
    pub opening_rules: Vec<String>,
    /// Foundation ports in the way: port in words, holder in words.
    pub held: Vec<(String, String)>,
    /// Openings of the foundation's ports.
    pub foundation_openings: Vec<Opening>,
    /// Packages that the catalogue needs and that are not installed.
    pub absent_packages: Vec<String>,
    /// The unit that loads the found firewall, where one was found.
    pub loader: Option<UnitName>,
    /// What an earlier adoption recorded, where this machine is adopted already.
    pub earlier: Vec<StopUnit>,
}

/// One control unit in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopUnit {
    /// Whose manager.
    pub scope: Scope,
    /// The unit; it is masked whether it runs or not.
    pub unit: UnitName,
    /// It runs and is to be stopped; release starts it again.
    pub running: bool,
    /// A no-op unit takes its place, and what hangs on it stays (`keep-dependents`).
    pub stand_in: bool,
}

/// One cron file that is covered by a bind mount while adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverCron {
    /// The file.
    pub entry: CronEntry,
    /// Name of the covering file in `/etc/mesh/cron`.
    pub stored: String,
    /// The generated mount unit.
    pub unit: UnitName,
    /// How many lines are off.
    pub lines_off: usize,
    /// The file's modification time before it was covered, nanoseconds since the epoch.
    pub mtime_ns: i64,
}

/// What adopt does, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptPlan {
    /// `1`.
    pub schema: u32,
    /// The node's name.
    pub node: String,
    /// Paths to be taken into custody.
    pub custody: Vec<String>,
    /// What is to be kept open.
    pub openings: Vec<Opening>,
    /// The rules that it takes now, in words.
    pub opening_rules: Vec<String>,
    /// Control units in the order in which they are stopped.
    pub units: Vec<StopUnit>,
    /// Cron files.
    pub cron: Vec<CoverCron>,
    /// Bare processes.
    pub processes: Vec<EndProcess>,
    /// Loader of the found firewall, for the state file.
    pub loader: Option<UnitName>,
    /// Packages that are absent, for the state file.
    pub absent_packages: Vec<String>,
    /// What the operator should know.
    pub notes: Vec<Finding>,
}

/// The schema number of [`AdoptPlan`].
pub const ADOPT_PLAN_SCHEMA: u32 = 1;

/// Timers, paths and sockets first, so that nothing starts a service again; then services, targets and the rest.
fn stop_rank(unit: &UnitName) -> u8 {
    match unit.kind() {
        "timer" => 0,
        "path" => 1,
        "socket" => 2,
        "service" => 3,
        _ => 4,
    }
}

/// The text that covers a cron file: every line that is control becomes a comment; the rest stays as it is.
pub fn covered(content: &str, entry: &CronEntry) -> (String, usize) {
    let mut out = String::new();
    let mut off = 0;
    for line in content.split_inclusive('\n') {
        let bare = line.trim();
        let is_job = !bare.is_empty() && !bare.starts_with('#');
        let is_control = entry.lines_with.as_ref().is_none_or(|w| bare.contains(w.as_str()));
        if is_job && is_control {
            out.push_str("# off while adopted: ");
            off += 1;
        }
        out.push_str(line);
    }
    (out, off)
}

/// Makes the plan, or says everything that stands in its way; inhibitors are not partial: nothing is planned then.
pub fn plan(node: &Node, found: &Found) -> Result<AdoptPlan, Vec<Finding>> {
    let mut inhibitors = Vec::new();
    let mut notes = Vec::new();

    let mut stand_ins: BTreeSet<(Scope, UnitName)> = BTreeSet::new();
    for (scope, graph) in &found.graphs {
        let control: BTreeSet<UnitName> =
            found.control.iter().filter(|c| c.scope == *scope).map(|c| c.unit.clone()).collect();
        let dragged = closure::dragged(graph, &control);
        if dragged.is_empty() {
            continue;
        }
        match (node.predecessor.keep_dependents, closure::stand_ins(&dragged)) {
            (true, Ok(units)) => stand_ins.extend(units.into_iter().map(|u| (scope.clone(), u))),
            (keep, outcome) => {
                for d in &dragged {
                    let fate = if d.running { "would be stopped with it" } else { "could not start at the next boot" };
                    let insufficient = matches!(&outcome, Err(e) if keep && e.control == d.control);
                    inhibitors.push(
                        Finding::inhibitor(
                            Kind::Refused,
                            "control-closure",
                            format!("{} ({scope}) hangs on the control unit {} by {} and {fate}", d.unit, d.on, d.hold),
                        )
                        .remedy(if insufficient {
                            format!(
                                "a stand-in does not suffice for {} on a {}; take that dependency out of {}, or leave {} out of [predecessor]",
                                d.hold, d.control.kind(), d.unit, d.control
                            )
                        } else {
                            format!(
                                "set keep-dependents = true in [predecessor] to put a no-op unit in the place of {}, or take the dependency out of {}",
                                d.control, d.unit
                            )
                        }),
                    );
                }
            }
        }
    }

    for (port, holder) in &found.held {
        inhibitors.push(
            Finding::inhibitor(Kind::PortHeld, "port-held", format!("foundation port {port} is not free: {holder}"))
                .remedy(
                    "give it another port in [foundation], migrate or stop the holder, or adopt --without-foundation",
                ),
        );
    }
    if let Some((kind, why, remedy)) = &found.unopenable {
        let finding = Finding::inhibitor(*kind, "opening", why.clone());
        inhibitors.push(match remedy {
            Some(r) => finding.remedy(r.clone()),
            None => finding,
        });
    }
    for (path, why) in &found.unkeepable {
        inhibitors.push(
            Finding::inhibitor(Kind::Refused, "custody", format!("{path} cannot be taken into custody: {why}"))
                .remedy("name the real path in [predecessor] files, or take it out"),
        );
    }

    for c in found.control.iter().filter(|c| c.missing) {
        notes.push(Finding::note(
            "control-missing",
            format!("{} ({}) is not known to its manager; it is masked all the same", c.unit, c.scope),
        ));
    }
    for c in &found.control {
        if ["/run/systemd/transient/", "/run/systemd/system.control/", "/etc/systemd/system.control/"]
            .iter()
            .any(|d| c.fragment.starts_with(d))
            || c.fragment.contains("/systemd/user.control/")
            || c.fragment.contains("/systemd/transient/")
        {
            notes.push(
                Finding::note(
                    "mask-beaten",
                    format!(
                        "{} ({}) comes from {}, which a generated mask does not beat; it is stopped and watched",
                        c.unit, c.scope, c.fragment
                    ),
                )
                .remedy(match c.fragment.contains("/systemd/transient/") {
                    // Its file is the manager's own, and goes with the unit.
                    true => "it is gone once it is stopped: after a release start it the way it was started before",
                    false => "remove that file when the predecessor is gone",
                }),
            );
        }
    }
    let mut cron = Vec::new();
    for c in &found.cron {
        let Some(content) = &c.content else {
            notes.push(Finding::note("cron-missing", format!("{} does not exist", c.entry.file)));
            continue;
        };
        if !c.regular {
            inhibitors.push(
                Finding::inhibitor(
                    Kind::Refused,
                    "cron",
                    format!("{} is not a regular file and cannot be covered", c.entry.file),
                )
                .remedy("name the file itself in [predecessor] cron"),
            );
            continue;
        }
        let (_, lines_off) = covered(content, &c.entry);
        let escaped = escape_path(&c.entry.file);
        match UnitName::new(format!("{escaped}.mount")) {
            Ok(unit) => {
                // One that is covered already has the time of its cover.
                let before = found.covered.iter().find(|(file, _)| *file == c.entry.file).map(|(_, ns)| *ns);
                let mtime_ns = before.unwrap_or(c.mtime_ns);
                cron.push(CoverCron { entry: c.entry.clone(), stored: escaped, unit, lines_off, mtime_ns });
            }
            Err(why) => inhibitors.push(Finding::inhibitor(Kind::Refused, "cron", why)),
        }
    }
    for p in &found.processes {
        notes.push(
            Finding::note("process", format!("{} (pid {}) is ended; nothing keeps it from being started by hand, and release does not start it again", p.executable, p.pid))
                .remedy(format!("after a release start {} the way it was started before", p.executable)),
        );
    }
    if node.role == Role::Control {
        notes.push(Finding::note(
            "price",
            "while this control-node is adopted, the predecessor's updates stop for every machine it manages"
                .to_string(),
        ));
    }

    if !inhibitors.is_empty() {
        return Err(inhibitors);
    }

    let mut units: Vec<StopUnit> = found
        .control
        .iter()
        .map(|c| StopUnit {
            scope: c.scope.clone(),
            unit: c.unit.clone(),
            // What ran at the first adoption is what release starts again, whatever runs now.
            running: c.up || found.earlier.iter().any(|e| e.running && e.scope == c.scope && e.unit == c.unit),
            stand_in: stand_ins.contains(&(c.scope.clone(), c.unit.clone()))
                || found.earlier.iter().any(|e| e.stand_in && e.scope == c.scope && e.unit == c.unit),
        })
        .collect();
    units.sort_by_key(|u| stop_rank(&u.unit));

    let mut custody: Vec<String> = node.predecessor.files.clone();
    custody.extend(node.files.iter().map(|f| f.path.clone()));
    custody.extend(cron.iter().map(|c| c.entry.file.clone()));
    custody.sort();
    custody.dedup();

    let mut openings: Vec<Opening> =
        node.openings.iter().map(|o| Opening { module: o.module.clone(), flow: o.flow.clone() }).collect();
    openings.extend(found.foundation_openings.iter().cloned());
    openings.sort();
    openings.dedup();

    Ok(AdoptPlan {
        schema: ADOPT_PLAN_SCHEMA,
        node: node.name.clone(),
        custody,
        openings,
        opening_rules: found.opening_rules.clone(),
        units,
        cron,
        processes: found.processes.clone(),
        loader: found.loader.clone(),
        absent_packages: found.absent_packages.clone(),
        notes,
    })
}

impl AdoptPlan {
    /// The users whose managers must read their units again.
    pub fn users(&self) -> BTreeSet<String> {
        self.units
            .iter()
            .filter_map(|u| match &u.scope {
                Scope::User(name) => Some(name.clone()),
                Scope::System => None,
            })
            .collect()
    }

    /// SHA-256 of the plan as JSON, in hex: what the record names it by.
    pub fn digest(&self) -> anyhow::Result<String> {
        let bytes = serde_json::to_vec(self)?;
        Ok(Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect())
    }

    /// What is done, one line a step, for people.
    pub fn lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        for p in &self.custody {
            out.push(format!("take custody of {p}"));
        }
        for o in &self.openings {
            out.push(format!("keep open {} for {} ({})", o.flow, o.module, o.mark()));
        }
        for r in &self.opening_rules {
            out.push(format!("  {r}"));
        }
        for u in &self.units {
            let how = match (u.running, u.stand_in) {
                (true, true) => "stop it alone, a no-op unit takes its place",
                (false, true) => "a no-op unit takes its place",
                (true, false) => "stop and mask",
                (false, false) => "mask (it does not run)",
            };
            out.push(format!("{} ({}): {how}", u.unit, u.scope));
        }
        for c in &self.cron {
            out.push(format!("cover {} ({} line(s) off)", c.entry.file, c.lines_off));
        }
        for p in &self.processes {
            out.push(format!("end {} (pid {})", p.executable, p.pid));
        }
        out.push("write mode adopted, reload".to_string());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_model::closure::{Hold, Known};
    use mesh_model::node::{FlipSettings, Predecessor};
    use std::time::Duration;

    fn node(keep_dependents: bool) -> Node {
        Node {
            name: "alpha".into(),
            role: Role::Node,
            foundation: BTreeMap::new(),
            foundation_at: None,
            overlay: None,
            predecessor: Predecessor {
                keep_dependents,
                files: vec!["/etc/b".into(), "/etc/a".into()],
                ..Predecessor::default()
            },
            files: vec![],
            openings: vec![],
            modules: vec![],
            flip: FlipSettings {
                drop: vec![],
                unmigrated: vec![],
                confirm_within: Duration::from_secs(300),
                preview_max_age: Duration::from_secs(900),
            },
            origins: Default::default(),
        }
    }

    fn unit(name: &str, up: bool) -> FoundUnit {
        FoundUnit {
            scope: Scope::System,
            unit: UnitName::new(name).unwrap(),
            missing: false,
            up,
            fragment: String::new(),
        }
    }

    #[test]
    fn what_starts_services_is_stopped_before_them() {
        let found = Found {
            control: ["c.service", "c.socket", "c.target", "c.path", "c.timer"].map(|n| unit(n, true)).to_vec(),
            ..Found::default()
        };
        let plan = plan(&node(false), &found).unwrap();
        let order: Vec<_> = plan.units.iter().map(|u| u.unit.as_str()).collect();
        assert_eq!(order, ["c.timer", "c.path", "c.socket", "c.service", "c.target"]);
        assert_eq!(plan.custody, ["/etc/a", "/etc/b"]);
    }

    #[test]
    fn a_dragged_service_refuses_or_gets_a_stand_in() {
        for (hold, keep, refused) in [
            (Hold::Requires, false, true),
            (Hold::Requires, true, false),
            (Hold::BindsTo, true, true),
            (Hold::PartOf, true, false),
        ] {
            let web = UnitName::new("web.service").unwrap();
            let c = UnitName::new("c.service").unwrap();
            let graph = Graph::from([
                (c, Known { active: true, enabled: true, dependents: vec![(hold, web.clone())] }),
                (web, Known { active: true, enabled: false, dependents: vec![] }),
            ]);
            let found = Found {
                control: vec![unit("c.service", true)],
                graphs: BTreeMap::from([(Scope::System, graph)]),
                ..Found::default()
            };
            match plan(&node(keep), &found) {
                Ok(p) => {
                    assert!(!refused, "{hold} {keep}");
                    assert!(p.units[0].stand_in);
                }
                Err(f) => {
                    assert!(refused, "{hold} {keep}");
                    assert!(f[0].title.contains("web.service") && f[0].title.contains(hold.setting()));
                    assert_eq!(crate::plan::finding::refusal(&f).kind, Kind::Refused);
                }
            }
        }
    }

    #[test]
    fn what_a_mask_does_not_beat_is_said() {
        for (fragment, words) in [
            ("/run/systemd/transient/c.service", "start it the way it was started"),
            ("/run/user/1/systemd/transient/c.service", "start it the way it was started"),
            ("/home/a/.config/systemd/user.control/c.service", "remove that file"),
        ] {
            let control = vec![FoundUnit { fragment: fragment.into(), ..unit("c.service", true) }];
            let plan = plan(&node(false), &Found { control, ..Found::default() }).unwrap();
            assert!(plan.notes[0].words().contains(words), "{}", plan.notes[0].words());
        }
    }

    #[test]
    fn all_that_stands_in_the_way_is_said_at_once() {
        let found = Found {
            held: vec![("registry.http 5000/tcp".into(), "held by x".into())],
            unkeepable: vec![("/home/x/y".into(), "a link".into())],
            ..Found::default()
        };
        let findings = plan(&node(false), &found).unwrap_err();
        assert_eq!(findings.len(), 2);
        let failure = crate::plan::finding::refusal(&findings);
        assert_eq!(failure.kind, Kind::PortHeld);
        assert!(failure.what.contains("registry.http") && failure.what.contains("/home/x/y"));
    }

    #[test]
    fn what_ran_first_is_what_release_starts_again() {
        let earlier =
            StopUnit { scope: Scope::System, unit: UnitName::new("c.timer").unwrap(), running: true, stand_in: false };
        let found = Found {
            control: vec![unit("c.timer", false), unit("d.timer", false)],
            earlier: vec![earlier],
            ..Found::default()
        };
        let plan = plan(&node(false), &found).unwrap();
        assert_eq!(plan.units.iter().map(|u| u.running).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_cron_file_keeps_what_is_not_control() {
        let text = "# m h\nPATH=/bin\n* * * * * root /opt/fleet/run\n0 3 * * * root backup\n";
        let entry = CronEntry { file: "/etc/cron.d/x".into(), lines_with: Some("/opt/fleet/".into()) };
        let (out, off) = covered(text, &entry);
        assert_eq!(off, 1);
        assert_eq!(
            out,
            "# m h\nPATH=/bin\n# off while adopted: * * * * * root /opt/fleet/run\n0 3 * * * root backup\n"
        );
        assert_eq!(covered(text, &CronEntry { lines_with: None, ..entry }).1, 3);
    }
}
