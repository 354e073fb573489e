//! The store: `/var/lib/mesh/custody`, 0700 (DESIGN §7).
//!
//! ```text
//! objects/ab/cdef…          content by its SHA-256, 0600, each once
//! records/HASH/0001.json    the versions of one path (HASH of its bytes), 0600; 0001 is the first sight
//! ```
//!
//! Content is on disk before the record that names it. No record is ever overwritten or removed here, so the first
//! sight stays whatever comes later. Bounded: [`MAX_CONTENT`] a file, [`MAX_VERSIONS`] a path, one copy of each content.

use super::custody_fs::{self, Seen};
use super::custody_put::{self, Put};
use super::durable;
use super::lock::Lock;
use crate::layout::Layout;
use anyhow::Context as _;
use mesh_model::custody::{Aspect, FoundPath, MAX_CONTENT, Reason, Record, SCHEMA, Sight};
use mesh_model::failure::{Failure, Kind};
use mesh_model::ledger::hex_sha256;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How many versions of one path are kept; a control that is alive after all must not fill the disk.
pub const MAX_VERSIONS: u32 = 1000;

/// The store of one machine.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    dir: PathBuf,
}

/// What taking a path did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// It is the first sight.
    New(Record),
    /// It is what the last version says; nothing was written.
    Unchanged(Record),
    /// It was edited since the version before; both are kept.
    NewVersion {
        /// The version before.
        before: Record,
        /// The one just recorded.
        now: Record,
    },
}

impl Taken {
    /// The record that says what is there now.
    pub fn record(&self) -> &Record {
        match self {
            Taken::New(record) | Taken::Unchanged(record) | Taken::NewVersion { now: record, .. } => record,
        }
    }
}

/// A path in custody and what is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The first sight.
    pub first: Record,
    /// The last version.
    pub last: Record,
    /// What is there now, with its content.
    pub now: Seen,
    /// In what `now` differs from the first sight.
    pub since_first: Vec<Aspect>,
    /// In what `now` differs from the last version: not empty means that custody has not seen it.
    pub since_last: Vec<Aspect>,
}

/// What putting back did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// How.
    pub put: Put,
    /// What was there before; in custody too if it was an edit.
    pub before: Sight,
    /// What is there now.
    pub after: Sight,
    /// The version that was put back.
    pub version: u32,
}

impl Store {
    /// The store; nothing is created or read yet.
    pub fn open(layout: &Layout) -> Store {
        Store { root: layout.root().to_owned(), dir: layout.custody() }
    }

    /// Looks at `path` and keeps what it sees. Taking twice what did not change keeps one version; a file that was only
    /// written again with the same bytes is not an edit.
    pub fn take(&self, _lock: &Lock, path: &FoundPath, reason: Reason) -> anyhow::Result<Taken> {
        let seen = custody_fs::look(&self.root, path)?;
        self.keep(path, &seen, reason)
    }

    /// Keeps what was already looked at.
    fn keep(&self, path: &FoundPath, seen: &Seen, reason: Reason) -> anyhow::Result<Taken> {
        let before = self.last(path)?;
        let unchanged = before.as_ref().filter(|last| !last.sight.edited(&seen.sight));
        let version = before.as_ref().map_or(1, |last| last.version + 1);
        if version > MAX_VERSIONS && unchanged.is_none() {
            return Err(Failure::refused(format!("custody has {MAX_VERSIONS} versions of it and keeps no more"))
                .at(path.to_string())
                .remedy("find out what writes it over and over: mesh custody list, mesh log")
                .into());
        }
        // Also where nothing changed: content that was damaged in the store is healed by seeing it again.
        if let (Some(content), Some(sha256)) = (&seen.content, seen.sight.sha256()) {
            self.keep_object(sha256, content)?;
        }
        if let Some(last) = unchanged {
            return Ok(Taken::Unchanged(last.clone()));
        }
        let seen_us = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
        let seen_us = u64::try_from(seen_us.as_micros()).context("the clock is beyond the year 500000")?;
        let record = Record { schema: SCHEMA, path: path.clone(), version, seen_us, reason, sight: seen.sight.clone() };
        let folder = self.folder(path);
        self.private_dirs(&["records"])?;
        durable::ensure_dir(&folder, 0o700)?;
        let mut text = serde_json::to_vec_pretty(&record).context("writing a custody record as JSON")?;
        text.push(b'\n');
        durable::create_new(&folder.join(format!("{version:04}.json")), &text, 0o600)?;
        Ok(match before {
            None => Taken::New(record),
            Some(before) => Taken::NewVersion { before, now: record },
        })
    }

    /// All versions of a path, the first sight first; empty where it is not in custody.
    pub fn versions(&self, path: &FoundPath) -> anyhow::Result<Vec<Record>> {
        read_folder(&self.folder(path))
    }

    /// The first sight.
    pub fn first(&self, path: &FoundPath) -> anyhow::Result<Option<Record>> {
        Ok(self.versions(path)?.into_iter().next())
    }

    /// The last version.
    pub fn last(&self, path: &FoundPath) -> anyhow::Result<Option<Record>> {
        Ok(self.versions(path)?.pop())
    }

    /// Every path in custody with its versions, by path.
    pub fn list(&self) -> anyhow::Result<Vec<Vec<Record>>> {
        let mut all = Vec::new();
        for folder in entries(&self.dir.join("records"))? {
            let versions = read_folder(&folder)?;
            // A folder without a record is one that a crash left before its first.
            if !versions.is_empty() {
                all.push(versions);
            }
        }
        all.sort_by(|a, b| a[0].path.cmp(&b[0].path));
        Ok(all)
    }

