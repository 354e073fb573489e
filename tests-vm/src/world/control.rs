//! The predecessor's control: what writes configuration. User-level daemons under a lingering user, their counterparts
//! of PID 1 for what a user cannot write, a cron entry, and a process that nothing but cron's `@reboot` starts.

use super::tree::{Node, Tree};

/// The lingering user that the control runs as.
pub const USER: &str = "fleet";
/// Its uid and gid.
pub const UID: u32 = 2000;
/// The other user whose files are synced.
pub const OTHER: &str = "dev";
/// Its uid and gid.
pub const OTHER_UID: u32 = 2001;

/// Control units of PID 1, as `node.toml` declares them.
pub const SYSTEM_UNITS: [&str; 8] = [
    "fleet-agent.service",
    "fleet-policy.timer",
    "fleet-policy.service",
    "fleet-drop.path",
    "fleet-drop.service",
    "fleet-api.socket",
    "fleet-api.service",
    "fleet-audit.timer",
];

/// Control units of the lingering user's manager.
pub const USER_UNITS: [&str; 7] = [
    "fleet-sync.service",
    "fleet-beat.timer",
    "fleet-beat.service",
    "fleet-inbox.path",
    "fleet-inbox.service",
    "fleet-ctl.socket",
    "fleet-ctl.service",
];

/// The cron entry.
pub const CRON: &str = "/etc/cron.d/fleet";
/// The bare process' executable.
pub const BARE: &str = "/opt/fleet/bin/agent";

/// The three system files that are synced.
pub const SYSTEM_FILES: [&str; 3] =
    ["/etc/ssh/sshd_config.d/50-fleet.conf", "/etc/apt/apt.conf.d/90fleet", "/etc/apps/edge-tls.conf"];

/// The nine files in homes that are synced.
pub const HOME_FILES: [&str; 9] = [
    "/home/fleet/.bashrc",
    "/home/fleet/.profile",
    "/home/fleet/.bash_aliases",
    "/home/fleet/.config/agent/settings.toml",
    "/home/fleet/.config/agent/rules.md",
    "/home/dev/.bashrc",
    "/home/dev/.profile",
    "/home/dev/.config/agent/settings.toml",
    "/home/dev/.config/agent/rules.md",
];

/// Where each running control daemon leaves the count of its rounds; what stands still is stopped.
pub const COUNTS: [&str; 6] = [
    "/var/lib/fleet/agent.count",
    "/var/lib/fleet/policy.count",
    "/var/lib/fleet/cron.count",
    "/var/lib/fleet/bare.count",
    "/home/fleet/.local/state/fleet/sync.count",
    "/home/fleet/.local/state/fleet/beat.count",
];
/// Where `ExecStop=` of the system units leaves its trace.
pub const STOPPED_SYSTEM: &str = "/var/lib/fleet/stopped.log";
/// Where `ExecStop=` of the user units leaves its trace.
pub const STOPPED_USER: &str = "/home/fleet/.local/state/fleet/stopped.log";

fn content(path: &str) -> String {
    match path {
        "/etc/ssh/sshd_config.d/50-fleet.conf" => "# synced by fleet\nX11Forwarding no\nPermitRootLogin no\n".into(),
        "/etc/apt/apt.conf.d/90fleet" => "// synced by fleet\nAPT::Install-Recommends \"false\";\n".into(),
        other => format!("# synced by fleet\n# {other}\nexport FLEET=1\n"),
    }
}

