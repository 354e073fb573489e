//! Looking at a found path without being led anywhere else (DESIGN §7).
//!
//! Paths in users' homes are hostile: between two system calls their owner can put a link in place of any component. So
//! the folder is opened by one `openat2` that follows no link at all, the last component by descriptor on it, and
//! everything after that goes through descriptors of the very inode that was looked at. A path with a link in a parent
//! component is refused by name, with where it points: what the operator meant is the path that it leads to.

use super::durable;
use anyhow::Context as _;
use mesh_model::custody::{Escaped, FoundPath, MAX_CONTENT, Meta, Sight, What, escape};
use mesh_model::failure::{Failure, Kind};
use mesh_model::ledger::hex_sha256;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a file that changes while it is read is read again.
const READ_TRIES: u32 = 20;

/// Inode times have the kernel's tick as their grain, 10 ms at most (CONFIG_HZ=100): a file written within it can be
/// written again without its times telling. One that young is read again when it is older.
const GRAIN: Duration = Duration::from_millis(12);

/// The largest value of an extended attribute, and the longest list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX` of
/// linux/limits.h).
const XATTR_MAX: usize = 65536;

/// Follows no link, in any component, and leaves the root by no way.
const NO_LINKS: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What one look saw: the sight, and the content where it is a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// As it is recorded.
    pub sight: Sight,
    /// The bytes of a regular file.
    pub content: Option<Vec<u8>>,
}

/// Looks at `path` below `root` (`/` for the machine). "Nothing is there" is a sight; so is a fifo, a socket or a
/// device, which is never opened. The reading time of a file is left as it is where the kernel allows it.
///
/// Refused, by name: a link or a file in a parent component; a file larger than [`MAX_CONTENT`]. Failed: a file that
/// changes faster than it can be read.
pub fn look(root: &Path, path: &FoundPath) -> anyhow::Result<Seen> {
    match open_folder(root, path, OFlags::PATH)? {
        Some(dir) => look_in(&dir, path),
        None => Ok(absent()),
    }
}

/// Like [`look`], in the open folder of `path`.
pub fn look_in(dir: &OwnedFd, path: &FoundPath) -> anyhow::Result<Seen> {
    let Some(inode) = open_inode(dir, path)? else { return Ok(absent()) };
    let stat = stat_of(&inode, path)?;
    let (what, content, stat) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let (content, stat) = read_stable(&inode, path)?;
            let size = content.len() as u64;
            let sparse = stat.st_blocks.unsigned_abs().saturating_mul(512) < size;
            (What::File { size, sha256: hex_sha256(&content), sparse }, Some(content), stat)
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&inode, "", Vec::new()).map_err(|e| failed("reading link", path, e))?;
            (What::Link { target: Escaped(target.into_bytes()) }, None, stat)
        }
        FileType::Directory => (What::Directory, None, stat),
        FileType::Fifo => (What::Fifo, None, stat),
        FileType::Socket => (What::Socket, None, stat),
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => (What::Device, None, stat),
    };
    let flags = match what {
        What::File { .. } | What::Directory => flags_of(&inode, path)?,
        What::Absent | What::Link { .. } | What::Fifo | What::Socket | What::Device => None,
    };
    let xattrs = xattrs_of(&inode, path)?;
    Ok(Seen { sight: Sight { what, meta: Some(meta_of(&stat, xattrs, flags)) }, content })
}

fn absent() -> Seen {
    Seen { sight: Sight { what: What::Absent, meta: None }, content: None }
}

/// Opens the folder of `path` with `access` (`PATH`, or `RDONLY` for what will be synced); none where it, or one above
/// it, is not there.
pub fn open_folder(root: &Path, path: &FoundPath, access: OFlags) -> anyhow::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root_fd = rustix::fs::open(root, flags, Mode::empty()).map_err(|e| durable::error("opening", root, e))?;
    let (folder, _) = path.split();
    let folder = if folder.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(folder) };
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open_beneath(&root_fd, folder, flags) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(blocking_component(&root_fd, path)),
        Err(e) => Err(failed("opening the folder of", path, e)),
    }
}

/// `openat2` with [`NO_LINKS`]. EAGAIN is the kernel's "somebody renamed meanwhile, ask again" (openat2(2)).
fn open_beneath(dir: impl AsFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(dir.as_fd(), name, flags, Mode::empty(), NO_LINKS) {
            Err(Errno::AGAIN | Errno::INTR) if tries < 128 => tries += 1,
            other => return other,
        }
    }
}

/// Names the first parent component that is not a folder. It is found component by component, each opened on the one
/// before; what it says is for people and decides nothing.
fn blocking_component(root: &OwnedFd, path: &FoundPath) -> anyhow::Error {
    let (folder, _) = path.split();
    let mut upto = PathBuf::new();
    for component in folder.split(|b| *b == b'/') {
        upto.push(OsStr::from_bytes(component));
        let Ok(inode) = open_beneath(root, upto.as_os_str(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC) else {
            break;
        };
        let shown = escape(Path::new("/").join(&upto).as_os_str().as_bytes());
        let Ok(stat) = rustix::fs::fstat(&inode) else { break };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => {
                let target = match rustix::fs::readlinkat(&inode, "", Vec::new()) {
                    Ok(target) => escape(target.to_bytes()),
                    Err(e) => format!("somewhere ({e})"),
                };
                return Failure::refused(format!(
                    "{shown}, above it, is a symbolic link to {target}, and links are not followed"
                ))
                .at(path.to_string())
                .remedy("name the path that it leads to")
                .into();
            }
            _ => {
                return Failure::refused(format!("{shown}, above it, is not a folder"))
                    .at(path.to_string())
                    .remedy("correct the path in node.toml")
                    .into();
            }
        }
    }
    Failure::refused("a folder above it was a symbolic link at one instant and not at the next")
        .at(path.to_string())
        .remedy("find out who changes it, and try again")
        .into()
}

