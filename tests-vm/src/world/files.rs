//! Which files make a Debian machine into this one: units, firewall, environment and compose files, the control.

use super::control;
use super::firewall;
use super::plan::{self, Container, Service, Size, Speaks};
use super::tree::{Node, Tree};
use crate::image::Suite;
use std::fmt::Write as _;
use std::path::Path;

/// Where the services' program is.
pub const PROGRAM: &str = "/opt/apps/bin/serve";
/// Where the test's own program is.
pub const TOOL: &str = "/usr/local/lib/mesh-tests/mesh-world";
/// Address of the machine on the cable to the prober.
pub const INSIDE: &str = "10.77.0.2";
/// Its IPv6 address.
pub const INSIDE6: &str = "fd77::2";
/// Another address of the prober, which the found firewall bans.
pub const BANNED_OUTSIDE: &str = "198.51.100.9";
/// One more address of the prober: neither banned nor of the administrators' network.
pub const STRANGER_OUTSIDE: &str = "192.0.2.77";
/// Address of the prober.
pub const OUTSIDE: &str = "10.77.0.1";

/// Everything. `program` is the built `mesh-world`.
pub fn tree(suite: Suite, size: Size, program: &Path) -> Tree {
    let mut t = control::tree(program);
    t.put(TOOL, Node::Copy(program.into()), 0o755, 0, 0);
    t.put(PROGRAM, Node::Copy(program.into()), 0o755, 0, 0);
    t.put("/etc/nftables.conf", Node::File(firewall::nftables_conf().into_bytes()), 0o755, 0, 0);
    t.link("/etc/systemd/system/sysinit.target.wants/nftables.service", "/usr/lib/systemd/system/nftables.service");
    t.link("/etc/systemd/system/multi-user.target.wants/cron.service", "/usr/lib/systemd/system/cron.service");
    t.file("/etc/hostname", "alpha\n");
    t.file("/srv/www/index.html", "edge-http\n");
    network(&mut t);
    for s in plan::services(size) {
        match s.speaks {
            Speaks::Ssh => ssh(&mut t, suite),
            Speaks::Banner | Speaks::Http => service(&mut t, s),
        }
    }
    for c in plan::containers(size) {
        compose(&mut t, &c);
    }
    if size == Size::Full {
        containers(&mut t, suite, program);
    }
    t
}

fn network(t: &mut Tree) {
    t.program(
        "/opt/apps/bin/net-up",
        format!(
            "#!/bin/sh\n# The one cable of this machine, whatever its driver calls it.\n\
             for i in lan0 host0 eth0; do [ -e /sys/class/net/$i ] || continue\n\
             ip addr replace {INSIDE}/24 dev $i; ip addr replace fd77::2/64 dev $i nodad; ip link set $i up\n\
             ip route replace default via {OUTSIDE} dev $i; exit 0; done\nexit 0\n"
        ),
    );
    enabled(
        t,
        "net-up.service",
        "[Unit]\nDescription=Network\nDefaultDependencies=no\nAfter=network-pre.target nftables.service\n\
         Before=network.target\nWants=network.target\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
         ExecStart=/opt/apps/bin/net-up\n",
    );
}

/// A unit of `multi-user.target`.
fn enabled(t: &mut Tree, name: &str, text: &str) {
    t.file(format!("/etc/systemd/system/{name}"), format!("{text}\n[Install]\nWantedBy=multi-user.target\n"));
    t.link(format!("/etc/systemd/system/multi-user.target.wants/{name}"), format!("../{name}"));
}

fn service(t: &mut Tree, s: &Service) {
    let command = if s.speaks == Speaks::Http {
        "/usr/bin/busybox httpd -f -p 80 -h /srv/www".to_string()
    } else {
        let mut words = format!("{PROGRAM} serve --name {}", s.name);
        let mut add = |option: &str, address: &str, ports: &[u16]| {
            for port in ports {
                // Writing to a string cannot fail.
                if write!(words, " --{option} {address}:{port}").is_err() {
                    return;
                }
            }
        };
        add("tcp", "[::]", s.tcp);
        add("tcp", "[::]", s.waiting);
        add("tcp", "127.0.0.1", s.local);
        add("udp", "[::]", s.udp);
        words
    };
    t.file(format!("/etc/apps/{}.env", s.name), format!("APP_NAME={}\nAPP_STAGE=production\n", s.name));
    enabled(
        t,
        &format!("{}.service", s.name),
        &format!(
            "[Unit]\nDescription={} of the predecessor\nAfter=network.target\n\n[Service]\n\
             EnvironmentFile=/etc/apps/{}.env\nExecStart={command}\nRestart=always\nUser=nobody\n\
             AmbientCapabilities=CAP_NET_BIND_SERVICE\n",
            s.name, s.name
        ),
    );
}

