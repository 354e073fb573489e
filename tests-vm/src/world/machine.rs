//! The world built once, kept in the cache, and booted for each test with a prober's place outside it.

use super::control;
use super::files;
use super::plan::{self, Size};
use crate::bed::{Bed, key};
use crate::image::{Image, Recipe, Suite};
use crate::netns::Netns;
use crate::node::Node;
use crate::nspawn::Nspawn;
use crate::process::{Checked, command};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What the world has beside the base of every node.
const PACKAGES: &[&str] = &["cron", "iptables", "openssh-server"];
/// What runs its containers.
const CONTAINER_PACKAGES: &[&str] = &["aardvark-dns", "conmon", "crun", "netavark", "podman", "uidmap"];

/// Which world is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    /// Debian's release.
    pub suite: Suite,
    /// How much of it.
    pub size: Size,
}

/// A booted world, and the place outside from where it is probed.
#[derive(Debug)]
pub struct Site {
    /// The machine. Before `outside`, so that it ends first.
    pub node: Nspawn,
    /// The network namespace at the other end of its cable.
    pub outside: Netns,
    /// What was built.
    pub world: World,
}

impl World {
    /// The small one on Debian 13.
    pub const SMALL: World = World { suite: Suite::Trixie, size: Size::Small };
    /// The full one on Debian 13.
    pub const FULL: World = World { suite: Suite::Trixie, size: Size::Full };

    /// Boots a copy of the world: everything serves when this returns.
    pub fn boot(self, bed: &Bed, name: &str) -> Result<Site> {
        let mut site = self.create(bed, name)?;
        site.node.start()?;
        site.settle()?;
        Ok(site)
    }

    /// As [`World::boot`] without starting it: files can be put in first.
    pub fn create(self, bed: &Bed, name: &str) -> Result<Site> {
        let saved = self.saved(bed)?;
        Site::create(bed, &Image::at(saved.clone(), self.suite), name, self, Some(&saved.join("containers")))
    }

    fn recipe(self) -> Recipe {
        match self.size {
            Size::Full => Recipe::node(self.suite, &[PACKAGES, CONTAINER_PACKAGES].concat()),
            Size::Small => Recipe::node(self.suite, PACKAGES),
        }
    }

    /// The built world in the cache: `rootfs/` and `containers/`.
    fn saved(self, bed: &Bed) -> Result<PathBuf> {
        let image = self.recipe().image(bed)?;
        let program = program()?;
        let tree = files::tree(self.suite, self.size, &program);
        let bytes = std::fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        let made_of = [image.key().into_bytes(), format!("{tree:?}").into_bytes(), bytes, vec![1]];
        let place = format!("saved/world-{}-{:?}-{}", self.suite.name(), self.size, key(made_of)).to_lowercase();
        bed.once(&place, |part| {
            let mut site = Site::create(bed, &image, "build-world", self, None)?;
            tree.write(&site.node.root())?;
            site.node.start()?;
            site.node.wait_running()?;
            if self.size == Size::Full {
                site.node.run_within("/srv/fleet/first-start", Duration::from_secs(600))?;
            }
            site.settle()?;
            site.node.stop()?;
            // What the first boot wrote and no later one should find.
            let mut forget = vec!["var/log/journal".to_string()];
            forget.extend([control::STOPPED_SYSTEM, control::STOPPED_USER].map(|p| p.trim_start_matches('/').into()));
            forget.extend(control::COUNTS.map(|p| p.trim_start_matches('/').into()));
            command("rm", ["-rf"]).args(forget.iter().map(|p| site.node.root().join(p))).checked()?;
            command("cp", ["-a"]).arg(site.node.root()).arg(part.join("rootfs")).checked()?;
            command("cp", ["-a"]).arg(site.node.under("/var/lib/containers")).arg(part.join("containers")).checked()?;
            Ok(())
        })
    }
}

impl Site {
    fn create(bed: &Bed, image: &Image, name: &str, world: World, containers: Option<&Path>) -> Result<Site> {
        let mut node = Nspawn::create(bed, image, name)?;
        if let Some(containers) = containers {
            let to = node.under("/var/lib/containers");
            command("cp", ["-aT"]).arg(containers).arg(to).checked()?;
        }
        let outside = Netns::new(&format!("{name}-out"))?;
        let setup = format!(
            "ip addr add {}/24 dev cable; ip addr add {}/32 dev cable; ip addr add {}/32 dev cable; ip addr add fd77::1/64 dev cable nodad; \
             ip link set cable up",
            files::OUTSIDE,
            files::BANNED_OUTSIDE,
            files::STRANGER_OUTSIDE
        );
        node.wire("lan0", &outside, "cable", &setup);
        Ok(Site { node, outside, world })
    }

    /// Waits until all that belongs to the machine is up: units, the lingering user's manager, the control, containers.
    pub fn settle(&mut self) -> Result<()> {
        self.node.wait_running()?;
        let containers = plan::containers(self.world.size).len();
        let mut checks = format!(
            "systemctl --user -M {}@ is-active --quiet fleet-sync.service && [ -s {} ]",
            control::USER,
            control::COUNTS[0]
        );
        if containers > 0 {
            checks.push_str(&format!(" && [ $(podman ps -q | wc -l) = {containers} ]"));
        }
        self.node.wait_for(&checks, Duration::from_secs(120))?;
        Ok(())
    }

    /// Reboots by the machine's own systemd, and waits until everything serves again.
    pub fn reboot(&mut self) -> Result<()> {
        self.node.reboot()?;
        self.node.wait_running()
    }
}

/// The world's program, static. Built here, so that a test never runs with an old one.
fn program() -> Result<PathBuf> {
    static BUILT: std::sync::Mutex<Option<PathBuf>> = std::sync::Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(path) = built.as_ref() {
        return Ok(path.clone());
    }
    let path = build_static("mesh-tests-vm", &["mesh-world"])?.join("mesh-world");
    *built = Some(path.clone());
    Ok(path)
}

/// Builds programs of the workspace static, in the quick profile; gives the folder they are in.
pub fn build_static(package: &str, programs: &[&str]) -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is in no workspace")?;
    let host = Command::new("rustc").arg("-vV").checked()?;
    let host = host.lines().find_map(|l| l.strip_prefix("host: ")).context("rustc does not say its host")?;
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace).args(["build", "--quiet", "--profile", "ci", "--package", package, "--target", host]);
    for program in programs {
        cargo.args(["--bin", program]);
    }
    // With --target the flags reach only what is built for the machine, not build scripts.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").checked()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let dir = target.join(host).join("ci");
    if !dir.join(programs[0]).exists() {
        bail!("{} was not built", dir.join(programs[0]).display());
    }
    Ok(dir)
}
