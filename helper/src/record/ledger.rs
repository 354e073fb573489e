//! The ledger on disk: `/var/lib/mesh/ledger.jsonl`, appended and fsynced under the lock.
//!
//! What a line is and what makes a file valid is `mesh_model::ledger`'s. Here: each append is on disk before it
//! returns; a torn last line is kept whole beside the ledger, cut off, and the next entry says so; a ledger with a bad
//! line before the last is not written to.

use crate::adapters::durable;
use crate::adapters::lock::Lock;
use crate::layout::Layout;
use anyhow::Context as _;
use mesh_model::failure::{Failure, Kind as FailureKind};
use mesh_model::ledger::{self, Broken, Entry, Kind, Stamp, Subject};
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The ledger, open for appending for as long as the lock is held.
#[derive(Debug)]
pub struct Ledger<'l> {
    _lock: &'l Lock,
    file: File,
    path: PathBuf,
    boot_id: String,
    next_seq: u64,
    head: String,
    torn_cut: Option<(String, String)>,
}

impl<'l> Ledger<'l> {
    /// Opens it, creating `/var/lib/mesh` (0700) and the file (0600) where they are missing, and verifies it whole.
    ///
    /// An error when it cannot be written (no `/var`, read-only, full) or has a bad line.
    pub fn open(layout: &Layout, lock: &'l Lock) -> anyhow::Result<Ledger<'l>> {
        durable::ensure_dir(&layout.var(), 0o700)?;
        let path = layout.ledger();
        if !path.exists() {
            durable::create_new(&path, b"", 0o600)?;
        }
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|e| durable::error("opening the ledger", &path, e))?;
        let mut file = File::from(fd);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("reading {}", path.display()))?;
        let read = ledger::read(&bytes).map_err(|broken| broken_ledger(&path, &broken))?;
        let mut open = Ledger {
            _lock: lock,
            file,
            path,
            boot_id: boot_id()?,
            next_seq: read.next_seq(),
            head: read.head.clone(),
            torn_cut: None,
        };
        if let Some(torn) = &read.torn {
            open.cut(layout, torn, read.whole)?;
        }
        Ok(open)
    }

    /// Writes one entry and returns its `seq` once it is on disk.
    ///
    /// After an error nothing more may be appended by this value's user: the last line may be torn, and the next
    /// [`Ledger::open`] deals with it.
    pub fn append(&mut self, kind: Kind, subject: Subject, data: Map<String, Value>) -> anyhow::Result<u64> {
        let seq = self.next_seq;
        let entry = Entry { seq, at: self.now()?, kind, subject, prev: self.head.clone(), data };
        let line = entry.line().context("writing a ledger entry as JSON")?;
        let head = ledger::hex_sha256(line.as_bytes());
        // One write call, so that a kill leaves the line whole or absent wherever the kernel allows it.
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("appending to {}", self.path.display()))?;
        rustix::fs::fdatasync(&self.file).map_err(|e| durable::error("writing to disk", &self.path, e))?;
        self.head = head;
        self.next_seq += 1;
        Ok(seq)
    }

    /// The `seq` of the last entry, 0 before the first.
    pub fn position(&self) -> u64 {
        self.next_seq - 1
    }

    /// Keeps a torn last line beside the ledger, cuts it off and says so in the next entry. Each step can be repeated
    /// after a crash: until the cut, the torn line is there; after it, the copy is.
    fn cut(&mut self, layout: &Layout, torn: &ledger::Torn, whole: usize) -> anyhow::Result<()> {
        let sha256 = ledger::hex_sha256(&torn.bytes);
        let name = format!("ledger.torn.{}", &sha256[..16]);
        durable::replace(&layout.var().join(&name), &torn.bytes, 0o600)?;
        self.file.set_len(whole as u64).with_context(|| format!("cutting the torn line of {}", self.path.display()))?;
        rustix::fs::fsync(&self.file).map_err(|e| durable::error("writing to disk", &self.path, e))?;
        let data = [
            ("line", json!(torn.line)),
            ("bytes", json!(torn.bytes.len())),
            ("sha256", json!(sha256)),
            ("why", json!(torn.why)),
            ("kept", json!(name)),
            ("text", json!(format!("cut off a torn last line, kept as {name}: {}", torn.why))),
        ];
        let data = data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        self.append(Kind::LedgerTorn, Subject::Node, data)?;
        self.torn_cut = Some((layout.var().join(&name).display().to_string(), torn.why.clone()));
        Ok(())
    }

    /// Where opening it kept a torn last line, and what was wrong with that; once.
    pub fn torn_cut(&mut self) -> Option<(String, String)> {
        self.torn_cut.take()
    }

    fn now(&self) -> anyhow::Result<Stamp> {
        let realtime =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before the year 1970")?;
        let monotonic = clock_gettime(ClockId::Monotonic);
        Ok(Stamp {
            boot_id: self.boot_id.clone(),
            realtime_us: u64::try_from(realtime.as_micros()).context("the clock is beyond the year 500000")?,
            monotonic_us: u64::try_from(monotonic.tv_sec).context("a negative monotonic clock")? * 1_000_000
                + u64::try_from(monotonic.tv_nsec).context("a negative monotonic clock")? / 1_000,
        })
    }
}

