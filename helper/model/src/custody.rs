//! What was found at a path, as a record that can be compared and put back (DESIGN §7).
//!
//! Values only: `mesh::adapters::custody_fs` looks at the disk and writes back. "Nothing was here" is a record like any
//! other. The content itself is never in a record, only its hash.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The schema number of a [`Record`].
pub const SCHEMA: u32 = 1;

/// The largest file whose content is kept: 64 MiB. Configuration is far smaller; what is larger is data, which a
/// migration moves and custody must not double.
pub const MAX_CONTENT: u64 = 64 << 20;

/// Bytes from the file system (a path, a link's target, an attribute's name) as text that can be read and typed.
///
/// Printable UTF-8 stays; every other byte, and the backslash, is written `\xNN`. Two different byte strings never have
/// the same text.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || c.is_control() || is_invisible(c) {
                let mut buffer = [0; 4];
                c.encode_utf8(&mut buffer).bytes().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

/// Characters that reorder or hide text on a terminal: bidirectional controls, zero-width ones, line separators.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The bytes of what [`escape`] wrote; none where a backslash is followed by anything but `xNN`.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'\\' {
            out.push(*first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.strip_prefix(b"x")?.get(..2)?).ok()?;
        if digits.starts_with('+') {
            return None;
        }
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[3..];
    }
    Some(out)
}

/// Bytes that are shown and stored escaped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Escaped(pub Vec<u8>);

impl TryFrom<String> for Escaped {
    type Error = String;
    fn try_from(text: String) -> Result<Escaped, String> {
        unescape(&text).map(Escaped).ok_or_else(|| format!("{text:?} has a backslash without xNN after it"))
    }
}

impl From<Escaped> for String {
    fn from(e: Escaped) -> String {
        escape(&e.0)
    }
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

/// A path that can be in custody: absolute, in its shortest form, any bytes but NUL; at most 4095 of them (PATH_MAX).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Escaped", into = "Escaped")]
pub struct FoundPath(Vec<u8>);

impl FoundPath {
    /// Checks a path; the error says what is wrong and what would be right.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<FoundPath, String> {
        let bytes = bytes.into();
        let shown = escape(&bytes);
        let Some(relative) = bytes.strip_prefix(b"/") else {
            return Err(format!("{shown:?} is not absolute; write it from / on"));
        };
        if relative.is_empty() || bytes.len() > 4095 || bytes.contains(&0) {
            return Err(format!("{shown:?} cannot be in custody; it must name something below /, in 2 to 4095 bytes"));
        }
        for component in relative.split(|b| *b == b'/') {
            match component {
                b"" => return Err(format!("{shown:?} has a slash too many; write it without")),
                b"." | b".." => {
                    return Err(format!(
                        "{shown:?} has {:?} in it; write the path that it leads to",
                        String::from_utf8_lossy(component)
                    ));
                }
                _ => {}
            }
        }
        Ok(FoundPath(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The folder below `/` (empty for `/` itself) and the last component.
    pub fn split(&self) -> (&[u8], &[u8]) {
        let relative = &self.0[1..];
        match relative.iter().rposition(|b| *b == b'/') {
            Some(at) => (&relative[..at], &relative[at + 1..]),
            None => (&[], relative),
        }
    }
}

impl fmt::Display for FoundPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl TryFrom<Escaped> for FoundPath {
    type Error = String;
    fn try_from(e: Escaped) -> Result<FoundPath, String> {
        FoundPath::new(e.0)
    }
}

impl From<FoundPath> for Escaped {
    fn from(p: FoundPath) -> Escaped {
        Escaped(p.0)
    }
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum What {
    /// Nothing.
    Absent,
    /// A regular file; its content is in the store under its hash.
    File {
        /// Bytes, at most [`MAX_CONTENT`].
        size: u64,
        /// SHA-256 of the content, 64 lower-case hex digits.
        sha256: String,
        /// Whether it takes less space than it has bytes (holes).
        sparse: bool,
    },
    /// A symbolic link, itself, not what it points to.
    Link {
        /// Where it points.
        target: Escaped,
    },
    /// A folder: itself, not what is in it.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
}

impl What {
    /// Its word in tables.
    pub fn word(&self) -> &'static str {
        match self {
            What::Absent => "absent",
            What::File { .. } => "file",
            What::Link { .. } => "link",
            What::Directory => "directory",
            What::Fifo => "fifo",
            What::Socket => "socket",
            What::Device => "device",
        }
    }
}

/// Whose it is, and what else its inode says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// The twelve mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, to say what is a mount away; compared with nothing.
    pub dev: u64,
    /// Inode number at that time.
    pub ino: u64,
    /// How many names the inode has.
    pub nlink: u64,
    /// Last read, nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last written, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Inode last changed, nanoseconds since 1970; cannot be put back.
    pub ctime_ns: i64,
    /// Every extended attribute by name, its value in hex: `user.`, `trusted.`, `security.` (capabilities, labels) and
    /// `system.posix_acl_*` (the ACLs).
    pub xattrs: BTreeMap<Escaped, String>,
    /// The inode's flags (`FS_IOC_GETFLAGS`: immutable, append-only …), where the file system has any.
    pub flags: Option<u32>,
}

/// The flags that can be put back and that count as a difference: immutable (0x10) and append-only (0x20), as
/// `linux/fs.h` has them. Others are the file system's own (extents, indexed) or its choice (compression).
pub const KEPT_FLAGS: u32 = 0x30;

/// What one look at a path saw. `meta` is none exactly where nothing is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// What is there.
    pub what: What,
    /// Its inode.
    pub meta: Option<Meta>,
}

/// In what two sights differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// It was there and is gone.
    Gone,
    /// It was not there and is now.
    Appeared,
    /// Another type.
    Type,
    /// Other bytes in a file.
    Content,
    /// Another target of a link.
    Target,
    /// Other mode bits.
    Mode,
    /// Another owner or group.
    Owner,
    /// Other extended attributes, ACLs and capabilities included.
    Attributes,
    /// Immutable or append-only set or cleared.
    Flags,
    /// Only written again: another modification time. Not an edit.
    Written,
}