/// Opens the inode that is at `path`, whatever it is, without opening what it leads to (O_PATH); none where nothing is.
pub fn open_inode(dir: &OwnedFd, path: &FoundPath) -> anyhow::Result<Option<OwnedFd>> {
    let (_, name) = path.split();
    match open_beneath(dir, OsStr::from_bytes(name), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC) {
        Ok(inode) => Ok(Some(inode)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(failed("looking at", path, e)),
    }
}

/// The way to an open inode that leads nowhere else: the kernel goes from here to the descriptor's inode itself
/// (proc(5), `/proc/pid/fd`), also where that is a link.
pub fn by_descriptor(inode: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", inode.as_raw_fd())
}

/// Opens a regular file or folder, whose inode is known to be one, for reading.
pub fn open_for_reading(inode: &OwnedFd, path: &FoundPath) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let way = by_descriptor(inode.as_fd());
    match rustix::fs::open(&way, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner and CAP_FOWNER may leave the reading time alone (open(2)).
        Err(Errno::PERM) => rustix::fs::open(&way, flags, Mode::empty()),
        other => other,
    }
    .map_err(|e| failed("opening", path, e))
}

/// Reads a regular file until two looks at its inode around one reading agree.
fn read_stable(inode: &OwnedFd, path: &FoundPath) -> anyhow::Result<(Vec<u8>, Stat)> {
    let mut file = File::from(open_for_reading(inode, path)?);
    for _ in 0..READ_TRIES {
        let before = stat_of(&file, path)?;
        if before.st_size.unsigned_abs() > MAX_CONTENT {
            return Err(too_large(path, before.st_size.unsigned_abs()));
        }
        let mut content = Vec::with_capacity(usize::try_from(before.st_size).unwrap_or(0));
        file.rewind().with_context(|| format!("reading {path}"))?;
        (&mut file).take(MAX_CONTENT + 1).read_to_end(&mut content).with_context(|| format!("reading {path}"))?;
        let after = stat_of(&file, path)?;
        let key = |s: &Stat| (s.st_size, s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
        if key(&before) == key(&after) && content.len() as i64 == after.st_size && !is_young(&after) {
            return Ok((content, after));
        }
        thread::sleep(GRAIN);
    }
    Err(Failure::new(Kind::Failed, format!("it changes faster than it can be read ({READ_TRIES} times tried)"))
        .at(path.to_string())
        .remedy("find out what writes it, and try again")
        .into())
}

fn too_large(path: &FoundPath, size: u64) -> anyhow::Error {
    Failure::refused(format!("it has {size} bytes; custody keeps files up to {MAX_CONTENT}"))
        .at(path.to_string())
        .remedy("what is larger is data, not configuration: take it out of the files in node.toml")
        .into()
}

fn is_young(stat: &Stat) -> bool {
    let changed = UNIX_EPOCH + Duration::new(stat.st_ctime.max(0).unsigned_abs(), stat.st_ctime_nsec as u32);
    // A time in the future (the clock was set back) tells nothing; it is not waited for.
    SystemTime::now().duration_since(changed).is_ok_and(|age| age < GRAIN)
}

/// `fstat`.
pub fn stat_of(fd: impl AsFd, path: &FoundPath) -> anyhow::Result<Stat> {
    rustix::fs::fstat(fd).map_err(|e| failed("looking at", path, e))
}

fn meta_of(stat: &Stat, xattrs: BTreeMap<Escaped, String>, flags: Option<u32>) -> Meta {
    let ns = |seconds: i64, nanos: u64| seconds.saturating_mul(1_000_000_000).saturating_add_unsigned(nanos);
    Meta {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        dev: stat.st_dev,
        ino: stat.st_ino,
        nlink: stat.st_nlink,
        atime_ns: ns(stat.st_atime, stat.st_atime_nsec),
        mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
        ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        xattrs,
        flags,
    }
}

/// All extended attributes that this process may see; none where the file system has none.
pub fn xattrs_of(inode: &OwnedFd, path: &FoundPath) -> anyhow::Result<BTreeMap<Escaped, String>> {
    let way = by_descriptor(inode.as_fd());
    let mut names = vec![0; XATTR_MAX];
    let length = match rustix::fs::listxattr(&way, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(BTreeMap::new()),
        Err(e) => return Err(failed("listing the attributes of", path, e)),
    };
    let mut all = BTreeMap::new();
    let mut value = vec![0; XATTR_MAX];
    for name in names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        match rustix::fs::getxattr(&way, name, &mut value[..]) {
            Ok(length) => drop(all.insert(Escaped(name.to_vec()), hex(&value[..length]))),
            // Removed between the two calls.
            Err(Errno::NODATA) => {}
            Err(e) => return Err(failed(&format!("reading attribute {} of", escape(name)), path, e)),
        }
    }
    Ok(all)
}

/// The flags of a file or folder; none where the file system has none.
fn flags_of(inode: &OwnedFd, path: &FoundPath) -> anyhow::Result<Option<u32>> {
    match rustix::fs::ioctl_getflags(open_for_reading(inode, path)?) {
        Ok(flags) => Ok(Some(flags.bits())),
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(e) => Err(failed("reading the flags of", path, e)),
    }
}

/// A failed system call on a found path.
pub fn failed(doing: &str, path: &FoundPath, errno: Errno) -> anyhow::Error {
    durable::error(doing, Path::new(&path.to_string()), errno)
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