/// Reads the ledger without the lock, for showing: what is valid, and the bad line if there is one. No file is an
/// empty ledger. A line that is being appended at this instant shows as torn.
pub fn read(layout: &Layout) -> anyhow::Result<(ledger::Ledger, Option<Broken>)> {
    let path = layout.ledger();
    match std::fs::read(&path) {
        Ok(bytes) => Ok(ledger::read_until_broken(&bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(ledger::read_until_broken(b"")),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(Failure::new(FailureKind::NoPermission, "only root may read the ledger")
                .at(path.display().to_string())
                .remedy("run it as root; journalctl -t mesh shows the same events to members of systemd-journal")
                .into())
        }
        Err(e) => Err(anyhow::Error::new(e).context(format!("reading {}", path.display()))),
    }
}

/// A bad line as the operator sees it.
pub fn broken_ledger(path: &Path, broken: &Broken) -> Failure {
    Failure::new(FailureKind::Failed, format!("the ledger is bad from here: {}", broken.why))
        .at(format!("{}:{}", path.display(), broken.line))
        .remedy(
            "nothing was written to it; compare it with journalctl -t mesh -o verbose, then move it away to begin anew",
        )
}

fn boot_id() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(text.trim().replace('-', ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::lock::Wait;
    use std::fs::OpenOptions;
    use std::os::unix::fs::PermissionsExt;

    fn data(text: &str) -> Map<String, Value> {
        Map::from_iter([("text".to_owned(), json!(text))])
    }

    fn with_ledger<T>(layout: &Layout, f: impl FnOnce(&mut Ledger) -> T) -> anyhow::Result<T> {
        let lock = Lock::take(layout, "test", Wait::No)?;
        let mut ledger = Ledger::open(layout, &lock)?;
        Ok(f(&mut ledger))
    }

    #[test]
    fn appends_chain_over_reopening_and_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let first = |l: &mut Ledger| l.append(Kind::AdoptBegun, Subject::Node, data("a")).unwrap();
        assert_eq!(with_ledger(&layout, first).unwrap(), 1);
        let more = |l: &mut Ledger| {
            assert_eq!(l.position(), 1);
            l.append(Kind::OpeningOpened, Subject::Opening("m".into()), data("b")).unwrap();
            l.append(Kind::Adopted, Subject::Node, data("c")).unwrap()
        };
        assert_eq!(with_ledger(&layout, more).unwrap(), 3);
        let (ledger, broken) = read(&layout).unwrap();
        assert_eq!(broken, None);
        assert_eq!(ledger.entries.iter().map(|e| e.seq).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(ledger.entries.windows(2).all(|w| w[0].at.monotonic_us <= w[1].at.monotonic_us));
        assert_eq!(ledger.entries[0].at.boot_id.len(), 32);
        let mode = |p: PathBuf| std::fs::metadata(p).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(layout.var()), mode(layout.ledger())), (0o700, 0o600));
    }

    #[test]
    fn a_torn_line_is_kept_beside_cut_and_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        for torn in [&b"{\"schema\":1,\"se"[..], b"\0\0\0\0\0\0\n", b"{}\n"] {
            with_ledger(&layout, |l| l.append(Kind::AdoptBegun, Subject::Node, data("a")).unwrap()).unwrap();
            let mut file = OpenOptions::new().append(true).open(layout.ledger()).unwrap();
            file.write_all(torn).unwrap();
            let seq = with_ledger(&layout, |l| l.append(Kind::Adopted, Subject::Node, data("b")).unwrap()).unwrap();
            let (ledger, broken) = read(&layout).unwrap();
            assert_eq!((broken, &ledger.torn), (None, &None));
            let said = &ledger.entries[seq as usize - 2];
            assert_eq!(said.kind, Kind::LedgerTorn);
            assert_eq!(said.data["bytes"], torn.len());
            let kept = layout.var().join(said.data["kept"].as_str().unwrap());
            assert_eq!(std::fs::read(kept).unwrap(), torn);
        }
    }

    #[test]
    fn a_bad_line_before_the_last_is_refused_by_number_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        for _ in 0..3 {
            with_ledger(&layout, |l| l.append(Kind::AdoptBegun, Subject::Node, data("a")).unwrap()).unwrap();
        }
        let bad = std::fs::read_to_string(layout.ledger()).unwrap().replacen("\"seq\":2", "\"seq\":7", 1);
        std::fs::write(layout.ledger(), &bad).unwrap();
        let e = with_ledger(&layout, |_| ()).unwrap_err();
        let failure = e.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.place, Some(format!("{}:2", layout.ledger().display())));
        assert_eq!(std::fs::read_to_string(layout.ledger()).unwrap(), bad);
        let (ledger, broken) = read(&layout).unwrap();
        assert_eq!((ledger.entries.len(), broken.unwrap().line), (1, 2));
    }

    #[test]
    fn where_var_cannot_be_written_it_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let lock = Lock::take(&layout, "test", Wait::No).unwrap();
        std::fs::create_dir(dir.path().join("var")).unwrap();
        std::fs::write(dir.path().join("var/lib"), "a file in the way").unwrap();
        let e = Ledger::open(&layout, &lock).unwrap_err();
        assert!(format!("{e:#}").contains("/var/lib/mesh"), "{e:#}");
    }
}