impl Aspect {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Aspect::Gone => "gone",
            Aspect::Appeared => "appeared",
            Aspect::Type => "type",
            Aspect::Content => "content",
            Aspect::Target => "target",
            Aspect::Mode => "mode",
            Aspect::Owner => "owner",
            Aspect::Attributes => "attributes",
            Aspect::Flags => "flags",
            Aspect::Written => "written",
        }
    }
}

impl Sight {
    /// In what `now` differs from this, in a fixed order; empty where it does not. Reading times, inode numbers and
    /// link counts do not count, nor do times of folders, which change with every name in them.
    pub fn differs(&self, now: &Sight) -> Vec<Aspect> {
        let mut all = Vec::new();
        match (&self.what, &now.what) {
            (What::Absent, What::Absent) => return all,
            (What::Absent, _) => return vec![Aspect::Appeared],
            (_, What::Absent) => return vec![Aspect::Gone],
            (What::File { sha256: a, .. }, What::File { sha256: b, .. }) if a != b => all.push(Aspect::Content),
            (What::Link { target: a }, What::Link { target: b }) if a != b => all.push(Aspect::Target),
            (a, b) if a.word() != b.word() => return vec![Aspect::Type],
            _ => {}
        }
        let (Some(a), Some(b)) = (&self.meta, &now.meta) else { return all };
        if a.mode != b.mode {
            all.push(Aspect::Mode);
        }
        if (a.uid, a.gid) != (b.uid, b.gid) {
            all.push(Aspect::Owner);
        }
        if a.xattrs != b.xattrs {
            all.push(Aspect::Attributes);
        }
        if a.flags.unwrap_or(0) & KEPT_FLAGS != b.flags.unwrap_or(0) & KEPT_FLAGS {
            all.push(Aspect::Flags);
        }
        if a.mtime_ns != b.mtime_ns && self.what != What::Directory {
            all.push(Aspect::Written);
        }
        all
    }

    /// Whether `now` is an edit: something other than a mere writing of the same.
    pub fn edited(&self, now: &Sight) -> bool {
        self.differs(now).iter().any(|a| *a != Aspect::Written)
    }

    /// The content's hash, for a file.
    pub fn sha256(&self) -> Option<&str> {
        match &self.what {
            What::File { sha256, .. } => Some(sha256),
            What::Absent | What::Link { .. } | What::Directory | What::Fifo | What::Socket | What::Device => None,
        }
    }
}

/// Why a version was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The adoption took it.
    Adopt,
    /// It was seen changed by others.
    Seen,
    /// It was there when another version was put back.
    BeforeRestore,
}

impl Reason {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Adopt => "adopt",
            Reason::Seen => "seen",
            Reason::BeforeRestore => "before-restore",
        }
    }
}

