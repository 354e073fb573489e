//! A control group of its own for each node.
//!
//! systemd-nspawn with `--keep-unit` puts its payload below the group it is started in. Two nodes started in one group
//! would share `payload/`: each PID 1 then sees the other's processes (as pid 0), never sees a group become empty, and
//! waits for it until its time-outs. And a group can be killed as a whole, so that nothing of a node outlives it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// What every group of ours begins with; the number that follows is the process that made it.
const PREFIX: &str = "mesh-test-";

/// A group, in each hierarchy that systemd uses; all in it is killed and it is removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    places: Vec<PathBuf>,
}

impl Cgroup {
    /// A new, empty one.
    pub fn new(label: &str) -> Result<Cgroup> {
        let name = format!("{PREFIX}{}-{label}", std::process::id());
        let places: Vec<PathBuf> = hierarchies().iter().map(|top| top.join(&name)).collect();
        for place in &places {
            end(place);
            fs::create_dir(place).with_context(|| format!("cannot make {}", place.display()))?;
        }
        Ok(Cgroup { places })
    }

    /// A shell line that moves the shell into the group.
    pub fn enter(&self) -> String {
        self.places.iter().map(|place| format!("echo $$ >{}/cgroup.procs; ", place.display())).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.places.iter().for_each(|place| end(place));
    }
}

/// Ends what is left in the groups of runs that were killed.
pub(crate) fn clear_dead_runs(dead: impl Fn(Option<&str>) -> bool) {
    for top in hierarchies() {
        for entry in fs::read_dir(top).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix(PREFIX).is_some_and(|rest| dead(rest.split('-').next())) {
                end(&entry.path());
            }
        }
    }
}

/// The unified hierarchy and, on a machine with the split tree, systemd's own.
fn hierarchies() -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    if top.join("cgroup.procs").exists() {
        return vec![top.to_path_buf()];
    }
    // The unified one first: it is the one that can be killed as a whole.
    ["unified", "systemd"].iter().map(|name| top.join(name)).filter(|place| place.exists()).collect()
}

/// Kills what is in a group and removes it; both fail only where there is nothing to do.
fn end(place: &Path) {
    fs::write(place.join("cgroup.kill"), "1").ok();
    for _ in 0..200 {
        remove(place);
        if !place.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Groups within first.
fn remove(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    fs::remove_dir(place).ok();
}