/// Everything of the control. `program` is the built `mesh-world`.
pub fn tree(program: &std::path::Path) -> Tree {
    let mut t = Tree::default();
    let mut lists = [String::new(), String::new()];
    let files = SYSTEM_FILES.iter().map(|f| (0, f)).chain(HOME_FILES.iter().map(|f| (1, f)));
    for (n, (list, path)) in files.enumerate() {
        let source = format!("/opt/fleet/share/{n:02}");
        t.file(source.clone(), content(path));
        lists[list].push_str(&format!("{source} {path}\n"));
        let (mode, uid, gid) = match () {
            () if path.starts_with("/home/dev") => (0o664, OTHER_UID, UID),
            () if path.starts_with("/home/fleet") => (0o644, UID, UID),
            () => (0o644, 0, 0),
        };
        t.put(*path, Node::File(content(path).into_bytes()), mode, uid, gid);
    }
    t.file("/opt/fleet/share/system.list", lists[0].clone());
    t.file("/opt/fleet/share/home.list", lists[1].clone());
    t.file("/opt/fleet/share/none.list", "");
    for copy in ["/opt/fleet/bin/fleetd", BARE] {
        t.put(copy, Node::Copy(program.into()), 0o755, 0, 0);
    }
    t.program(
        "/opt/fleet/bin/stopped",
        "#!/bin/sh\n# stopped LOG UNIT: the trace that a unit's own ExecStop= ran\necho \"$2\" >>\"$1\"\n",
    );
    t.program(
        "/opt/fleet/bin/tick",
        "#!/bin/sh\n# tick FILE: one more\nn=$(cat \"$1\" 2>/dev/null || echo 0)\necho $((n + 1)) >\"$1\"\n",
    );
    homes(&mut t);
    system(&mut t);
    user(&mut t);
    t.file(
        CRON,
        format!(
            "# the predecessor's\nPATH=/usr/bin:/bin\n* * * * * root /opt/fleet/bin/tick /var/lib/fleet/cron.count\n\
             @reboot {USER} exec {BARE} rewrite --every 2000 --list /opt/fleet/share/none.list --count /var/lib/fleet/bare.count\n"
        ),
    );
    t
}

fn homes(t: &mut Tree) {
    for (name, uid, home_mode) in [(USER, UID, 0o755), (OTHER, OTHER_UID, 0o755)] {
        t.put(format!("/home/{name}"), Node::Dir, home_mode, uid, uid);
        t.appended.push(("/etc/passwd".into(), format!("{name}:x:{uid}:{uid}::/home/{name}:/bin/bash")));
        t.appended.push(("/etc/group".into(), format!("{name}:x:{uid}:")));
        t.appended.push(("/etc/shadow".into(), format!("{name}:!:19000:0:99999:7:::")));
    }
    t.put(format!("/home/{USER}/.local/state/fleet"), Node::Dir, 0o755, UID, UID);
    t.put(format!("/home/{USER}/inbox"), Node::Dir, 0o755, UID, UID);
    t.put("/var/lib/fleet", Node::Dir, 0o775, 0, UID);
    t.put("/var/lib/fleet/drop", Node::Dir, 0o755, 0, 0);
    t.file(format!("/var/lib/systemd/linger/{USER}"), "");
}

fn system(t: &mut Tree) {
    let mut unit = |name: &str, text: String, wanted_by: &str| {
        t.file(format!("/etc/systemd/system/{name}"), text);
        if !wanted_by.is_empty() {
            t.link(format!("/etc/systemd/system/{wanted_by}.wants/{name}"), format!("../{name}"));
        }
    };
    let multi = "[Install]\nWantedBy=multi-user.target\n";
    unit(
        "fleet-agent.service",
        format!(
            "[Unit]\nDescription=Fleet agent: system files\n\n[Service]\n\
             ExecStart=/opt/fleet/bin/fleetd rewrite --every 3000 --list /opt/fleet/share/system.list --count /var/lib/fleet/agent.count\n\
             ExecStop=/opt/fleet/bin/stopped {STOPPED_SYSTEM} fleet-agent.service\nRestart=always\n\n{multi}"
        ),
        "multi-user.target",
    );
    let timers = "[Install]\nWantedBy=timers.target\n";
    for (timer, service, every) in [("fleet-policy", "fleet-policy", "2s"), ("fleet-audit", "fleet-policy", "1h")] {
        unit(
            &format!("{timer}.timer"),
            format!(
                "[Unit]\nDescription=Fleet {timer} timer\n\n[Timer]\nOnActiveSec=1s\nOnUnitActiveSec={every}\n\
                 AccuracySec=100ms\nUnit={service}.service\n\n{timers}"
            ),
            "timers.target",
        );
    }
    unit(
        "fleet-policy.service",
        "[Unit]\nDescription=Fleet policy\n\n[Service]\nType=oneshot\n\
         ExecStart=/opt/fleet/bin/tick /var/lib/fleet/policy.count\n"
            .into(),
        "",
    );
    unit(
        "fleet-drop.path",
        "[Unit]\nDescription=Fleet drop folder\n\n[Path]\nPathExistsGlob=/var/lib/fleet/drop/*\n\n[Install]\nWantedBy=paths.target\n"
            .into(),
        "paths.target",
    );
    unit(
        "fleet-drop.service",
        "[Unit]\nDescription=Fleet drop\n\n[Service]\nType=oneshot\n\
         ExecStart=/bin/sh -c 'rm -f /var/lib/fleet/drop/*; exec /opt/fleet/bin/tick /var/lib/fleet/drop.count'\n"
            .into(),
        "",
    );
    unit(
        "fleet-api.socket",
        "[Unit]\nDescription=Fleet interface\n\n[Socket]\nListenStream=/run/fleet-api.sock\n\n[Install]\nWantedBy=sockets.target\n"
            .into(),
        "sockets.target",
    );
    unit(
        "fleet-api.service",
        format!(
            "[Unit]\nDescription=Fleet interface\n\n[Service]\nExecStart=/bin/sleep infinity\n\
             ExecStop=/opt/fleet/bin/stopped {STOPPED_SYSTEM} fleet-api.service\n"
        ),
        "",
    );
}

