//! How packages become a root directory and, with a kernel, a disk to boot it from.
//!
//! Two stages, each kept under the hash of what it is made from: the package stage (`mmdebstrap`, minutes) and the
//! finishing stage (seconds). The archives are those that this machine's own apt uses: none is named here.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, key, remove_tree};
use crate::initrd;
use crate::process::{Checked, command};

/// A Debian release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12: kernel 6.1, systemd 252.
    Bookworm,
    /// Debian 13: kernel 6.12, systemd 257.
    Trixie,
}

impl Suite {
    /// Both, the newer first.
    pub const ALL: [Suite; 2] = [Suite::Trixie, Suite::Bookworm];

    /// The archive's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Bookworm => "bookworm",
            Suite::Trixie => "trixie",
        }
    }
}

/// What an image is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The release.
    pub suite: Suite,
    /// Package names; a set, order does not matter.
    pub packages: Vec<String>,
    /// Whether it can boot by itself: with a kernel, an initrd and a disk.
    pub kernel: bool,
}

/// What every node has.
const BASE: &[&str] = &[
    "busybox-static",
    "conntrack",
    "dbus",
    "dbus-user-session",
    "iproute2",
    "iputils-ping",
    "libpam-systemd",
    "netcat-openbsd",
    "nftables",
    "polkitd",
    "procps",
    "systemd-sysv",
    "udev",
];

/// What a node with its own kernel has beside.
const KERNEL: &[&str] = &["e2fsprogs", "kmod", "linux-image-cloud-amd64"];

/// Units that cost a slow virtual machine seconds, or need hardware it has not.
const MASKED: &[&str] = &[
    "dev-hugepages.mount",
    "e2scrub_reap.service",
    "getty@tty1.service",
    "ldconfig.service",
    "modprobe@configfs.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "proc-sys-fs-binfmt_misc.automount",
    "serial-getty@ttyS0.service",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-binfmt.service",
    "systemd-hibernate-clear.service",
    "systemd-journal-catalog-update.service",
    "systemd-pstore.service",
];

/// Starts the agent before anything else, and nothing that a test does to the node stops it.
const AGENT_UNIT: &str = "\
[Unit]
Description=Runs the scripts of a test
DefaultDependencies=no
IgnoreOnIsolate=yes
StartLimitIntervalSec=0
After=systemd-remount-fs.service

[Service]
ExecStart=/usr/local/sbin/mesh-test-agent
Restart=always
RestartSec=300ms
KillMode=process
OOMScoreAdjust=-1000
";

/// PID 1 without systemd, for a quick look at a disk after a power cut: `init=/usr/local/sbin/mesh-test-init`.
const BARE_INIT: &str = "\
#!/bin/bash
export PATH=/usr/sbin:/usr/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
mountpoint -q /dev || mount -t devtmpfs dev /dev
while :; do /usr/local/sbin/mesh-test-agent & wait $!; sleep 0.2; done
";

impl Recipe {
    /// A node for namespaces, with these packages beside the base.
    pub fn node(suite: Suite, packages: &[&str]) -> Recipe {
        Recipe::of(suite, &[BASE, packages], false)
    }

    /// A machine with its own kernel, with these packages beside the base.
    pub fn machine(suite: Suite, packages: &[&str]) -> Recipe {
        Recipe::of(suite, &[BASE, KERNEL, packages], true)
    }

    fn of(suite: Suite, lists: &[&[&str]], kernel: bool) -> Recipe {
        let mut packages: Vec<String> =
            lists.iter().flat_map(|list| list.iter()).map(|name| name.to_string()).collect();
        packages.sort();
        packages.dedup();
        Recipe { suite, packages, kernel }
    }

