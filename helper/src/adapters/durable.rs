//! Writing that survives a power cut: temp in the same folder, fsync, rename, fsync of the folder.
//!
//! For the mesh's own files in folders that only root can write. Found files, in folders that others may write, go
//! through [`super::custody_fs`], which opens every component without following links and then uses [`put_at`] here.
//!
//! The order is the point (facts: after a cut without it, files full of NULs): the content is on disk before the name
//! points to it, and the name is on disk before the caller goes on. Each step is one system call in one small function,
//! so that a campaign that kills the process after the n-th call meets each state between them.

use anyhow::Context as _;
use mesh_model::failure::{Failure, Kind};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::Path;

/// What every temporary name begins with. The leading dot and the `.tmp` keep it out of drop-in folders' globs.
pub const TEMP_PREFIX: &str = ".mesh-";

/// What every temporary name ends with.
pub const TEMP_SUFFIX: &str = ".tmp";

/// How often a temporary name may be taken before that is an error (each is 64 random bits).
const TEMP_TRIES: u32 = 16;

/// Replaces `path` by a file of `bytes` with exactly `mode` (the umask does not count); the owner is the caller.
///
/// A reader sees the old content or the new, after a crash too. A symbolic link at `path` is replaced, not followed.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let (dir, name) = open_parent(path)?;
    put_at(&dir, name, path, |file| fill(file, bytes, mode, path), Placing::Over)
}

/// Like [`replace`], but a regular file that holds these bytes already is left as it is, times included. Returns whether
/// it was written.
pub fn keep(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<bool> {
    // A file that cannot be read is for `replace` to name.
    let same = std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.len() == bytes.len() as u64)
        && std::fs::read(path).is_ok_and(|there| there == bytes);
    if !same {
        replace(path, bytes, mode)?;
    }
    Ok(!same)
}

/// Like [`replace`], but an existing `path` (of any type) is a `Refused` failure and stays as it is.
pub fn create_new(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let (dir, name) = open_parent(path)?;
    put_at(&dir, name, path, |file| fill(file, bytes, mode, path), Placing::New)
}

/// Removes the name `path` and makes that durable. Returns whether there was one.
pub fn remove(path: &Path) -> anyhow::Result<bool> {
    let (dir, name) = match open_parent(path) {
        Err(e) if is_errno(&e, Errno::NOENT) => return Ok(false),
        other => other?,
    };
    let there = match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) => true,
        Err(Errno::NOENT) => false,
        Err(e) => return Err(error("removing", path, e)),
    };
    sync_dir(&dir, path)?;
    Ok(there)
}

/// Makes sure that the folder `path` exists with exactly `mode`, creating what is missing above it with 0755.
///
/// A symbolic link in place of the last component is an error, as is anything that is not a folder.
pub fn ensure_dir(path: &Path, mode: u32) -> anyhow::Result<()> {
    if let Some(above) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        if !above.exists() {
            ensure_dir(above, 0o755)?;
        }
    }
    let created = match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(error("creating folder", path, e)),
    };
    let dir = open_dir(path)?;
    let stat = rustix::fs::fstat(&dir).map_err(|e| error("looking at", path, e))?;
    if stat.st_mode & 0o7777 != mode {
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode)).map_err(|e| error("setting the mode of", path, e))?;
    }
    if created {
        sync_dir(&dir, path)?;
        let (above, _) = open_parent(path)?;
        sync_dir(&above, path)?;
    }
    Ok(())
}

/// Whether a name that is in the way is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placing {
    /// An existing name is replaced.
    Over,
    /// An existing name is a refusal.
    New,
}

/// Puts what `fill` writes at `name` in the open folder `dir`: exclusive temp, `fill`, fsync, rename, fsync of the
/// folder. `shown` is the whole path for messages. On an error the temp is gone and `name` is as before.
pub fn put_at(
    dir: &OwnedFd,
    name: &OsStr,
    shown: &Path,
    fill: impl FnOnce(&mut File) -> anyhow::Result<()>,
    placing: Placing,
) -> anyhow::Result<()> {
    let (mut file, temp) = temp_at(dir, shown)?;
    let put = fill(&mut file)
        .and_then(|()| rustix::fs::fsync(&file).map_err(|e| error("writing to disk", shown, e)))
        .and_then(|()| place(dir, &temp, name, shown, placing));
    if let Err(e) = put {
        // The error that stopped the write is the one to report; a temp that cannot be removed is named beside it.
        return match rustix::fs::unlinkat(dir, &temp, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Err(e),
            Err(left) => Err(e.context(format!("{temp} is left beside {} ({left})", shown.display()))),
        };
    }
    sync_dir(dir, shown)
}

/// Renames the temp into place.
pub fn place(dir: &OwnedFd, temp: &str, name: &OsStr, shown: &Path, placing: Placing) -> anyhow::Result<()> {
    let flags = match placing {
        Placing::Over => rustix::fs::RenameFlags::empty(),
        Placing::New => rustix::fs::RenameFlags::NOREPLACE,
    };
    match rustix::fs::renameat_with(dir, temp, dir, name, flags) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(Failure::refused(format!("{} exists already", shown.display()))
            .remedy("it was left as it is; move it away first if it shall be written anew")
            .into()),
        Err(e) => Err(error("putting in place", shown, e)),
    }
}

/// Makes the names in an open folder durable.
pub fn sync_dir(dir: &OwnedFd, shown: &Path) -> anyhow::Result<()> {
    rustix::fs::fsync(dir).map_err(|e| error("writing to disk the folder of", shown, e))
}

/// An unpredictable temporary name.
pub fn temp_name() -> String {
    // The standard library seeds each RandomState from the kernel's generator; 64 bits are enough for a name that is
    // made with O_EXCL anyway.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{TEMP_PREFIX}{random:016x}{TEMP_SUFFIX}")
}

