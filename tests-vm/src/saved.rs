//! A booted machine kept on disk (memory and disk overlay), of which copies answer in about a second.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;

use crate::bed::{Bed, key};
use crate::image::Image;
use crate::node::Node;
use crate::process::Checked;
use crate::switch::Switch;
use crate::vm::{Base, Hardware, Vm, arguments};

/// What is done to a machine before it is saved.
#[derive(Debug, Clone, Default)]
pub struct Preparation {
    /// Files and directories of this machine, and where they go.
    pub copies: Vec<(PathBuf, String)>,
    /// A script, run after the boot and the copies; it must exit 0 within ten minutes.
    pub script: String,
}

/// A saved machine in the cache.
#[derive(Debug, Clone)]
pub struct Saved {
    bed: Bed,
    image: Image,
    hardware: Hardware,
    dir: PathBuf,
}

impl Saved {
    /// Boots, prepares and saves a machine, or takes it from the cache. What names it there: the image, the hardware,
    /// qemu's version, the script and every file that is copied in.
    pub fn of(bed: &Bed, image: &Image, label: &str, hardware: Hardware, what: &Preparation) -> Result<Saved> {
        let version = Command::new("qemu-system-x86_64").arg("--version").checked()?;
        let mut parts: Vec<Vec<u8>> = vec![image.key().into(), version.into(), what.script.clone().into()];
        parts.extend(arguments(image, Path::new(""), &hardware)?.into_iter().map(Vec::from));
        for (from, to) in &what.copies {
            parts.push(to.clone().into());
            let listing = Command::new("find").arg(from).args(["-printf", "%P %m %l\\n"]).checked()?;
            let mut paths: Vec<&str> = listing.lines().collect();
            paths.sort_unstable();
            parts.push(paths.join("\n").into());
            for path in paths.iter().filter_map(|line| line.split(' ').next()) {
                let file = if path.is_empty() { from.clone() } else { from.join(path) };
                if fs::symlink_metadata(&file)?.is_file() {
                    parts.push(fs::read(file)?);
                }
            }
        }
        let name = format!("saved/{label}-{}-{}", image.suite().name(), key(parts));
        let dir = bed.once(&name, |part| save(bed, image, label, hardware.clone(), what, part))?;
        Ok(Saved { bed: bed.clone(), image: image.clone(), hardware, dir })
    }

    /// A running copy with a disk of its own.
    pub fn copy(&self, name: &str, switch: &Switch) -> Result<Vm> {
        let disk = self.dir.join("disk.qcow2");
        let base = Base::Saved { disk: &disk };
        let mut vm = Vm::create(&self.bed, &self.image, name, switch, self.hardware.clone(), &base)?;
        vm.launch(Some(&self.dir.join("memory")))?;
        Ok(vm)
    }
}

fn save(bed: &Bed, image: &Image, label: &str, hardware: Hardware, what: &Preparation, into: &Path) -> Result<()> {
    let mut vm = Vm::boot(bed, image, label, &Switch::new(), hardware)?;
    // A copy must find its network card: modules in, devices settled, before the memory is written.
    vm.run("modprobe -a virtio_net nf_tables nf_conntrack && udevadm settle -t 60 && ip link show eth0")?;
    for (from, to) in &what.copies {
        vm.copy_in(from, to)?;
    }
    if !what.script.is_empty() {
        vm.run_within(&what.script, Duration::from_secs(600))?;
    }
    vm.run("sync")?;
    let memory = format!("exec:cat > '{}'", into.join("memory").display());
    let qmp = vm.qmp()?;
    qmp.ask("stop", json!({}))?;
    qmp.ask("migrate-set-parameters", json!({ "max-bandwidth": 1u64 << 40 }))?;
    qmp.ask("migrate", json!({ "uri": memory }))?;
    loop {
        let state = qmp.ask("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed") => bail!("the memory cannot be saved: {state}"),
            Some(_) | None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    // An orderly end of qemu writes the overlay out whole.
    qmp.ask("quit", json!({}))?;
    vm.wait_off(Duration::from_secs(30))?;
    Ok(fs::rename(vm.work().join("disk.qcow2"), into.join("disk.qcow2"))?)
}
