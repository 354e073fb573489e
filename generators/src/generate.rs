//! From what the files say to the tree of units: pure, total, the same for the same input.

use crate::module_unit;
use crate::tree::{Folder, UnitTree};
use crate::unit_text::{UnitText, plain};
use mesh_model::manifest::Manifest;
use mesh_model::mode::Mode;
use mesh_model::node::{CronEntry, Node};
use mesh_model::unit::{Scope, UnitName, escape_path};
use std::collections::BTreeSet;

/// What the files say.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Whose manager asks.
    pub scope: Scope,
    /// Whether a verb was cut in the middle (or is in it).
    pub pending: bool,
    /// The configuration.
    pub config: Config,
}

/// The configuration as far as a generator needs it.
#[derive(Debug, Clone)]
pub enum Config {
    /// The mode is `unmanaged`, or lowered to it.
    Unmanaged,
    /// A file is invalid: the machine is left as it was found.
    Invalid,
    /// The mesh has a part in this machine.
    Managed(Box<Managed>),
}

/// A node that is adopted or converged.
#[derive(Debug, Clone)]
pub struct Managed {
    /// Not [`Mode::Unmanaged`].
    pub mode: Mode,
    /// The node.
    pub node: Node,
    /// The assigned modules that were raised or migrated, each with the manifest's path. Empty in a user's scope.
    pub modules: Vec<(Manifest, String)>,
    /// Control units that something else requires, so that a no-op takes their place.
    pub stand_ins: BTreeSet<(Scope, UnitName)>,
}

/// The unit types that stay running when something is isolated, each by a drop-in for the whole type. The others
/// (mount, slice, scope, device, swap, automount) do so by themselves (systemd.unit(5), `IgnoreOnIsolate=`).
const ISOLATED_TYPES: [&str; 5] = ["path", "service", "socket", "target", "timer"];

/// What reads crontabs.
const CRON: &str = "cron.service crond.service cronie.service anacron.service";

/// The tree, and what was asked for that cannot be.
pub fn generate(inputs: &Inputs) -> (UnitTree, Vec<String>) {
    let mut tree = UnitTree::default();
    let mut warnings = Vec::new();
    if inputs.pending && inputs.scope == Scope::System {
        tree.want_shipped("sysinit.target", "mesh-recover.service");
    }
    match &inputs.config {
        Config::Unmanaged => {}
        Config::Invalid => {
            if inputs.scope == Scope::System {
                tree.want_shipped("multi-user.target", "mesh-mode-invalid.service");
            }
        }
        Config::Managed(managed) => {
            control(&mut tree, &mut warnings, managed, &inputs.scope);
            if inputs.scope == Scope::System {
                node_target(&mut tree, managed);
                mode_of(&mut tree, &mut warnings, managed.mode);
            }
        }
    }
    (tree, warnings)
}

/// Takes the predecessor's control out of this manager's hands.
fn control(tree: &mut UnitTree, warnings: &mut Vec<String>, managed: &Managed, scope: &Scope) {
    for (_, unit) in managed.node.predecessor.control().filter(|(s, _)| s == scope) {
        let stands_in = managed.stand_ins.contains(&(scope.clone(), unit.clone()));
        match (stands_in, unit.kind()) {
            (true, "service" | "target") => stand_in(tree, unit),
            (true, kind) => {
                warnings.push(format!("{unit} is masked: only a service or a target can be a no-op, not a {kind}"));
                tree.mask(unit.as_str());
            }
            (false, _) => tree.mask(unit.as_str()),
        }
    }
}

/// A unit of the same name that does nothing, for what requires it.
fn stand_in(tree: &mut UnitTree, unit: &UnitName) {
    let description = format!("Stands in for {unit}, which the mesh has stopped");
    let text = UnitText::new()
        .section("Unit")
        .set("Description", &plain(&description))
        .set("Documentation", "man:mesh-generator(8)")
        .set("SourcePath", "/etc/mesh/state.toml");
    if unit.kind() == "target" {
        tree.file(Folder::Early, unit.as_str(), text.finish());
        return;
    }
    let text =
        text.section("Service").set("Type", "oneshot").set("RemainAfterExit", "yes").set("ExecStart", "/usr/bin/true");
    tree.file(Folder::Early, unit.as_str(), text.finish());
    // The found unit's own drop-ins apply to the stand-in too, and could bring its command back. This one sorts after
    // any name that a package or an admin would give, and takes back every command and what could make `true` fail.
    let mut reset = UnitText::new().section("Service");
    for command in
        ["ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecStop", "ExecStopPost"]
    {
        reset = reset.set(command, "");
    }
    let reset = reset
        .set("Type", "oneshot")
        .set("RemainAfterExit", "yes")
        .set("Restart", "no")
        .set("User", "")
        .set("Group", "")
        .set("ExecStart", "/usr/bin/true");
    tree.file(Folder::Early, format!("{unit}.d/~~mesh-stand-in.conf"), reset.finish());
}

