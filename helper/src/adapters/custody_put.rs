//! Putting a found thing back: exact content and metadata, by descriptor, nowhere else (DESIGN §7).
//!
//! What differs only in metadata is set on the inode that is there, so that hard links stay. Other content comes as a
//! new inode, complete before it gets the name. In a folder that its owner can write, the owner can put anything at any
//! name at any instant; so nothing here acts on a name twice and believes that it is the same thing: owner, mode and
//! attributes are only ever set by descriptor, on an inode that was made here or that was looked at as that one.

use super::custody_fs::{self, Seen, failed};
use super::durable::{self, Placing};
use anyhow::Context as _;
use mesh_model::custody::{Escaped, FoundPath, KEPT_FLAGS, Meta, Sight, What};
use mesh_model::failure::{Failure, Kind};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Runs of zeros of this length become holes in a file that had holes.
const HOLE: usize = 4096;

/// How a thing was put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It was as wanted already; nothing was written.
    Same,
    /// Its metadata was set; the inode is the one that was there.
    InPlace,
    /// It has a new inode. Other names of the old one keep the old content.
    Replaced,
    /// The name was removed.
    Removed,
}

/// Makes `path` below `root` what `wanted` says, with `content` where that is a file. What is there now is lost unless
/// the caller has it in custody.
///
/// Refused, by name: links in parent components; a folder that is missing above it; a folder in place of a file or the
/// other way round; fifos, sockets and devices.
pub fn put(root: &Path, path: &FoundPath, wanted: &Sight, content: Option<&[u8]>) -> anyhow::Result<Put> {
    let Some(dir) = custody_fs::open_folder(root, path, OFlags::RDONLY)? else {
        return match wanted.what {
            What::Absent => Ok(Put::Same),
            _ => Err(refused(path, "the folder that it was in is gone", "make that folder first")),
        };
    };
    let now = custody_fs::look_in(&dir, path)?;
    if wanted.differs(&now.sight).is_empty() {
        return Ok(Put::Same);
    }
    let meta = wanted.meta.as_ref();
    match (&wanted.what, &now.sight.what, meta) {
        (_, What::Directory, _) if wanted.what != What::Directory => {
            Err(refused(path, "a folder is there now", "custody removes no folder: move it away first"))
        }
        (What::Absent, ..) => remove(&dir, path),
        (What::Fifo | What::Socket | What::Device, ..) => Err(refused(
            path,
            &format!("it was a {}", wanted.what.word()),
            "custody keeps no such thing, only its record",
        )),
        (What::Directory, What::Absent, Some(meta)) => make_folder(&dir, path, meta),
        (What::Directory, What::Directory, Some(meta)) => in_place(&dir, path, &now, meta),
        (What::Directory, ..) => Err(refused(path, "it was a folder and is none now", "move what is there away first")),
        (What::File { sha256, .. }, What::File { sha256: same, .. }, Some(meta))
            if sha256 == same && is_the_found_inode(meta, &now) =>
        {
            in_place(&dir, path, &now, meta)
        }
        (What::File { sparse, .. }, _, Some(meta)) => {
            let content = content.with_context(|| format!("no content for {path}"))?;
            replace_file(&dir, path, content, *sparse, meta)
        }
        (What::Link { target }, _, Some(meta)) => replace_link(&dir, path, target, meta),
        (What::File { .. } | What::Link { .. }, _, None) => {
            Err(anyhow::anyhow!("the record of {path} has no metadata"))
        }
    }
}

/// Whether owner and mode may be set on what is there. An inode with other names may be anybody's, put there by a hard
/// link, unless it is the one that was found.
fn is_the_found_inode(found: &Meta, now: &Seen) -> bool {
    now.sight.meta.as_ref().is_some_and(|m| m.nlink == 1 || (m.dev, m.ino) == (found.dev, found.ino))
}

fn refused(path: &FoundPath, what: &str, remedy: &str) -> anyhow::Error {
    Failure::refused(what).at(path.to_string()).remedy(remedy).into()
}

fn name(path: &FoundPath) -> &OsStr {
    OsStr::from_bytes(path.split().1)
}

fn remove(dir: &OwnedFd, path: &FoundPath) -> anyhow::Result<Put> {
    thaw(dir, path)?;
    rustix::fs::unlinkat(dir, name(path), AtFlags::empty()).map_err(|e| failed("removing", path, e))?;
    durable::sync_dir(dir, Path::new(&path.to_string()))?;
    Ok(Put::Removed)
}

