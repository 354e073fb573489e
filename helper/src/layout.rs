//! Every path of the project, hung off one root, so that each test runs on a directory of its own.

use std::path::{Path, PathBuf};

/// Where things are. `/` except in tests and for `--root`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// A layout under `root`.
    pub fn new(root: impl Into<PathBuf>) -> Layout {
        Layout { root: root.into() }
    }

    /// The root itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is the running machine.
    pub fn is_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// An absolute path of the machine, under the root.
    pub fn under(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// `/etc/mesh`: the admin's files, and what boot must know.
    pub fn etc(&self) -> PathBuf {
        self.under("/etc/mesh")
    }

    /// The mode file.
    pub fn mode(&self) -> PathBuf {
        self.under("/etc/mesh/mode")
    }

    /// What the helper learnt and boot must know.
    pub fn state(&self) -> PathBuf {
        self.under("/etc/mesh/state.toml")
    }

    /// What a verb is in the middle of.
    pub fn pending(&self) -> PathBuf {
        self.under("/etc/mesh/pending")
    }

    /// What boot and the watcher keep open.
    pub fn openings(&self) -> PathBuf {
        self.under("/etc/mesh/openings.json")
    }

    /// What covers cron files while adopted, 0700.
    pub fn cron(&self) -> PathBuf {
        self.under("/etc/mesh/cron")
    }

    /// The mesh's memory: ledger and custody, 0700.
    pub fn var(&self) -> PathBuf {
        self.under("/var/lib/mesh")
    }

    /// The ledger.
    pub fn ledger(&self) -> PathBuf {
        self.under("/var/lib/mesh/ledger.jsonl")
    }

    /// The custody store.
    pub fn custody(&self) -> PathBuf {
        self.under("/var/lib/mesh/custody")
    }

    /// Run-time files, 0755.
    pub fn run(&self) -> PathBuf {
        self.under("/run/mesh")
    }

    /// The lock of every verb that changes something.
    pub fn lock(&self) -> PathBuf {
        self.under("/run/mesh/lock")
    }

    /// Where one configuration file is looked for, the admin's first
    /// (UAPI configuration files specification).
    pub fn config_dirs(&self) -> [PathBuf; 3] {
        ["/etc/mesh", "/run/mesh", "/usr/lib/mesh"].map(|d| self.under(d))
    }
}

impl Default for Layout {
    fn default() -> Self {
        Layout::new("/")
    }
}
