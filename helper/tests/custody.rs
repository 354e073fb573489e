//! Custody on a real file system: every type and attribute kept and put back, and nothing ever followed outside.
//!
//! Most need root (owners, `trusted.` attributes, capabilities, flags); what this machine cannot do is said and skipped.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, in its helpers too")]

use mesh::adapters::custody_fs::{self, look};
use mesh::adapters::custody_put::{Put, put};
use mesh::adapters::custody_store::{Store, Taken};
use mesh::adapters::lock::{Lock, Wait};
use mesh::layout::Layout;
use mesh_model::custody::{Aspect, Escaped, FoundPath, MAX_CONTENT, Reason, Sight, What};
use mesh_model::failure::{Failure, Kind};
use rustix::fs::{CWD, IFlags, Mode, RenameFlags, XattrFlags};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

struct Bed {
    dir: TempDir,
    layout: Layout,
    lock: Lock,
    store: Store,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let lock = Lock::take(&layout, "test", Wait::No).unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        let store = Store::open(&layout);
        Bed { dir, layout, lock, store }
    }

    fn at(&self, path: &FoundPath) -> PathBuf {
        self.dir.path().join(OsStr::from_bytes(&path.as_bytes()[1..]))
    }

    fn take(&self, path: &FoundPath) -> Taken {
        self.store.take(&self.lock, path, Reason::Adopt).unwrap()
    }

    fn restore_first(&self, path: &FoundPath) -> Put {
        let first = self.store.first(path).unwrap().unwrap();
        self.store.restore(&self.lock, &first).unwrap().put
    }
}

/// Stops the enemy also when a test fails, which otherwise would wait for it for ever.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn path(text: impl AsRef<[u8]>) -> FoundPath {
    FoundPath::new(text.as_ref()).unwrap()
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

fn refusal(e: &anyhow::Error) -> &Failure {
    let failure = e.downcast_ref::<Failure>().unwrap_or_else(|| panic!("{e:#}"));
    assert_eq!(failure.kind, Kind::Refused, "{failure}");
    failure
}

#[test]
fn adopting_twice_adds_nothing_and_the_first_sight_stays() {
    let bed = Bed::new();
    let hosts = path("/etc/hosts");
    fs::write(bed.at(&hosts), "one\n").unwrap();
    assert!(matches!(bed.take(&hosts), Taken::New(_)));
    assert!(matches!(bed.take(&hosts), Taken::Unchanged(_)));
    // Written again, the same bytes: not an edit.
    fs::write(bed.at(&hosts), "one\n").unwrap();
    assert!(matches!(bed.take(&hosts), Taken::Unchanged(_)));
    assert_eq!(bed.store.compare_now(&hosts).unwrap().unwrap().since_first, [Aspect::Written]);
    fs::write(bed.at(&hosts), "two\n").unwrap();
    let Taken::NewVersion { before, now } = bed.take(&hosts) else { panic!("an edit is a new version") };
    assert_eq!((before.version, now.version), (1, 2));
    let versions = bed.store.versions(&hosts).unwrap();
    assert_eq!(bed.store.content(&versions[0]).unwrap().unwrap(), b"one\n");
    assert_eq!(bed.store.content(&versions[1]).unwrap().unwrap(), b"two\n");
    fs::remove_file(bed.at(&hosts)).unwrap();
    assert!(matches!(bed.take(&hosts), Taken::NewVersion { .. }));
    assert_eq!(bed.store.last(&hosts).unwrap().unwrap().sight.what, What::Absent);
    assert_eq!(bed.store.list().unwrap().len(), 1);
}