/// `mesh-node.target` and all that belongs to it.
fn node_target(tree: &mut UnitTree, managed: &Managed) {
    let text = UnitText::new()
        .section("Unit")
        .set("Description", &plain(&format!("Mesh node {}", managed.node.name)))
        .set("Documentation", "man:mesh-adopt.target(7) man:mesh-generator(8)")
        .set("SourcePath", "/etc/mesh/mode");
    tree.file(Folder::Normal, NODE, text.finish());
    tree.want("multi-user.target", NODE);
    tree.want_shipped(NODE, "mesh-firewall.service");
    tree.want_shipped(NODE, "mesh-watch.socket");
    // Whatever is booted into: where something brings a network up, the openings precede it. Both targets are passive and
    // in use only at boot, so that a machine that runs has no other units active than before.
    tree.want_shipped("network.target", "network-pre.target");
    tree.want_shipped("network-pre.target", "mesh-firewall.service");
    for entry in &managed.node.predecessor.cron {
        cron_mount(tree, entry);
    }
    let running: BTreeSet<_> = managed.modules.iter().filter(|(m, _)| m.run.is_some()).map(|(m, _)| &m.name).collect();
    for (manifest, source) in &managed.modules {
        if let Some(text) = module_unit::text(manifest, source, &managed.node, &running) {
            let unit = module_unit::name(&manifest.name);
            tree.want(NODE, &unit);
            tree.file(Folder::Normal, unit, text);
        }
    }
}

/// The target of everything that runs on this node for the mesh.
pub const NODE: &str = "mesh-node.target";

/// Lays what the helper left of a crontab over the found one, which stays as it was underneath.
fn cron_mount(tree: &mut UnitTree, entry: &CronEntry) {
    let escaped = escape_path(&entry.file);
    let unit = format!("{escaped}.mount");
    let text = UnitText::new()
        .section("Unit")
        .set("Description", &plain(&format!("Cron entries of the predecessor taken out of {}", entry.file)))
        .set("Documentation", "man:mesh-generator(8)")
        .set("SourcePath", "/etc/mesh/node.toml")
        // Else the manager would make the mount point.
        .set("ConditionPathExists", &plain(&entry.file))
        .set("PartOf", NODE)
        .set("Before", CRON)
        .section("Mount")
        .set("What", &plain(&format!("/etc/mesh/cron/{escaped}")))
        .set("Where", &plain(&entry.file))
        .set("Type", "none")
        .set("Options", "bind,ro");
    tree.file(Folder::Normal, unit.as_str(), text.finish());
    tree.want(NODE, &unit);
}

/// What differs between the modes (DESIGN §3 and §6.4).
fn mode_of(tree: &mut UnitTree, warnings: &mut Vec<String>, mode: Mode) {
    match mode {
        Mode::Unmanaged => {}
        Mode::Adopted => {
            let allow = UnitText::new().section("Unit").set("AllowIsolate", "yes");
            tree.file(Folder::Normal, "mesh-converged.target.d/50-mesh-isolate.conf", allow.finish());
            for kind in ISOLATED_TYPES {
                let ignore = UnitText::new().section("Unit").set("IgnoreOnIsolate", "yes");
                tree.file(Folder::Normal, format!("{kind}.d/50-mesh-isolate.conf"), ignore.finish());
            }
        }
        Mode::Converged => {
            tree.want_shipped("multi-user.target", "mesh-converged.target");
            let skip = UnitText::new().section("Unit").set("ConditionPathExists", "!/etc/mesh/mode");
            tree.file(Folder::Normal, "mesh-flip.service.d/50-mesh-converged.conf", skip.finish());
            warnings.push(
                "the mode is converged, and this release has no derived ruleset: the found firewall's loader is left \
                 as it is"
                    .into(),
            );
        }
    }
}