    /// The content that a record names, verified against its hash; none where it was no file.
    pub fn content(&self, record: &Record) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(sha256) = record.sight.sha256() else { return Ok(None) };
        let path = self.object(sha256)?;
        let bytes = std::fs::read(&path).map_err(|e| unreadable(&path, e))?;
        if hex_sha256(&bytes) != sha256 {
            return Err(Failure::new(
                Kind::Failed,
                "the content in custody is damaged: its hash does not match its name",
            )
            .at(path.display().to_string())
            .remedy(format!("{} cannot be put back from version {}", record.path, record.version))
            .into());
        }
        Ok(Some(bytes))
    }

    /// Compares what is at `path` now with custody; none where it is not in custody. Writes nothing.
    pub fn compare_now(&self, path: &FoundPath) -> anyhow::Result<Option<Difference>> {
        let mut versions = self.versions(path)?;
        let (Some(first), Some(last)) = (versions.first().cloned(), versions.pop()) else { return Ok(None) };
        let now = custody_fs::look(&self.root, path)?;
        let (since_first, since_last) = (first.sight.differs(&now.sight), last.sight.differs(&now.sight));
        Ok(Some(Difference { first, last, now, since_first, since_last }))
    }

    /// Puts back `record` (a version of its path), after keeping what is there now, and verifies what it made.
    pub fn restore(&self, _lock: &Lock, record: &Record) -> anyhow::Result<Restored> {
        let path = &record.path;
        let content = self.content(record)?;
        let before = custody_fs::look(&self.root, path)?;
        self.keep(path, &before, Reason::BeforeRestore)?;
        let put = custody_put::put(&self.root, path, &record.sight, content.as_deref())?;
        let after = custody_fs::look(&self.root, path)?;
        let wrong = record.sight.differs(&after.sight);
        if !wrong.is_empty() {
            let wrong = wrong.into_iter().map(Aspect::word).collect::<Vec<_>>().join(", ");
            return Err(Failure::new(Kind::Failed, format!("it was put back and is not as it was: {wrong}"))
                .at(path.to_string())
                .remedy("something else writes it: mesh custody diff shows what is there")
                .into());
        }
        Ok(Restored { put, before: before.sight, after: after.sight, version: record.version })
    }

    fn keep_object(&self, sha256: &str, content: &[u8]) -> anyhow::Result<()> {
        let path = self.object(sha256)?;
        // Written durably before, under this very name: it is there whole or not at all. A damaged one is written anew.
        match std::fs::read(&path) {
            Ok(bytes) if bytes == content => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(unreadable(&path, e)),
        }
        debug_assert!(content.len() as u64 <= MAX_CONTENT);
        self.private_dirs(&["objects"])?;
        durable::ensure_dir(&self.dir.join("objects").join(&sha256[..2]), 0o700)?;
        durable::replace(&path, content, 0o600)
    }

    fn private_dirs(&self, below: &[&str]) -> anyhow::Result<()> {
        if let Some(var) = self.dir.parent() {
            durable::ensure_dir(var, 0o700)?;
        }
        durable::ensure_dir(&self.dir, 0o700)?;
        below.iter().try_for_each(|name| durable::ensure_dir(&self.dir.join(name), 0o700))
    }

    fn object(&self, sha256: &str) -> anyhow::Result<PathBuf> {
        anyhow::ensure!(
            sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
            "{sha256:?} in a custody record is not a SHA-256"
        );
        Ok(self.dir.join("objects").join(&sha256[..2]).join(&sha256[2..]))
    }

    fn folder(&self, path: &FoundPath) -> PathBuf {
        self.dir.join("records").join(hex_sha256(path.as_bytes()))
    }
}

/// The versions in one folder, in order and without gaps, all of one path.
fn read_folder(folder: &Path) -> anyhow::Result<Vec<Record>> {
    let mut files = entries(folder)?;
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    let mut all: Vec<Record> = Vec::with_capacity(files.len());
    for file in files {
        let bad = |why: String| Failure::new(Kind::Failed, why).at(file.display().to_string());
        let text = std::fs::read(&file).map_err(|e| unreadable(&file, e))?;
        let record: Record =
            serde_json::from_slice(&text).map_err(|e| bad(format!("the custody record cannot be read: {e}")))?;
        if record.schema != SCHEMA {
            return Err(bad(format!("schema {} is not known to this version", record.schema)).into());
        }
        if record.version as usize != all.len() + 1 {
            return Err(bad(format!("version {} where {} must follow", record.version, all.len() + 1)).into());
        }
        if folder.file_name().is_none_or(|n| n.as_encoded_bytes() != hex_sha256(record.path.as_bytes()).as_bytes()) {
            return Err(bad(format!("it is in the folder of another path than {}", record.path)).into());
        }
        all.push(record);
    }
    Ok(all)
}

/// What is in a folder; nothing where there is no folder.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match std::fs::read_dir(folder) {
        Ok(list) => list.map(|e| Ok(e.map_err(|e| unreadable(folder, e))?.path())).collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(unreadable(folder, e)),
    }
}

fn unreadable(path: &Path, error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        let failure = Failure::new(Kind::NoPermission, "only root may read custody").at(path.display().to_string());
        return failure.remedy("run it as root").into();
    }
    anyhow::Error::new(error).context(format!("reading {}", path.display()))
}