fn ssh(t: &mut Tree, suite: Suite) {
    t.link("/etc/systemd/system/multi-user.target.wants/ssh.service", "/usr/lib/systemd/system/ssh.service");
    // The prober connects often and never logs in: OpenSSH from 9.8 on would shut it out.
    let penalties = if suite == Suite::Bookworm { "" } else { "PerSourcePenalties no\n" };
    t.file("/etc/ssh/sshd_config.d/10-site.conf", format!("MaxStartups 200:30:400\n{penalties}"));
}

fn containers(t: &mut Tree, suite: Suite, program: &Path) {
    // The image is made from these on the machine itself: no registry.
    t.put("/srv/fleet/image/bin/serve", Node::Copy(program.into()), 0o755, 0, 0);
    t.link("/srv/fleet/image/bin/sh", "busybox");
    t.file(
        "/etc/containers/containers.conf.d/fleet.conf",
        "[network]\nnetwork_backend = \"netavark\"\n\n[engine]\ncgroup_manager = \"systemd\"\nevents_logger = \"file\"\n",
    );
    if suite == Suite::Bookworm {
        // crun 1.8 raises RLIMIT_MEMLOCK for its device filter and fails where it may not; newer ones go on.
        t.file("/etc/containers/containers.conf.d/bookworm.conf", "[containers]\ncgroups = \"disabled\"\n");
    }
    t.link(
        "/etc/systemd/system/multi-user.target.wants/podman-restart.service",
        "/usr/lib/systemd/system/podman-restart.service",
    );
    let mut script = String::from(
        "#!/bin/bash\n# Makes the images and starts every container for the first time.\nset -eu\n\
         install -m755 /usr/bin/busybox /srv/fleet/image/bin/busybox\n\
         for image in app store media; do\n\
         echo $image >/srv/fleet/image/name\n\
         tar -C /srv/fleet/image -cf - . | podman import --quiet - localhost/fleet-$image:1 >/dev/null\ndone\n",
    );
    for c in plan::containers(Size::Full) {
        script.push_str(&run(&c));
        script.push('\n');
    }
    t.program("/srv/fleet/first-start", script);
}

/// The command that starts a container for the first time.
fn run(c: &Container) -> String {
    let image = if c.store {
        "store"
    } else if c.udp.is_some() {
        "media"
    } else {
        "app"
    };
    let mut line = format!(
        "podman run --quiet --detach --restart always --stop-signal KILL --name {0} --env-file /srv/fleet/{0}/env",
        c.name
    );
    let mut add = |word: String| {
        line.push(' ');
        line.push_str(&word);
    };
    if c.host_network {
        add("--network host".into());
    } else {
        add(format!("--publish {}:{}", c.published, c.tcp));
        if let Some(udp) = c.udp {
            add(format!("--publish {udp}:{udp}/udp"));
        }
    }
    if c.store {
        add(format!("--volume {}-data:/data", c.name));
    }
    add(format!("localhost/fleet-{image}:1 /bin/serve serve --name {} --tcp 0.0.0.0:{}", c.name, c.tcp));
    if let Some(udp) = c.udp {
        add(format!("--udp 0.0.0.0:{udp}"));
    }
    if c.store {
        add("--data /data".into());
    }
    format!("{line} >/dev/null")
}

fn compose(t: &mut Tree, c: &Container) {
    t.file(format!("/srv/fleet/{}/env", c.name), format!("APP_NAME={}\nAPP_STAGE=production\n", c.name));
    t.file(
        format!("/srv/fleet/{}/compose.yaml", c.name),
        format!(
            "services:\n  {}:\n    env_file: env\n    ports: [\"{}:{}\"]\n    restart: always\n",
            c.name, c.published, c.tcp
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sizes_have_the_same_firewall_and_control() {
        let full = tree(Suite::Trixie, Size::Full, Path::new("/bin/true"));
        let small = tree(Suite::Trixie, Size::Small, Path::new("/bin/true"));
        for path in small.entries.keys() {
            assert_eq!(full.entries.get(path), small.entries.get(path), "{path}");
        }
        assert_eq!(full.entries.keys().filter(|p| p.ends_with("/compose.yaml")).count(), 60);
    }
}