    /// The image, from the cache or made now (a node of the base 20 s, a large one 3 minutes).
    pub fn image(&self, bed: &Bed) -> Result<Image> {
        let agent = bed.agent()?;
        let parts = [
            self.package_key(),
            key([include_str!("image.rs"), include_str!("initrd.rs")]),
            key([fs::read(&agent)?]),
            self.kernel.to_string(),
        ];
        let name = format!("image/{}-{}", self.suite.name(), key(parts));
        let dir = bed.once(&name, |part| {
            let tar = self.packages(bed)?;
            let root = part.join("rootfs");
            fs::create_dir(&root)?;
            command("nice", ["tar", "-xpf"]).arg(tar.join("rootfs.tar")).arg("-C").arg(&root).checked()?;
            finish(&root, &agent)?;
            if self.kernel {
                initrd::make(&root, part)?;
                let disk = part.join("root.img");
                command("nice", ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "-d"])
                    .args([&root, &disk])
                    .arg("6G")
                    .checked()?;
            }
            Ok(())
        })?;
        Ok(Image { dir, suite: self.suite })
    }

    fn bootstrap_options(&self) -> Vec<String> {
        let mut options: Vec<String> = [
            "--quiet",
            "--format=tar",
            "--variant=minbase",
            "--aptopt=Apt::Install-Recommends \"false\"",
            "--dpkgopt=force-unsafe-io",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
        ]
        .map(String::from)
        .to_vec();
        options.push(format!("--include={}", self.packages.join(",")));
        options
    }

    fn package_key(&self) -> String {
        key([vec![self.suite.name().to_owned()], self.bootstrap_options()].concat())
    }

    fn packages(&self, bed: &Bed) -> Result<PathBuf> {
        bed.once(&format!("tar/{}-{}", self.suite.name(), self.package_key()), |part| {
            let sources = part.join("sources.list");
            fs::write(&sources, sources_list(self.suite, &archives()?))?;
            let mut bootstrap = command("nice", ["mmdebstrap"]);
            bootstrap.args(self.bootstrap_options());
            // A proxy that this machine's apt is set up with holds for the image as well.
            for line in command("apt-config", ["dump", "Acquire::http::Proxy"]).checked()?.lines() {
                bootstrap.arg(format!("--aptopt={line}"));
            }
            bootstrap.arg(self.suite.name()).arg(part.join("rootfs.tar")).arg(sources).checked()?;
            Ok(())
        })
    }
}

/// Where this machine's apt finds Debian, and Debian's security updates.
#[derive(Debug, PartialEq, Eq)]
struct Archives {
    main: String,
    security: String,
}

fn archives() -> Result<Archives> {
    let targets = command(
        "apt-get",
        ["indextargets", "--no-release-info", "--format", "$(SITE)|$(REPO_URI)|$(RELEASE)", "Created-By: Packages"],
    )
    .checked()?;
    let uris: Vec<(&str, &str)> = targets
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('|').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .collect();
    find_archives(&uris).context("this machine's apt sources have no Debian archive (bookworm or trixie)")
}

/// The archive is told by the release it is used for: other sources of the machine have other release names.
fn find_archives(uris: &[(&str, &str)]) -> Option<Archives> {
    let with = |suffix: &str| {
        uris.iter()
            .find(|(_, release)| {
                Suite::ALL.iter().any(|suite| *release == format!("{}{suffix}", suite.name()))
                    || matches!(
                        (*release, suffix),
                        ("stable" | "oldstable", "") | ("stable-security" | "oldstable-security", "-security")
                    )
            })
            .map(|(uri, _)| uri.trim_end_matches('/').to_owned())
    };
    let main = with("")?;
    // A machine without security updates: Debian's own layout beside the archive.
    let security = with("-security").unwrap_or_else(|| format!("{main}-security"));
    Some(Archives { main, security })
}

fn sources_list(suite: Suite, archives: &Archives) -> String {
    let (suite, Archives { main, security }) = (suite.name(), archives);
    format!("deb {main} {suite} main\ndeb {main} {suite}-updates main\ndeb {security} {suite}-security main\n")
}