/// Sets the metadata of the inode that was looked at as `now`.
fn in_place(dir: &OwnedFd, path: &FoundPath, now: &Seen, meta: &Meta) -> anyhow::Result<Put> {
    let inode = custody_fs::open_inode(dir, path)?.with_context(|| format!("{path} went away meanwhile"))?;
    let stat = custody_fs::stat_of(&inode, path)?;
    let looked_at = now.sight.meta.as_ref().map(|m| (m.dev, m.ino, m.nlink));
    if looked_at != Some((stat.st_dev, stat.st_ino, stat.st_nlink)) {
        return Err(raced(path));
    }
    let fd = custody_fs::open_for_reading(&inode, path)?;
    set_flags(&fd, 0, path)?;
    set_meta(&inode, &fd, meta, path)?;
    set_flags(&fd, meta.flags.unwrap_or(0), path)?;
    rustix::fs::fsync(&fd).map_err(|e| failed("writing to disk", path, e))?;
    Ok(Put::InPlace)
}

fn make_folder(dir: &OwnedFd, path: &FoundPath, meta: &Meta) -> anyhow::Result<Put> {
    rustix::fs::mkdirat(dir, name(path), Mode::RWXU).map_err(|e| failed("creating folder", path, e))?;
    let inode = custody_fs::open_inode(dir, path)?.with_context(|| format!("{path} went away meanwhile"))?;
    let stat = custody_fs::stat_of(&inode, path)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory
        || stat.st_uid != rustix::process::geteuid().as_raw()
    {
        return Err(raced(path));
    }
    let fd = custody_fs::open_for_reading(&inode, path)?;
    set_meta(&inode, &fd, meta, path)?;
    set_flags(&fd, meta.flags.unwrap_or(0), path)?;
    rustix::fs::fsync(&fd).map_err(|e| failed("writing to disk", path, e))?;
    durable::sync_dir(dir, Path::new(&path.to_string()))?;
    Ok(Put::Replaced)
}

fn replace_file(dir: &OwnedFd, path: &FoundPath, content: &[u8], sparse: bool, meta: &Meta) -> anyhow::Result<Put> {
    thaw(dir, path)?;
    let mut made = None;
    let shown = path.to_string();
    durable::put_at(
        dir,
        name(path),
        Path::new(&shown),
        |file| {
            write_content(file, content, sparse).with_context(|| format!("writing {shown}"))?;
            let inode = OwnedFd::from(file.try_clone().with_context(|| format!("writing {shown}"))?);
            set_meta(&inode, &inode, meta, path)?;
            made = Some(inode);
            Ok(())
        },
        Placing::Over,
    )?;
    let made = made.with_context(|| format!("{shown} was not written"))?;
    set_flags(&made, meta.flags.unwrap_or(0), path)?;
    rustix::fs::fsync(&made).map_err(|e| failed("writing to disk", path, e))?;
    expect_at(dir, path, &made)?;
    Ok(Put::Replaced)
}

fn write_content(file: &mut File, content: &[u8], sparse: bool) -> std::io::Result<()> {
    if !sparse {
        return file.write_all(content);
    }
    for block in content.chunks(HOLE) {
        if block.iter().all(|b| *b == 0) {
            file.seek(SeekFrom::Current(block.len() as i64))?;
        } else {
            file.write_all(block)?;
        }
    }
    file.set_len(content.len() as u64)
}

fn replace_link(dir: &OwnedFd, path: &FoundPath, target: &Escaped, meta: &Meta) -> anyhow::Result<Put> {
    thaw(dir, path)?;
    let shown = path.to_string();
    let temp = durable::temp_name();
    let target = OsStr::from_bytes(&target.0);
    rustix::fs::symlinkat(target, dir, &temp).map_err(|e| failed("creating a temporary link beside", path, e))?;
    let made = own_link(dir, &temp, target, path).and_then(|inode| {
        rustix::fs::chownat(&inode, "", owner(meta), group(meta), AtFlags::EMPTY_PATH)
            .map_err(|e| failed("setting the owner of", path, e))?;
        set_xattrs(&inode, meta, path)?;
        rustix::fs::utimensat(&inode, "", &times(meta), AtFlags::EMPTY_PATH)
            .map_err(|e| failed("setting the times of", path, e))?;
        durable::place(dir, &temp, name(path), Path::new(&shown), Placing::Over)?;
        Ok(inode)
    });
    let made = match made {
        Ok(inode) => inode,
        Err(e) => {
            return match rustix::fs::unlinkat(dir, &temp, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Err(e),
                Err(left) => Err(e.context(format!("{temp} is left beside {shown} ({left})"))),
            };
        }
    };
    durable::sync_dir(dir, Path::new(&shown))?;
    expect_at(dir, path, &made)?;
    Ok(Put::Replaced)
}

/// Opens the link that was just made. A link has no O_EXCL descriptor, so it is checked to be ours: a link with this
/// target, one name, the caller's: the folder's owner can make no such thing.
fn own_link(dir: &OwnedFd, temp: &str, target: &OsStr, path: &FoundPath) -> anyhow::Result<OwnedFd> {
    let inode = rustix::fs::openat(dir, temp, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("opening the temporary link of", path, e))?;
    let stat = custody_fs::stat_of(&inode, path)?;
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let mine = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
    if !is_link || !mine {
        return Err(raced(path));
    }
    match rustix::fs::readlinkat(&inode, "", Vec::new()) {
        Ok(there) if there.as_bytes() == target.as_bytes() => Ok(inode),
        Ok(_) => Err(raced(path)),
        Err(e) => Err(failed("reading the temporary link of", path, e)),
    }
}