fn user(t: &mut Tree) {
    let state = format!("/home/{USER}/.local/state/fleet");
    let mut unit = |name: &str, text: String, wanted_by: &str| {
        let dir = format!("/home/{USER}/.config/systemd/user");
        t.put(format!("{dir}/{name}"), Node::File(text.into_bytes()), 0o644, UID, UID);
        if !wanted_by.is_empty() {
            t.put(format!("{dir}/{wanted_by}.wants"), Node::Dir, 0o755, UID, UID);
            t.link(format!("{dir}/{wanted_by}.wants/{name}"), format!("../{name}"));
        }
    };
    unit(
        "fleet-sync.service",
        format!(
            "[Unit]\nDescription=Fleet sync: files in homes\n\n[Service]\n\
             ExecStart=/opt/fleet/bin/fleetd rewrite --every 2000 --list /opt/fleet/share/home.list --count {state}/sync.count\n\
             ExecStop=/opt/fleet/bin/stopped {STOPPED_USER} fleet-sync.service\nRestart=always\n\n\
             [Install]\nWantedBy=default.target\n"
        ),
        "default.target",
    );
    unit(
        "fleet-beat.timer",
        "[Unit]\nDescription=Fleet heart beat\n\n[Timer]\nOnActiveSec=1s\nOnUnitActiveSec=2s\nAccuracySec=100ms\n\n\
         [Install]\nWantedBy=timers.target\n"
            .into(),
        "timers.target",
    );
    unit(
        "fleet-beat.service",
        format!(
            "[Unit]\nDescription=Fleet heart beat\n\n[Service]\nType=oneshot\nExecStart=/opt/fleet/bin/tick {state}/beat.count\n"
        ),
        "",
    );
    unit(
        "fleet-inbox.path",
        format!(
            "[Unit]\nDescription=Fleet inbox\n\n[Path]\nPathExistsGlob=/home/{USER}/inbox/*\n\n[Install]\nWantedBy=paths.target\n"
        ),
        "paths.target",
    );
    unit(
        "fleet-inbox.service",
        format!(
            "[Unit]\nDescription=Fleet inbox\n\n[Service]\nType=oneshot\n\
             ExecStart=/bin/sh -c 'rm -f /home/{USER}/inbox/*; exec /opt/fleet/bin/tick {state}/inbox.count'\n"
        ),
        "",
    );
    unit(
        "fleet-ctl.socket",
        "[Unit]\nDescription=Fleet control socket\n\n[Socket]\nListenStream=%t/fleet-ctl.sock\n\n[Install]\nWantedBy=sockets.target\n"
            .into(),
        "sockets.target",
    );
    unit(
        "fleet-ctl.service",
        format!(
            "[Unit]\nDescription=Fleet control\n\n[Service]\nExecStart=/bin/sleep infinity\n\
             ExecStop=/opt/fleet/bin/stopped {STOPPED_USER} fleet-ctl.service\n"
        ),
        "",
    );
}