/// From the packages' state to a quiet node: the agent in, nothing started that a test did not ask for.
fn finish(root: &Path, agent: &Path) -> Result<()> {
    let etc = root.join("etc");
    let units = etc.join("systemd/system");
    install(agent, &root.join("usr/local/sbin/mesh-test-agent"))?;
    write(&root.join("usr/local/sbin/mesh-test-init"), BARE_INIT, 0o755)?;
    write(&units.join("mesh-test-agent.service"), AGENT_UNIT, 0o644)?;
    fs::create_dir_all(units.join("sysinit.target.wants"))?;
    symlink("../mesh-test-agent.service", units.join("sysinit.target.wants/mesh-test-agent.service"))?;
    for target in ["multi-user", "default", "timers", "sockets", "network-online"] {
        remove_tree(&units.join(format!("{target}.target.wants")))?;
    }
    for unit in MASKED {
        if fs::symlink_metadata(units.join(unit)).is_ok() {
            fs::remove_file(units.join(unit))?;
        }
        symlink("/dev/null", units.join(unit))?;
    }
    write(&etc.join("hostname"), "node\n", 0o644)?;
    write(&etc.join("hosts"), "127.0.0.1 localhost node\n::1 localhost node\n", 0o644)?;
    write(&etc.join("fstab"), "", 0o644)?;
    if fs::symlink_metadata(etc.join("resolv.conf")).is_ok() {
        fs::remove_file(etc.join("resolv.conf"))?;
    }
    write(&etc.join("resolv.conf"), "", 0o644)?;
    write(&etc.join("machine-id"), "6d6573682d746573742d6e6f64650000\n", 0o444)?;
    // Controllers of the node's container engine: this machine's cgroup tree may have no pids controller to hand down.
    write(&etc.join("containers/containers.conf.d/mesh-test.conf"), "[containers]\npids_limit = 0\n", 0o644)?;
    for dir in ["etc", "var"] {
        // Newer than /usr: ConditionNeedsUpdate units have nothing to do.
        write(&root.join(dir).join(".updated"), "", 0o644)?;
        command("touch", ["-d", "+1 day"]).arg(root.join(dir).join(".updated")).checked()?;
    }
    if root.join("usr/bin/ssh-keygen").exists() {
        Command::new("chroot").arg(root).args(["ssh-keygen", "-A"]).checked()?;
    }
    Ok(())
}

fn install(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot put {} into the image", from.display()))?;
    Ok(fs::set_permissions(to, Permissions::from_mode(0o755))?)
}

fn write(path: &Path, content: &str, mode: u32) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

/// A finished image in the cache. Never changed: nodes lay their own changes over it.
#[derive(Debug, Clone)]
pub struct Image {
    dir: PathBuf,
    suite: Suite,
}

impl Image {
    /// A directory that holds a `rootfs`, as a base for nodes.
    pub(crate) fn at(dir: PathBuf, suite: Suite) -> Image {
        Image { dir, suite }
    }

    /// The release it was made from.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The root directory.
    pub fn rootfs(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    /// The root disk; only of an image with a kernel.
    pub fn disk(&self) -> Result<PathBuf> {
        self.boot_file("root.img")
    }

    /// The kernel; only of an image with one.
    pub fn kernel(&self) -> Result<PathBuf> {
        self.boot_file("vmlinuz")
    }

    /// The initrd; only of an image with a kernel.
    pub fn initrd(&self) -> Result<PathBuf> {
        self.boot_file("initrd.gz")
    }

    /// The name that tells it from every other image.
    pub fn key(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn boot_file(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if !path.exists() {
            bail!("{} was made without a kernel: use Recipe::machine", self.key());
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archives_are_the_machines_own_and_other_sources_are_passed_over() {
        let uris = [
            ("http://other.test/apt/", "nodistro"),
            ("http://deb.test/debian/", "bookworm"),
            ("http://deb.test/debian/", "bookworm-updates"),
            ("http://sec.test/debian-security/", "bookworm-security"),
        ];
        let found = find_archives(&uris);
        let main = "http://deb.test/debian".to_owned();
        assert_eq!(found, Some(Archives { main: main.clone(), security: "http://sec.test/debian-security".into() }));
        assert_eq!(find_archives(&uris[..3]), Some(Archives { security: format!("{main}-security"), main }));
        assert_eq!(find_archives(&uris[..1]), None);
    }

    #[test]
    fn the_order_of_packages_does_not_make_another_image() {
        let one = Recipe::node(Suite::Trixie, &["cron", "podman"]);
        assert_eq!(one.package_key(), Recipe::node(Suite::Trixie, &["podman", "cron", "cron"]).package_key());
        assert_ne!(one.package_key(), Recipe::node(Suite::Bookworm, &["cron", "podman"]).package_key());
        assert_ne!(one.package_key(), Recipe::node(Suite::Trixie, &["cron"]).package_key());
    }
}