#[test]
fn the_store_is_private_and_keeps_each_content_once() {
    let bed = Bed::new();
    for name in ["/etc/a", "/etc/b", "/etc/c"] {
        fs::write(bed.at(&path(name)), "same\n").unwrap();
        bed.take(&path(name));
    }
    let mut objects = 0;
    let mut todo = vec![bed.layout.custody()];
    while let Some(p) = todo.pop() {
        let meta = fs::symlink_metadata(&p).unwrap();
        let want = if meta.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(meta.permissions().mode() & 0o7777, want, "{}", p.display());
        assert!(!p.file_name().unwrap().to_string_lossy().starts_with(".mesh-"), "no temp is left");
        if meta.is_dir() {
            todo.extend(fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
        } else if p.starts_with(bed.layout.custody().join("objects")) {
            objects += 1;
        }
    }
    assert_eq!(objects, 1);
}

#[test]
fn damaged_content_is_never_put_back() {
    let bed = Bed::new();
    let f = path("/etc/f");
    fs::write(bed.at(&f), "good\n").unwrap();
    let Taken::New(first) = bed.take(&f) else { panic!() };
    let sha = first.sight.sha256().unwrap().to_owned();
    let object = bed.layout.custody().join("objects").join(&sha[..2]).join(&sha[2..]);
    fs::write(&object, "evil\n").unwrap();
    fs::write(bed.at(&f), "edited\n").unwrap();
    let e = bed.store.restore(&bed.lock, &first).unwrap_err();
    assert!(format!("{e:#}").contains("damaged"), "{e:#}");
    assert_eq!(fs::read(bed.at(&f)).unwrap(), b"edited\n");
    // Taking the same content again heals it.
    fs::write(bed.at(&f), "good\n").unwrap();
    bed.take(&f);
    assert_eq!(fs::read(&object).unwrap(), b"good\n");
}

#[test]
fn everything_of_a_file_comes_back() {
    if !is_root() {
        return;
    }
    let bed = Bed::new();
    let f = path("/etc/tool");
    let at = bed.at(&f);
    fs::write(&at, "#!/bin/sh\n").unwrap();
    std::os::unix::fs::chown(&at, Some(1234), Some(4321)).unwrap();
    fs::set_permissions(&at, fs::Permissions::from_mode(0o2750)).unwrap();
    // posix_acl_xattr.h: version 2; user::rwx, user 1000: r--, group::r-x, mask::r-x, other::---.
    let acl: Vec<u8> = [(1u16, 7u16, u32::MAX), (2, 4, 1000), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)]
        .into_iter()
        .fold(2u32.to_le_bytes().to_vec(), |mut all, (tag, perm, id)| {
            all.extend(tag.to_le_bytes());
            all.extend(perm.to_le_bytes());
            all.extend(id.to_le_bytes());
            all
        });
    // vfs_cap_data version 2: CAP_NET_BIND_SERVICE, effective and permitted (linux/capability.h).
    let capability: Vec<u8> = [0x0200_0001u32, 1 << 10, 0, 0, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
    let mut set = Vec::new();
    for (name, value) in [
        ("user.note", &b"\0\xff note"[..]),
        ("trusted.note", b"t"),
        ("system.posix_acl_access", &acl),
        ("security.capability", &capability),
    ] {
        match rustix::fs::setxattr(&at, name, value, XattrFlags::empty()) {
            Ok(()) => set.push(name),
            Err(e) => eprintln!("skipped: {name} cannot be set here ({e})"),
        }
    }
    let times = fs::FileTimes::new()
        .set_accessed(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789))
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(900_000_000, 987_654_321));
    File::options().write(true).open(&at).unwrap().set_times(times).unwrap();
    let before = look(bed.dir.path(), &f).unwrap();
    assert_eq!(before.sight.meta.as_ref().unwrap().xattrs.len(), set.len());
    bed.take(&f);
    assert_eq!(fs::metadata(&at).unwrap().atime(), 1_000_000_000, "looking leaves the reading time alone");

    // Only metadata: the inode stays.
    fs::set_permissions(&at, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&at, Some(0), Some(0)).unwrap();
    rustix::fs::setxattr(&at, "user.other", b"x", XattrFlags::empty()).unwrap();
    assert_eq!(bed.restore_first(&f), Put::InPlace);
    let now = look(bed.dir.path(), &f).unwrap();
    assert_eq!(now.sight.meta.as_ref().unwrap().ino, before.sight.meta.as_ref().unwrap().ino);
    same(&before.sight, &now.sight);

    // Content: a new inode, the same everything.
    fs::write(&at, "edited").unwrap();
    assert_eq!(bed.restore_first(&f), Put::Replaced);
    same(&before.sight, &look(bed.dir.path(), &f).unwrap().sight);
    assert_eq!(fs::read(&at).unwrap(), b"#!/bin/sh\n");

    // Gone, and another type.
    fs::remove_file(&at).unwrap();
    symlink("elsewhere", &at).unwrap();
    assert_eq!(bed.restore_first(&f), Put::Replaced);
    same(&before.sight, &look(bed.dir.path(), &f).unwrap().sight);
    assert_eq!(bed.restore_first(&f), Put::Same);
}