/// A new, empty temp (0600) in the open folder.
fn temp_at(dir: &OwnedFd, shown: &Path) -> anyhow::Result<(File, String)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TEMP_TRIES {
        let name = temp_name();
        match rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => return Ok((File::from(fd), name)),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(error("creating a temporary file beside", shown, e)),
        }
    }
    Err(error("creating a temporary file beside", shown, Errno::EXIST))
}

fn fill(file: &mut File, bytes: &[u8], mode: u32, shown: &Path) -> anyhow::Result<()> {
    file.write_all(bytes).with_context(|| format!("writing {}", shown.display()))?;
    rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(mode)).map_err(|e| error("setting the mode of", shown, e))
}

/// The open folder of `path`, and its last component.
fn open_parent(path: &Path) -> anyhow::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| error("opening the folder of", path, e))?;
    Ok((dir, name))
}

fn open_dir(path: &Path) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| error("opening folder", path, e))
}

/// A failed system call on `path`: no permission is its own kind, everything else is `Failed`; a full or read-only
/// disk gets its remedy.
pub fn error(doing: &str, path: &Path, errno: Errno) -> anyhow::Error {
    let kind = match errno {
        Errno::ACCESS | Errno::PERM => Kind::NoPermission,
        _ => Kind::Failed,
    };
    let failure = Failure::new(kind, format!("{doing} {}: {errno}", path.display()));
    let failure = match errno {
        Errno::ACCESS => failure.remedy("run it as root"),
        Errno::NOSPC | Errno::DQUOT => failure.remedy("make space on that file system and run it again"),
        Errno::ROFS => failure.remedy("remount that file system writable and run it again"),
        _ => failure,
    };
    anyhow::Error::new(errno).context(failure)
}

/// Whether `e` came of this errno.
pub fn is_errno(e: &anyhow::Error, errno: Errno) -> bool {
    e.chain().any(|c| c.downcast_ref::<Errno>() == Some(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn what_is_there_already_is_kept_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(keep(&path, b"one", 0o644).unwrap());
        let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
        let before = inode();
        assert!(!keep(&path, b"one", 0o644).unwrap());
        assert_eq!(inode(), before);
        assert!(keep(&path, b"two", 0o644).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        let link = dir.path().join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(keep(&link, b"two", 0o644).unwrap(), "a link is replaced, whatever it leads to");
    }

    #[test]
    fn replace_swaps_content_mode_and_inode_and_leaves_no_temp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mode");
        replace(&path, b"adopted\n", 0o644).unwrap();
        let before = fs::metadata(&path).unwrap();
        replace(&path, b"converged\n", 0o666).unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"converged\n");
        assert_eq!(after.permissions().mode() & 0o7777, 0o666, "the umask does not count");
        assert_ne!(before.ino(), after.ino(), "a reader of the old one keeps the old one");
        assert_eq!(names(dir.path()), ["mode"]);
    }

    #[test]
    fn a_link_is_replaced_and_its_target_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("target"), "kept").unwrap();
        symlink("target", dir.path().join("link")).unwrap();
        replace(&dir.path().join("link"), b"new", 0o600).unwrap();
        assert_eq!(fs::read(dir.path().join("target")).unwrap(), b"kept");
        assert!(fs::symlink_metadata(dir.path().join("link")).unwrap().is_file());
    }

    #[test]
    fn create_new_refuses_what_exists_even_a_dangling_link() {
        let dir = tempfile::tempdir().unwrap();
        symlink("nowhere", dir.path().join("link")).unwrap();
        let e = create_new(&dir.path().join("link"), b"x", 0o600).unwrap_err();
        assert_eq!(e.downcast_ref::<Failure>().unwrap().kind, Kind::Refused);
        assert_eq!(names(dir.path()), ["link"]);
        create_new(&dir.path().join("new"), b"x", 0o600).unwrap();
        assert_eq!(names(dir.path()), ["link", "new"]);
    }

    #[test]
    fn a_failed_fill_leaves_the_old_file_and_no_temp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        replace(&path, b"old", 0o644).unwrap();
        let (fd, name) = open_parent(&path).unwrap();
        let e = put_at(&fd, name, &path, |_| anyhow::bail!("disk on fire"), Placing::Over).unwrap_err();
        assert_eq!(e.to_string(), "disk on fire");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn remove_says_whether_there_was_something() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(!remove(&path).unwrap());
        assert!(!remove(&dir.path().join("no/such/folder")).unwrap());
        replace(&path, b"", 0o600).unwrap();
        assert!(remove(&path).unwrap());
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn folders_get_exactly_their_mode_and_links_are_not_folders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        ensure_dir(&path, 0o700).unwrap();
        ensure_dir(&path, 0o700).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&dir.path().join("a")), mode(&path)), (0o755, 0o700));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        ensure_dir(&path, 0o700).unwrap();
        assert_eq!(mode(&path), 0o700);
        symlink("a", dir.path().join("l")).unwrap();
        let e = ensure_dir(&dir.path().join("l"), 0o700).unwrap_err();
        assert!(e.to_string().contains("opening folder"), "{e:#}");
    }

    #[test]
    fn errors_name_the_path_and_the_kind() {
        let e = replace(Path::new("/proc/1/nothing/mode"), b"", 0o600).unwrap_err();
        assert!(e.to_string().contains("/proc/1/nothing/mode"), "{e:#}");
        assert!(is_errno(&e, Errno::NOENT));
        let e = error("writing", Path::new("/x"), Errno::ACCESS);
        assert_eq!(e.downcast_ref::<Failure>().unwrap().kind, Kind::NoPermission);
    }
}