/// One version of one path. Version 1 is the first sight and is never overwritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// `1`.
    pub schema: u32,
    /// The path.
    pub path: FoundPath,
    /// From 1, without gaps.
    pub version: u32,
    /// When it was seen, microseconds since 1970.
    pub seen_us: u64,
    /// Why it was recorded.
    pub reason: Reason,
    /// What was there.
    pub sight: Sight,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(sha256: &str) -> Sight {
        let meta = Meta {
            mode: 0o644,
            uid: 0,
            gid: 0,
            dev: 1,
            ino: 2,
            nlink: 1,
            atime_ns: 1,
            mtime_ns: 2,
            ctime_ns: 3,
            xattrs: BTreeMap::new(),
            flags: Some(0x8_0000),
        };
        Sight { what: What::File { size: 1, sha256: sha256.into(), sparse: false }, meta: Some(meta) }
    }

    #[test]
    fn escaping_is_readable() {
        for (bytes, text) in [
            (&b"/etc/hosts"[..], "/etc/hosts"),
            ("/home/jörg/ü".as_bytes(), "/home/jörg/ü"),
            (b"/tmp/a\nb\x1b[2J", "/tmp/a\\x0ab\\x1b[2J"),
            (b"/tmp/\xff\xfe\\", "/tmp/\\xff\\xfe\\x5c"),
            ("/a\u{202e}b".as_bytes(), "/a\\xe2\\x80\\xaeb"),
        ] {
            assert_eq!(escape(bytes), text);
            assert_eq!(unescape(text).unwrap(), bytes);
        }
        for bad in ["\\", "\\x", "\\x0", "\\xzz", "\\n", "\\x+1"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }

    #[test]
    fn paths_are_absolute_and_shortest() {
        for good in ["/a", "/etc/cron.d/x", "/...", "/a b", "/ä"] {
            assert!(FoundPath::new(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a", "a/b", "//a", "/a/", "/a//b", "/a/./b", "/a/../b", "/..", "/a\0b"] {
            let e = FoundPath::new(bad).unwrap_err();
            assert!(e.contains(';'), "{bad}: {e}");
        }
        assert!(FoundPath::new(vec![b'/'; 1].into_iter().chain(vec![b'a'; 4095]).collect::<Vec<u8>>()).is_err());
        let p = FoundPath::new("/etc/ssh/sshd_config").unwrap();
        assert_eq!(p.split(), (&b"etc/ssh"[..], &b"sshd_config"[..]));
        assert_eq!(FoundPath::new("/hosts").unwrap().split(), (&b""[..], &b"hosts"[..]));
    }

    #[test]
    fn sights_differ_in_what_counts() {
        let with = |f: fn(&mut Meta)| {
            let mut s = file("a");
            f(s.meta.as_mut().unwrap());
            s
        };
        let absent = Sight { what: What::Absent, meta: None };
        let link = Sight { what: What::Link { target: Escaped(b"x".to_vec()) }, meta: file("a").meta };
        for (now, want, edited) in [
            (file("a"), vec![], false),
            (file("b"), vec![Aspect::Content], true),
            (absent.clone(), vec![Aspect::Gone], true),
            (link, vec![Aspect::Type], true),
            (with(|m| m.mode = 0o600), vec![Aspect::Mode], true),
            (with(|m| m.gid = 7), vec![Aspect::Owner], true),
            (with(|m| drop(m.xattrs.insert(Escaped(b"user.x".to_vec()), "00".into()))), vec![Aspect::Attributes], true),
            (with(|m| m.flags = Some(0x10)), vec![Aspect::Flags], true),
            (with(|m| m.flags = None), vec![], false),
            (with(|m| m.mtime_ns = 9), vec![Aspect::Written], false),
            (with(|m| (m.atime_ns, m.ctime_ns, m.ino, m.nlink) = (7, 7, 7, 7)), vec![], false),
        ] {
            assert_eq!(file("a").differs(&now), want);
            assert_eq!(file("a").edited(&now), edited);
        }
        assert_eq!(absent.differs(&file("a")), [Aspect::Appeared]);
        assert!(absent.differs(&absent).is_empty());
    }

    #[test]
    fn a_record_reads_back_and_refuses_what_it_does_not_know() {
        let mut sight = file("a");
        sight.meta.as_mut().unwrap().xattrs.insert(Escaped(b"user.\xff".to_vec()), "0a".into());
        let path = FoundPath::new(&b"/home/\xff\n"[..]).unwrap();
        let record = Record { schema: 1, path, version: 1, seen_us: 1, reason: Reason::Adopt, sight };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""path":"/home/\\xff\\x0a""#), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        assert!(serde_json::from_str::<Record>(&text.replace("\"mode\"", "\"made\"")).is_err());
        assert!(serde_json::from_str::<Record>(&text.replace("/home", "home")).is_err());
    }

    proptest! {
        #[test]
        fn escaping_loses_nothing(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let text = escape(&bytes);
            prop_assert!(text.chars().all(|c| !c.is_control()));
            prop_assert_eq!(unescape(&text).unwrap(), bytes);
        }
    }
}