/// Equal in all that can be put back: the reading time too, which does not count as a difference.
fn same(a: &Sight, b: &Sight) {
    assert_eq!(a.differs(b), []);
    assert_eq!(a.what, b.what);
    let is_link = matches!(a.what, What::Link { .. });
    let (a, b) = (a.meta.as_ref().unwrap(), b.meta.as_ref().unwrap());
    assert_eq!((a.mtime_ns, &a.xattrs), (b.mtime_ns, &b.xattrs));
    // Reading a link's target touches its reading time, and no flag of openat(2) prevents that.
    assert!(is_link || a.atime_ns == b.atime_ns);
}

#[test]
fn immutable_and_append_only_come_back() {
    if !is_root() {
        return;
    }
    let bed = Bed::new();
    let f = path("/etc/fixed");
    let at = bed.at(&f);
    fs::write(&at, "fixed\n").unwrap();
    let set = |flags: IFlags| rustix::fs::ioctl_setflags(File::open(&at).unwrap(), flags);
    let was = match rustix::fs::ioctl_getflags(File::open(&at).unwrap()) {
        Ok(was) => was,
        Err(e) => return eprintln!("skipped: no inode flags here ({e})"),
    };
    if let Err(e) = set(was | IFlags::IMMUTABLE) {
        return eprintln!("skipped: cannot make a file immutable here ({e})");
    }
    bed.take(&f);
    set(was).unwrap();
    fs::write(&at, "edited\n").unwrap();
    set(was | IFlags::APPEND).unwrap();
    assert_eq!(bed.restore_first(&f), Put::Replaced);
    let flags = rustix::fs::ioctl_getflags(File::open(&at).unwrap()).unwrap();
    assert!(flags.contains(IFlags::IMMUTABLE) && !flags.contains(IFlags::APPEND));
    assert_eq!(fs::read(&at).unwrap(), b"fixed\n");
    set(was).unwrap();
}

#[test]
fn links_are_kept_as_links_and_nothing_is_a_record() {
    let bed = Bed::new();
    let link = path("/etc/localtime");
    symlink("../usr/share/zoneinfo/UTC\u{fffd}", bed.at(&link)).unwrap();
    bed.take(&link);
    let sight = bed.store.first(&link).unwrap().unwrap().sight;
    assert_eq!(sight.what, What::Link { target: Escaped("../usr/share/zoneinfo/UTC\u{fffd}".into()) });
    fs::remove_file(bed.at(&link)).unwrap();
    fs::write(bed.at(&link), "a file now").unwrap();
    assert_eq!(bed.restore_first(&link), Put::Replaced);
    same(&sight, &look(bed.dir.path(), &link).unwrap().sight);

    for nothing in ["/etc/not-here", "/no/folder/either"] {
        let nothing = path(nothing);
        assert!(matches!(bed.take(&nothing), Taken::New(_)));
        assert_eq!(bed.store.first(&nothing).unwrap().unwrap().sight, Sight { what: What::Absent, meta: None });
        fs::create_dir_all(bed.at(&nothing).parent().unwrap()).unwrap();
        fs::write(bed.at(&nothing), "made later").unwrap();
        assert_eq!(bed.restore_first(&nothing), Put::Removed);
        assert!(!bed.at(&nothing).exists());
        // What was made later is not lost.
        let last = bed.store.last(&nothing).unwrap().unwrap();
        assert_eq!((last.version, last.reason), (2, Reason::BeforeRestore));
        assert_eq!(bed.store.content(&last).unwrap().unwrap(), b"made later");
        assert_eq!(bed.restore_first(&nothing), Put::Same);
    }
}

