//! Where images and running nodes live.
//!
//! `MESH_TEST_CACHE`, else `target/vm` of the workspace (never inside what git tracks):
//! `tar/`, `image/`, `saved/` are kept between runs, each entry named by the hash of all that it was made from;
//! `run/PID-N-NAME/` is one running node's, removed when it is dropped;
//! `failed/` is what failed nodes left: console, journal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use crate::cgroup;
use crate::process::{Checked, command};

/// The directories of the bed.
#[derive(Debug, Clone)]
pub struct Bed {
    cache: PathBuf,
}

impl Bed {
    /// The bed at `MESH_TEST_CACHE` or in the workspace's `target`. Clears up after runs that were killed.
    pub fn open() -> Result<Bed> {
        let cache = match std::env::var_os("MESH_TEST_CACHE") {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("vm"),
        };
        for dir in ["tar", "image", "saved", "run", "failed", "lock"] {
            fs::create_dir_all(cache.join(dir)).with_context(|| format!("cannot make {}", cache.display()))?;
        }
        let bed = Bed { cache: cache.canonicalize()? };
        static CLEARED: OnceLock<()> = OnceLock::new();
        CLEARED.get_or_init(|| bed.clear_dead_runs());
        Ok(bed)
    }

    /// A path in the cache.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.cache.join(relative)
    }

    /// A new directory for one running node.
    pub fn run_dir(&self, name: &str) -> Result<PathBuf> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = self.cache.join("run").join(format!("{}-{n}-{name}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Where a failed node's console and journal are kept.
    pub fn failed_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.cache.join("failed").join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Makes a cache entry once, whoever asks: `make` fills a directory beside it, which is renamed into place when
    /// it is whole. A second run that asks meanwhile waits.
    pub(crate) fn once(&self, relative: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let place = self.cache.join(relative);
        let lock = File::create(self.cache.join("lock").join(relative.replace('/', "-")))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        if !place.exists() {
            let part = place.with_extension("part");
            remove_tree(&part)?;
            fs::create_dir_all(&part)?;
            make(&part)?;
            fs::rename(&part, &place)?;
        }
        Ok(place)
    }

    /// The test agent.
    pub(crate) fn agent(&self) -> Result<PathBuf> {
        self.tool("agent", include_str!("bin/mesh-test-agent.rs"))
    }

    /// The program that keeps streams and counts what was not answered; its words are in its source.
    pub fn stream(&self) -> Result<PathBuf> {
        self.tool("stream", include_str!("bin/mesh-test-stream.rs"))
    }

    /// A program of one file, static so that it runs on every suite whatever this machine's C library is.
    fn tool(&self, name: &str, source: &str) -> Result<PathBuf> {
        let dir = self.once(&format!("image/{name}-{}", key([source])), |part| {
            let file = part.join(format!("{name}.rs"));
            fs::write(&file, source)?;
            let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            Command::new(rustc)
                .args(["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-C", "strip=symbols", "-o"])
                .arg(part.join(name))
                .arg(file)
                .checked()
                .map(drop)
        })?;
        Ok(dir.join(name))
    }

    /// Runs that were killed leave their directory, mounts and namespaces; the number in the name tells whose.
    fn clear_dead_runs(&self) {
        cgroup::clear_dead_runs(dead);
        for entry in fs::read_dir(self.path("run")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if dead(name.split('-').next()) {
                unmount(&entry.path().join("root"));
                // What cannot be removed now is tried again by the next run.
                remove_tree(&entry.path()).ok();
            }
        }
        for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix("mesh-").is_some_and(|rest| dead(rest.split('-').next())) {
                command("ip", ["netns", "del", &name]).checked().ok();
            }
        }
    }
}

fn dead(pid: Option<&str>) -> bool {
    pid.and_then(|pid| pid.parse::<u32>().ok()).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

pub(crate) fn unmount(place: &Path) {
    // Fails if it is not mounted, which is what is wanted.
    command("umount", [place]).checked().ok();
}

/// Removes a tree; nothing there is fine.
pub(crate) fn remove_tree(place: &Path) -> Result<()> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", place.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The name of a cache entry: a hash over all that it is made from.
pub(crate) fn key<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.as_ref().len() as u64).to_le_bytes());
        hash.update(part.as_ref());
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
