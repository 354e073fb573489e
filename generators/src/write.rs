//! Puts a tree into the manager's output folders. They are empty when the manager calls; what is there is replaced.

use crate::tree::{Entry, Folder, UnitTree};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, symlinkat, unlinkat};
use rustix::io::{Errno, write};
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What could not be written.
#[derive(Debug)]
pub struct WriteError {
    path: String,
    error: Errno,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}; the units of the mesh are not complete", self.path, self.error)
    }
}

/// Writes all of the tree; the first failure ends it.
pub fn write_tree(tree: &UnitTree, normal: &Path, early: &Path) -> Result<(), WriteError> {
    for (wanted, root) in [(Folder::Early, early), (Folder::Normal, normal)] {
        let mut folder: Option<OwnedFd> = None;
        let mut made = BTreeSet::new();
        for (_, path, entry) in tree.iter().filter(|(f, ..)| *f == wanted) {
            let at = |error| WriteError { path: root.join(path).display().to_string(), error };
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
            let dir = match &folder {
                Some(dir) => dir,
                None => folder.insert(openat(rustix::fs::CWD, root, flags, Mode::empty()).map_err(at)?),
            };
            if let Some((parent, _)) = path.rsplit_once('/') {
                if made.insert(parent) {
                    match mkdirat(dir, parent, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(at(error)),
                    }
                }
            }
            match entry {
                Entry::File(text) => write_file(dir.as_fd(), path, text.as_bytes()).map_err(at)?,
                Entry::Link(target) => link(dir.as_fd(), path, target).map_err(at)?,
            }
        }
    }
    Ok(())
}

fn write_file(dir: BorrowedFd<'_>, path: &str, mut text: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, path, flags, Mode::from_raw_mode(0o644))?;
    while !text.is_empty() {
        let written = write(&file, text)?;
        text = &text[written..];
    }
    Ok(())
}

fn link(dir: BorrowedFd<'_>, path: &str, target: &str) -> Result<(), Errno> {
    match symlinkat(target, dir, path) {
        Err(Errno::EXIST) => {
            unlinkat(dir, path, AtFlags::empty())?;
            symlinkat(target, dir, path)
        }
        other => other,
    }
}