#[test]
fn a_link_above_is_refused_by_name_and_never_followed() {
    let bed = Bed::new();
    fs::create_dir(bed.dir.path().join("real")).unwrap();
    fs::write(bed.dir.path().join("real/file"), "x").unwrap();
    symlink("real", bed.dir.path().join("lnk")).unwrap();
    fs::write(bed.dir.path().join("plain"), "x").unwrap();
    for (bad, says) in [("/lnk/file", "/lnk, above it, is a symbolic link to real"), ("/plain/file", "not a folder")] {
        let e = bed.store.take(&bed.lock, &path(bad), Reason::Adopt).unwrap_err();
        let failure = refusal(&e);
        assert!(failure.what.contains(says), "{failure}");
        assert_eq!(failure.place.as_deref(), Some(bad));
        let absent = Sight { what: What::Absent, meta: None };
        refusal(&put(bed.dir.path(), &path(bad), &absent, None).unwrap_err());
    }
    assert!(bed.dir.path().join("real/file").exists());
    assert_eq!(bed.store.list().unwrap().len(), 0);
}

#[test]
fn pipes_sockets_folders_and_devices_are_recorded_and_never_opened() {
    let bed = Bed::new();
    let fifo = path("/etc/fifo");
    rustix::fs::mkfifoat(CWD, bed.at(&fifo), Mode::RWXU).unwrap();
    // Without a writer, opening it would block for ever.
    assert_eq!(bed.take(&fifo).record().sight.what, What::Fifo);
    let socket = path("/etc/socket");
    let _listener = std::os::unix::net::UnixListener::bind(bed.at(&socket)).unwrap();
    assert_eq!(bed.take(&socket).record().sight.what, What::Socket);
    let folder = path("/etc/folder");
    fs::create_dir(bed.at(&folder)).unwrap();
    fs::set_permissions(bed.at(&folder), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(bed.take(&folder).record().sight.what, What::Directory);
    let null = look(Path::new("/"), &path("/dev/null")).unwrap();
    assert_eq!((null.sight.what, null.content), (What::Device, None));

    fs::remove_file(bed.at(&fifo)).unwrap();
    let first = bed.store.first(&fifo).unwrap().unwrap();
    refusal(&bed.store.restore(&bed.lock, &first).unwrap_err());
    fs::set_permissions(bed.at(&folder), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(bed.restore_first(&folder), Put::InPlace);
    fs::remove_dir(bed.at(&folder)).unwrap();
    assert_eq!(bed.restore_first(&folder), Put::Replaced);
    assert_eq!(fs::metadata(bed.at(&folder)).unwrap().permissions().mode() & 0o7777, 0o1777);
    // A folder is never removed for a file.
    let file = path("/etc/was-file");
    fs::write(bed.at(&file), "x").unwrap();
    let Taken::New(first) = bed.take(&file) else { panic!() };
    fs::remove_file(bed.at(&file)).unwrap();
    fs::create_dir(bed.at(&file)).unwrap();
    refusal(&bed.store.restore(&bed.lock, &first).unwrap_err());
}

#[test]
fn names_of_any_bytes() {
    let bed = Bed::new();
    for name in
        [&b"/etc/\xff\xfe"[..], b"/etc/a\nb", b"/etc/\x1b[2J", "/etc/jörg".as_bytes(), b"/etc/back\\slash", b"/etc/ "]
    {
        let p = path(name);
        fs::write(bed.at(&p), name).unwrap();
        bed.take(&p);
        fs::remove_file(bed.at(&p)).unwrap();
        bed.restore_first(&p);
        assert_eq!(fs::read(bed.at(&p)).unwrap(), name);
    }
    let listed: Vec<FoundPath> = bed.store.list().unwrap().into_iter().map(|v| v[0].path.clone()).collect();
    assert_eq!(listed.len(), 6);
    assert!(listed.contains(&path(b"/etc/\xff\xfe")));
}

#[test]
fn hard_links_stay_where_only_metadata_differs() {
    let bed = Bed::new();
    let f = path("/etc/f");
    fs::write(bed.at(&f), "x").unwrap();
    fs::hard_link(bed.at(&f), bed.dir.path().join("etc/other")).unwrap();
    bed.take(&f);
    fs::set_permissions(bed.at(&f), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(bed.restore_first(&f), Put::InPlace);
    assert_eq!(fs::metadata(bed.at(&f)).unwrap().nlink(), 2);
    // Somebody puts another file there that has a second name: its owner and mode are not ours to set.
    let secret = bed.dir.path().join("secret");
    fs::write(&secret, "x").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(bed.at(&f)).unwrap();
    fs::hard_link(&secret, bed.at(&f)).unwrap();
    assert_eq!(bed.restore_first(&f), Put::Replaced);
    let meta = fs::metadata(&secret).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.nlink()), (0o600, 1));
}

#[test]
fn holes_come_back_as_holes_and_what_is_too_large_is_refused() {
    let bed = Bed::new();
    let sparse = path("/etc/sparse");
    let mut content = vec![0u8; 4 << 20];
    content[1 << 20..(1 << 20) + 5].copy_from_slice(b"hello");
    let file = File::create(bed.at(&sparse)).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"hello", 1 << 20).unwrap();
    file.set_len(4 << 20).unwrap();
    drop(file);
    let Taken::New(first) = bed.take(&sparse) else { panic!() };
    assert!(matches!(first.sight.what, What::File { sparse: true, size: 0x40_0000, .. }), "{:?}", first.sight.what);
    fs::write(bed.at(&sparse), "edited").unwrap();
    bed.restore_first(&sparse);
    assert_eq!(fs::read(bed.at(&sparse)).unwrap(), content);
    assert!(fs::metadata(bed.at(&sparse)).unwrap().blocks() * 512 < 1 << 20);

    let huge = path("/etc/huge");
    File::create(bed.at(&huge)).unwrap().set_len(MAX_CONTENT + 1).unwrap();
    let e = bed.store.take(&bed.lock, &huge, Reason::Adopt).unwrap_err();
    assert!(refusal(&e).what.contains(&MAX_CONTENT.to_string()));
    assert_eq!(bed.store.list().unwrap().len(), 1);
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_whole_or_said() {
    let dir = tempfile::tempdir().unwrap();
    let f = path("/f");
    let at = dir.path().join("f");
    let versions: Vec<Vec<u8>> = (0u8..2).map(|n| vec![b'a' + n; 300_000]).collect();
    fs::write(&at, &versions[0]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            // In place, as a careless writer does it; with pauses in which it can be read.
            for n in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let half = &versions[n % 2];
                std::os::unix::fs::FileExt::write_at(&File::options().write(true).open(&at).unwrap(), half, 0).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(17));
            }
        });
        let (mut whole, mut said) = (0, 0);
        for _ in 0..40 {
            match look(dir.path(), &f) {
                Ok(seen) => {
                    assert!(versions.contains(seen.content.as_ref().unwrap()), "never half of each");
                    whole += 1;
                }
                Err(e) => {
                    assert!(format!("{e:#}").contains("changes faster"), "{e:#}");
                    said += 1;
                }
            }
        }
        assert!(whole > 0, "{said} times said");
    });
}

