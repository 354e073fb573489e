//! The one lock of everything that changes something: `/run/mesh/lock`.
//!
//! It is `flock(2)` on an open file, so that it ends with the process, however that ends; what stands in the file (pid
//! and verb) only tells others who holds it and decides nothing.

use super::durable;
use crate::layout::Layout;
use mesh_model::failure::{Failure, Kind};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for another holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    AtMost(Duration),
}

/// How often a waiter tries again. `flock` has no time-out, and a signal handler for one try in 50 ms is not worth it.
const RETRY: Duration = Duration::from_millis(50);

/// The lock, held until this is dropped. What needs it takes a reference to it, so that nothing is recorded or changed
/// without it.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock for `verb`. A holder that does not let go in time is a `Busy` failure that names it.
    pub fn take(layout: &Layout, verb: &str, wait: Wait) -> anyhow::Result<Lock> {
        durable::ensure_dir(&layout.run(), 0o755)?;
        let path = layout.lock();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)
            .map_err(|e| durable::error("opening the lock", &path, e))?;
        let mut file = File::from(fd);
        let until = match wait {
            Wait::No => Instant::now(),
            Wait::AtMost(time) => Instant::now() + time,
        };
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(RETRY),
                Err(Errno::WOULDBLOCK) => {
                    return Err(Failure::new(Kind::Busy, format!("another verb is at work: {}", holder(&mut file)))
                        .at(path.display().to_string())
                        .remedy("nothing was changed; run it again when that one is done")
                        .into());
                }
                Err(e) => return Err(durable::error("taking the lock", &path, e)),
            }
        }
        let mut lock = Lock { file, path };
        lock.sign(&format!("{} {verb}\n", std::process::id()))?;
        Ok(lock)
    }

    fn sign(&mut self, text: &str) -> anyhow::Result<()> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|e| anyhow::Error::new(e).context(format!("writing the holder to {}", self.path.display())))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is what unlocks. A name left in it misleads nobody: it is read only while it is locked.
        if let Err(e) = self.file.set_len(0) {
            drop(writeln!(std::io::stderr(), "mesh: clearing {}: {e}", self.path.display()));
        }
    }
}

/// Who holds it, in words. Between the holder's `flock` and its signature the file is empty for an instant.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.rewind().and_then(|()| file.take(256).read_to_string(&mut text)) {
        Ok(_) => match text.trim().split_once(' ') {
            Some((pid, verb)) => format!("mesh {verb} (pid {pid})"),
            None => "one that has not yet said its name".into(),
        },
        Err(e) => format!("one whose name cannot be read ({e})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the fork and the exec of a child that another test starts, that child has every descriptor too, and
    /// with it the lock; far longer than that takes, and far less than the child below lives.
    const AT_ONCE: Wait = Wait::AtMost(Duration::from_secs(5));

    #[test]
    fn one_holder_named_to_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let held = Lock::take(&layout, "adopt", Wait::No).unwrap();
        let e = Lock::take(&layout, "release", Wait::No).unwrap_err();
        let failure = e.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.kind, Kind::Busy);
        assert_eq!(failure.kind.exit_code(), 75);
        assert_eq!(failure.what, format!("another verb is at work: mesh adopt (pid {})", std::process::id()));
        drop(held);
        Lock::take(&layout, "release", AT_ONCE).unwrap();
    }

    #[test]
    fn waiting_is_bounded_and_ends_when_the_holder_goes() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let held = Lock::take(&layout, "adopt", Wait::No).unwrap();
        let start = Instant::now();
        Lock::take(&layout, "status", Wait::AtMost(Duration::from_millis(120))).unwrap_err();
        assert!(start.elapsed() >= Duration::from_millis(120) && start.elapsed() < Duration::from_secs(5));
        let waiter = {
            let layout = layout.clone();
            thread::spawn(move || Lock::take(&layout, "release", Wait::AtMost(Duration::from_secs(30))).map(drop))
        };
        thread::sleep(Duration::from_millis(100));
        drop(held);
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn a_child_does_not_inherit_it() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let held = Lock::take(&layout, "adopt", Wait::No).unwrap();
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        drop(held);
        let again = Lock::take(&layout, "release", AT_ONCE);
        child.kill().unwrap();
        child.wait().unwrap();
        again.unwrap();
    }
}
