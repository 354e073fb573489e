//! The unit of one module, from its manifest.

use crate::generate::NODE;
use crate::unit_text::{UnitText, command, plain, word};
use mesh_model::manifest::{Manifest, ModuleName, PortNumber, Run};
use mesh_model::node::Node;
use mesh_model::unit::UnitName;
use std::collections::BTreeSet;

/// `mesh-module-NAME.service`.
pub fn name(module: &ModuleName) -> String {
    format!("mesh-module-{module}.service")
}

/// What every module is run under: nothing of it writes the system's files, raises rights or sets the machine's clock.
const SANDBOX: &[(&str, &str)] = &[
    ("NoNewPrivileges", "yes"),
    ("ProtectSystem", "full"),
    ("ProtectHome", "read-only"),
    ("PrivateTmp", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("SystemCallArchitectures", "native"),
];

/// What one that is not root can do without as well.
const SANDBOX_OF_A_USER: &[(&str, &str)] =
    &[("PrivateDevices", "yes"), ("ProtectKernelModules", "yes"), ("ProtectKernelTunables", "yes")];

/// The unit's text; `None` for a module that is only files. `running` has the modules that have a unit.
pub fn text(manifest: &Manifest, source: &str, node: &Node, running: &BTreeSet<&ModuleName>) -> Option<String> {
    let run = manifest.run.as_ref()?;
    // A dependency that is not raised has no unit: ordering the raising is the helper's part.
    let depends: Vec<String> = manifest.depends.iter().filter(|d| running.contains(d)).map(name).collect();
    let mut unit = UnitText::new()
        .section("Unit")
        .set("Description", &plain(&format!("Mesh module {}: {}", manifest.name, manifest.summary)))
        .set("Documentation", "man:mesh-catalogue(5) man:mesh-generator(8)")
        .set("SourcePath", &plain(source))
        .set("PartOf", NODE)
        .set("After", "network.target mesh-firewall.service");
    if !depends.is_empty() {
        unit = unit.set("Requires", &depends.join(" ")).set("After", &depends.join(" "));
    }
    let unit = match run {
        Run::Command { exec, user, service_type, environment, state_directory } => {
            let mut unit = unit
                .section("Service")
                .set("Type", &plain(service_type))
                .set("ExecStart", &command(exec))
                .set("SyslogIdentifier", &format!("mesh-{}", manifest.name));
            if service_type == "oneshot" {
                unit = unit.set("RemainAfterExit", "yes");
            } else {
                unit = unit.set("Restart", "on-failure").set("RestartSec", "2s");
            }
            for pair in environment {
                unit = unit.set("Environment", &assignment(pair));
            }
            if let Some(directory) = state_directory {
                unit = unit.set("StateDirectory", &word(directory));
            }
            let mut unit = settings(unit, SANDBOX);
            for path in manifest.data.iter().filter(|path| is_read_only(path)) {
                unit = unit.set("ReadWritePaths", &word(&format!("-{path}")));
            }
            if let Some(user) = user {
                unit = settings(unit.set("User", &plain(user)), SANDBOX_OF_A_USER);
                let low = if has_low_port(manifest, node) { "CAP_NET_BIND_SERVICE" } else { "" };
                unit = unit.set("CapabilityBoundingSet", low).set("AmbientCapabilities", low);
            }
            unit
        }
        Run::Unit(unit_name) => follows(unit, unit_name),
        Run::Container { image, volumes, environment } => container(unit, &manifest.name, image, volumes, environment),
    };
    Some(unit.finish())
}

/// Whether the sandbox makes this place read-only (systemd.exec(5), `ProtectSystem=full` and `ProtectHome=`).
fn is_read_only(path: &str) -> bool {
    ["/boot/", "/efi/", "/etc/", "/home/", "/root/", "/run/user/", "/usr/"].iter().any(|tree| path.starts_with(tree))
}

fn settings(unit: UnitText, all: &[(&str, &str)]) -> UnitText {
    all.iter().fold(unit, |unit, (key, value)| unit.set(key, value))
}

fn assignment((key, value): &(String, String)) -> String {
    word(&format!("{key}={value}"))
}

/// Whether a port of the module is one that only root may bind (`net.ipv4.ip_unprivileged_port_start`, 1024).
fn has_low_port(manifest: &Manifest, node: &Node) -> bool {
    manifest.ports.iter().any(|port| {
        let number = match port.number {
            PortNumber::Default(number) => number,
            PortNumber::Foundation(which) => node.foundation.get(&which).map_or(which.standard(), |e| e.port),
        };
        number < 1024
    })
}

/// A unit that a package ships runs as it is, with its own sandbox and user. The module's unit is there so that a module
/// has one name, one state and one place in the order whatever runs it: it starts and stops with the package's unit, in
/// both directions.
fn follows(unit: UnitText, followed: &UnitName) -> UnitText {
    let followed = plain(followed.as_str());
    unit.set("BindsTo", &followed)
        .set("After", &followed)
        .set("PropagatesStopTo", &followed)
        .section("Service")
        .set("Type", "oneshot")
        .set("RemainAfterExit", "yes")
        .set("ExecStart", "/usr/bin/true")
}

/// A container of podman's, in the host's network: what it opens goes through the found firewall as any service's does,
/// and no runtime adds a rule to it.
///
/// It is `mesh-NAME` and never takes a container's name (`--replace` would remove whichever has it): if one is found
/// there, the start fails and says so. Only the container that this unit itself made, known by its id file, is removed,
/// which after a power cut is still there.
fn container(
    unit: UnitText,
    module: &ModuleName,
    image: &str,
    volumes: &[String],
    environment: &[(String, String)],
) -> UnitText {
    let id_file = format!("/var/lib/mesh/mesh-module-{module}.cid");
    let remove = format!("-/usr/bin/podman rm --force --ignore --cidfile={id_file}");
    let mut arguments: Vec<String> = [
        "/usr/bin/podman",
        "run",
        "--detach",
        "--rm",
        "--cgroups=split",
        "--sdnotify=conmon",
        "--log-driver=passthrough",
        "--network=host",
        "--pull=never",
    ]
    .map(String::from)
    .to_vec();
    arguments.push(format!("--name=mesh-{module}"));
    arguments.push(format!("--cidfile={id_file}"));
    arguments.push(format!("--label=mesh.module={module}"));
    arguments.extend(volumes.iter().map(|v| format!("--volume={v}")));
    // By name only: podman takes the value from its own environment, so that none is in a command line.
    arguments.extend(environment.iter().map(|(key, _)| format!("--env={key}")));
    arguments.push(image.to_string());
    let unit = unit
        .set("RequiresMountsFor", "/var/lib/mesh /var/lib/containers")
        .section("Service")
        .set("Type", "notify")
        .set("NotifyAccess", "all")
        .set("Delegate", "yes")
        .set("KillMode", "mixed")
        // What a container that ends on SIGTERM reports.
        .set("SuccessExitStatus", "143")
        .set("Restart", "on-failure")
        .set("RestartSec", "2s")
        .set("SyslogIdentifier", &format!("mesh-{module}"));
    let unit = environment.iter().fold(unit, |unit, pair| unit.set("Environment", &assignment(pair)));
    let stop = format!("-/usr/bin/podman stop --ignore --cidfile={id_file}");
    unit.set("ExecStartPre", &remove)
        .set("ExecStartPre", &format!("/usr/bin/rm -f {id_file}"))
        .set("ExecStart", &command(&arguments))
        .set("ExecStop", &stop)
        .set("ExecStopPost", &remove)
}