/// An enemy who owns the folder above swaps it for a link to an outside folder and back, as fast as it can.
#[test]
fn a_swapped_parent_never_leads_outside() {
    const ROUNDS: usize = 2000;
    // tmpfs: 2,000 times fsync on a disk would take minutes and show the same.
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let root = dir.path().join("root");
    let outside = dir.path().join("outside");
    for d in [&root, &outside, &root.join("home"), &root.join("home/dir")] {
        fs::create_dir(d).unwrap();
    }
    fs::write(outside.join("file"), "secret outside").unwrap();
    fs::write(root.join("home/dir/file"), "inside 0").unwrap();
    symlink(&outside, root.join("home/trap")).unwrap();
    let f = path("/home/dir/file");
    let versions: Vec<_> = (0..2)
        .map(|n| {
            fs::write(root.join("home/dir/file"), format!("inside {n}")).unwrap();
            look(&root, &f).unwrap()
        })
        .collect();
    let absent = Sight { what: What::Absent, meta: None };
    let outside_before = fs::metadata(outside.join("file")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut looked, mut written, mut removed, mut refused) = (0, 0, 0, 0);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (a, b) = (root.join("home/dir"), root.join("home/trap"));
                rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
            }
        });
        // A refusal is quick and may come many times in one time slice: rounds are made until enough were not refused.
        for round in 0..100 * ROUNDS {
            if round >= ROUNDS && written >= 100 && removed >= 20 && looked >= 100 {
                break;
            }
            match look(&root, &f) {
                Ok(seen) => {
                    let content = String::from_utf8(seen.content.unwrap_or_default()).unwrap();
                    assert!(content.is_empty() || content.starts_with("inside"), "round {round}: read {content:?}");
                    looked += 1;
                }
                Err(e) => {
                    refusal(&e);
                    refused += 1;
                }
            }
            let wanted = &versions[round % 2];
            let (sight, content) = match round % 3 {
                2 => (&absent, None),
                _ => (&wanted.sight, wanted.content.as_deref()),
            };
            match put(&root, &f, sight, content) {
                Ok(Put::Removed) => removed += 1,
                Ok(_) => written += 1,
                Err(e) => {
                    refusal(&e);
                    refused += 1;
                }
            }
        }
    });
    eprintln!("at least {ROUNDS} rounds: {looked} looked, {written} written, {removed} removed, {refused} refused");
    assert!(looked > 0 && written > 0 && removed > 0 && refused > 0, "both sides of the swap were met");
    let after = fs::metadata(outside.join("file")).unwrap();
    let key = |m: &fs::Metadata| (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.mode());
    assert_eq!(key(&outside_before), key(&after), "not even touched");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "no temp went outside");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"secret outside");
}