/// Whether the name now is the inode that was made; if not, somebody put something else there meanwhile.
fn expect_at(dir: &OwnedFd, path: &FoundPath, made: &OwnedFd) -> anyhow::Result<()> {
    let made = custody_fs::stat_of(made, path)?;
    match rustix::fs::statat(dir, name(path), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if (there.st_dev, there.st_ino) == (made.st_dev, made.st_ino) => Ok(()),
        Ok(_) | Err(Errno::NOENT) => Err(raced(path)),
        Err(e) => Err(failed("looking at", path, e)),
    }
}

fn raced(path: &FoundPath) -> anyhow::Error {
    Failure::new(Kind::Busy, "somebody else changes it at this instant")
        .at(path.to_string())
        .remedy("find out who writes there, and try again")
        .into()
}

fn owner(meta: &Meta) -> Option<Uid> {
    Some(Uid::from_raw(meta.uid))
}

fn group(meta: &Meta) -> Option<Gid> {
    Some(Gid::from_raw(meta.gid))
}

fn times(meta: &Meta) -> Timestamps {
    let spec = |ns: i64| Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
    Timestamps { last_access: spec(meta.atime_ns), last_modification: spec(meta.mtime_ns) }
}

/// Owner first (it clears set-id bits and capabilities), then attributes (an ACL sets mode bits), then the mode, then
/// the times, which everything before touches.
fn set_meta(inode: &OwnedFd, fd: &OwnedFd, meta: &Meta, path: &FoundPath) -> anyhow::Result<()> {
    rustix::fs::fchown(fd, owner(meta), group(meta)).map_err(|e| failed("setting the owner of", path, e))?;
    set_xattrs(inode, meta, path)?;
    rustix::fs::fchmod(fd, Mode::from_raw_mode(meta.mode)).map_err(|e| failed("setting the mode of", path, e))?;
    rustix::fs::futimens(fd, &times(meta)).map_err(|e| failed("setting the times of", path, e))
}

/// Makes the attributes those of the record. One that the record does not have is removed (a default ACL of the folder
/// gives a new file one); a security label is not, since policy puts it there and does not let go of it.
fn set_xattrs(inode: &OwnedFd, meta: &Meta, path: &FoundPath) -> anyhow::Result<()> {
    let way = custody_fs::by_descriptor(inode.as_fd());
    let there = custody_fs::xattrs_of(inode, path)?;
    for extra in there.keys().filter(|n| !meta.xattrs.contains_key(n)) {
        if extra.0.starts_with(b"security.") && extra.0 != b"security.capability" {
            continue;
        }
        match rustix::fs::removexattr(&way, &extra.0[..]) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => return Err(failed(&format!("removing attribute {extra} of"), path, e)),
        }
    }
    for (name, value) in meta.xattrs.iter().filter(|(n, v)| there.get(n) != Some(v)) {
        let value = unhex(value).with_context(|| format!("attribute {name} in the record of {path} is not hex"))?;
        rustix::fs::setxattr(&way, &name.0[..], &value, XattrFlags::empty())
            .map_err(|e| failed(&format!("setting attribute {name} of"), path, e))?;
    }
    Ok(())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (text.len() % 2 == 0 && text.bytes().all(|b| b.is_ascii_hexdigit())).then_some(())?;
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}

/// Sets immutable and append-only as in `flags`, and leaves every other flag.
fn set_flags(fd: &OwnedFd, flags: u32, path: &FoundPath) -> anyhow::Result<()> {
    let now = match rustix::fs::ioctl_getflags(fd) {
        Ok(now) => now.bits(),
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::INVAL | Errno::NOSYS) if flags & KEPT_FLAGS == 0 => return Ok(()),
        Err(e) => return Err(failed("reading the flags of", path, e)),
    };
    if (now ^ flags) & KEPT_FLAGS == 0 {
        return Ok(());
    }
    let wanted = (now & !KEPT_FLAGS) | (flags & KEPT_FLAGS);
    rustix::fs::ioctl_setflags(fd, IFlags::from_bits_retain(wanted))
        .map_err(|e| failed("setting the flags of", path, e))
}

/// Clears immutable and append-only of what is there, which otherwise can be neither replaced nor removed.
fn thaw(dir: &OwnedFd, path: &FoundPath) -> anyhow::Result<()> {
    let Some(inode) = custody_fs::open_inode(dir, path)? else { return Ok(()) };
    match FileType::from_raw_mode(custody_fs::stat_of(&inode, path)?.st_mode) {
        FileType::RegularFile => set_flags(&custody_fs::open_for_reading(&inode, path)?, 0, path),
        _ => Ok(()),
    }
}