/// The same with the last component: the enemy swaps the file for a link to an outside file.
#[test]
fn a_swapped_leaf_never_leads_outside() {
    // Each swap makes the inode young, and a young file is read again: a round takes up to a quarter of a second.
    const ROUNDS: usize = 40;
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "secret outside").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(root.join("file"), "inside").unwrap();
    symlink(&outside, root.join("trap")).unwrap();
    let f = path("/file");
    let mut wanted = look(&root, &f).unwrap();
    if wanted.content.is_none() {
        panic!("the enemy is not at work yet");
    }
    let before = fs::metadata(&outside).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // The file is replaced by each put, so a name may be missing for an instant; that is no error here.
                let swap =
                    rustix::fs::renameat_with(CWD, root.join("file"), CWD, root.join("trap"), RenameFlags::EXCHANGE);
                assert!(matches!(swap, Ok(()) | Err(rustix::io::Errno::NOENT)), "{swap:?}");
            }
        });
        for round in 0..ROUNDS {
            let seen = look(&root, &f);
            if let Ok(custody_fs::Seen { content: Some(content), .. }) = &seen {
                assert_eq!(content, b"inside", "round {round}");
            }
            // Each round wants another mode, so that metadata is set in place as well.
            wanted.sight.meta.as_mut().unwrap().mode = if round % 2 == 0 { 0o666 } else { 0o644 };
            match put(&root, &f, &wanted.sight, wanted.content.as_deref()) {
                Ok(_) => {}
                // Raced, or its inode changes with every swap: said, and nothing was written outside.
                Err(e) => {
                    let kind = e.downcast_ref::<Failure>().map(|f| f.kind);
                    assert!(matches!(kind, Some(Kind::Busy | Kind::Failed)), "{e:#}");
                }
            }
        }
    });
    let after = fs::metadata(&outside).unwrap();
    assert_eq!((before.mode(), before.ctime(), before.ctime_nsec()), (after.mode(), after.ctime(), after.ctime_nsec()));
    assert_eq!(fs::read(&outside).unwrap(), b"secret outside");
}
