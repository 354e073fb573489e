//! Everything that is compared before and after: file tree, units, containers, processes, ruleset.
//!
//! A snapshot is a sorted map from what a thing is called to what it is, so that comparing two is comparing maps, and a
//! difference can be printed as one line that a person understands.

use crate::node::Node;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// One file with all that can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Absolute path.
    pub path: String,
    /// `file`, `dir`, `link`, `fifo`, `socket`, `char` or `block`.
    pub kind: String,
    /// Permission bits, octal.
    pub mode: String,
    /// `UID:GID`.
    pub owner: String,
    /// Time of modification, nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Link target, SHA-256 of the content, or device number.
    pub content: String,
    /// Extended attributes (ACLs and capabilities are such), `NAME=HEX`.
    pub xattrs: Vec<String>,
}

impl FileEntry {
    /// Reads one; `None` where it vanished meanwhile.
    pub fn read(path: &Path) -> Result<Option<FileEntry>> {
        let meta = match std::fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
        };
        let kind = meta.file_type();
        let (kind, content) = if kind.is_dir() {
            ("dir", String::new())
        } else if kind.is_symlink() {
            let target = std::fs::read_link(path).with_context(|| format!("reading link {}", path.display()))?;
            ("link", target.to_string_lossy().into_owned())
        } else if kind.is_file() {
            match std::fs::read(path) {
                Ok(bytes) => ("file", hex(&Sha256::digest(&bytes))),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
            }
        } else if kind.is_fifo() {
            ("fifo", String::new())
        } else if kind.is_socket() {
            ("socket", String::new())
        } else if kind.is_char_device() {
            ("char", meta.rdev().to_string())
        } else {
            ("block", meta.rdev().to_string())
        };
        Ok(Some(FileEntry {
            path: path.to_string_lossy().into_owned(),
            kind: kind.into(),
            mode: format!("{:04o}", meta.mode() & 0o7777),
            owner: format!("{}:{}", meta.uid(), meta.gid()),
            mtime_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
            content,
            xattrs: xattrs(path)?,
        }))
    }

    /// As one line, for comparing.
    fn line(&self) -> String {
        format!(
            "{} {} {} mtime={} {} {}",
            self.kind,
            self.mode,
            self.owner,
            self.mtime_ns,
            self.content,
            self.xattrs.join(" ")
        )
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        // Writing to a string cannot fail.
        if write!(s, "{b:02x}").is_err() {
            s.clear();
        }
        s
    })
}

fn xattrs(path: &Path) -> Result<Vec<String>> {
    let mut names = vec![0u8; 4096];
    let length = match rustix::fs::llistxattr(path, &mut names) {
        Ok(n) => n,
        Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("listing attributes of {}", path.display())),
    };
    let mut all = Vec::new();
    for name in names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut buffer = vec![0u8; 4096];
        let n = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut buffer)
            .with_context(|| format!("attribute {} of {}", String::from_utf8_lossy(name), path.display()))?;
        all.push(format!("{}={}", String::from_utf8_lossy(name), hex(&buffer[..n])));
    }
    all.sort();
    Ok(all)
}

/// What is left out of the file tree, and why. Everything here is written by what runs, or is the mesh's own memory.
pub const SKIPPED: &[(&str, &str)] = &[
    ("/proc", "kernel"),
    ("/sys", "kernel"),
    ("/dev", "kernel"),
    ("/run", "run-time state, seen through units and processes"),
    ("/tmp", "run-time state"),
    ("/var/tmp", "run-time state"),
    ("/var/lib/mesh", "the mesh's memory of an adoption outlives it"),
    ("/var/log", "the journal is written all the time"),
    ("/var/lib/systemd/timers", "time stamps of timers, systemd's"),
    ("/var/lib/systemd/random-seed", "systemd's"),
    ("/var/lib/containers/storage/db.sql", "podman's own bookkeeping, written by `podman ps`"),
    ("/var/lib/containers/storage/libpod", "podman's own bookkeeping, written by `podman ps`"),
    ("/var/lib/containers/storage/overlay", "mounted layers; volumes are compared"),
    ("/var/lib/containers/storage/storage.lock", "podman's own bookkeeping"),
    ("/var/lib/containers/storage/userns.lock", "podman's own bookkeeping"),
    ("/var/lib/fleet", "what the predecessor's control itself writes: counters and traces"),
    ("/home/fleet/.local/state", "what the predecessor's control itself writes: counters and traces"),
    ("/usr/local/lib/mesh-tests", "the test's own program"),
];

/// A snapshot: part → name → what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// `files`, `units`, `unit-files`, `containers`, `processes`, `ruleset`.
    pub parts: BTreeMap<&'static str, BTreeMap<String, String>>,
}

/// Which parts are taken, and with what left out of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// All but the file tree: under a second.
    Quick,
    /// The file tree too.
    Full,
}

impl Snapshot {
    /// Takes one of a running machine. `users` are those whose managers are asked.
    pub fn take(node: &mut dyn Node, users: &[&str], depth: Depth) -> Result<Snapshot> {
        let mut parts = BTreeMap::new();
        let mut units = units(&ask(node, &format!("systemctl show --all '*' -p {PROPERTIES}"))?, "system");
        let mut unit_files =
            unit_files(&ask(node, "systemctl list-unit-files --no-legend --no-pager --plain")?, "system");
        for user in users {
            let manager = format!("systemctl --user -M {user}@");
            let scope = format!("user:{user}");
            units.extend(self::units(&ask(node, &format!("{manager} show --all '*' -p {PROPERTIES}"))?, &scope));
            let files = ask(node, &format!("{manager} list-unit-files --no-legend --no-pager --plain"))?;
            unit_files.extend(self::unit_files(&files, &scope));
        }
        parts.insert("units", units);
        parts.insert("unit-files", unit_files);
        parts.insert("containers", containers(node)?);
        parts.insert("processes", processes(node)?);
        parts.insert("ruleset", ruleset(&ask(node, "nft -j list ruleset")?)?);
        if depth == Depth::Full {
            let skip: String = SKIPPED.iter().map(|(path, _)| format!(" --skip {path}")).collect();
            let listing = ask(node, &format!("/usr/local/lib/mesh-tests/mesh-world tree{skip}"))?;
            let mut files = BTreeMap::new();
            for line in listing.lines() {
                let entry: FileEntry = serde_json::from_str(line).with_context(|| format!("tree line {line:?}"))?;
                files.insert(entry.path.clone(), entry.line());
            }
            parts.insert("files", files);
        }
        Ok(Snapshot { parts })
    }

    /// One part; empty where it was not taken.
    pub fn part(&self, name: &str) -> BTreeMap<String, String> {
        self.parts.get(name).cloned().unwrap_or_default()
    }

    /// How `after` differs from `self`, one line a difference; `ignore` gets part and name and says what is expected.
    pub fn differences(&self, after: &Snapshot, ignore: impl Fn(&str, &str) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        let nothing = BTreeMap::new();
        for (part, before) in &self.parts {
            let now = after.parts.get(part).unwrap_or(&nothing);
            let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            for name in names.into_iter().filter(|n| !ignore(part, n)) {
                match (before.get(name), now.get(name)) {
                    (Some(b), Some(n)) if b != n => lines.push(format!("{part}: {name}\n    was {b}\n    is  {n}")),
                    (Some(b), None) => lines.push(format!("{part}: {name} is gone\n    was {b}")),
                    (None, Some(n)) => lines.push(format!("{part}: {name} is new\n    is  {n}")),
                    _ => {}
                }
            }
        }
        lines
    }
}

fn ask(node: &mut dyn Node, command: &str) -> Result<String> {
    let output = node.try_run(command, Duration::from_secs(120))?;
    if output.exit != 0 {
        bail!("`{command}` exited {}: {}", output.exit, output.err.trim());
    }
    Ok(output.out)
}

const PROPERTIES: &str = "Id,LoadState,ActiveState,SubState,UnitFileState,MainPID,ExecMainStartTimestampMonotonic,\
                          InvocationID,FragmentPath,DropInPaths,NRestarts,Result";

/// The blocks of `systemctl show`, one a unit.
fn units(text: &str, scope: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for block in text.split("\n\n") {
        let Some(id) = block.lines().find_map(|l| l.strip_prefix("Id=")) else { continue };
        let rest: Vec<&str> = block.lines().filter(|l| !l.starts_with("Id=")).collect();
        all.insert(format!("{scope} {id}"), rest.join(" "));
    }
    all
}

fn unit_files(text: &str, scope: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            Some((format!("{scope} {}", words.next()?), words.collect::<Vec<_>>().join(" ")))
        })
        .collect()
}

fn containers(node: &mut dyn Node) -> Result<BTreeMap<String, String>> {
    let format = "{{.Name}} {{.Id}} pid={{.State.Pid}} conmon={{.State.ConmonPid}} started={{.State.StartedAt}} \
                  restarts={{.RestartCount}} {{.State.Status}}";
    let listed = ask(
        node,
        &format!(
            "command -v podman >/dev/null || exit 0; ids=$(podman ps -aq); [ -z \"$ids\" ] || \
             podman inspect --type container --format '{format}' $ids"
        ),
    )?;
    Ok(listed.lines().filter_map(|l| l.split_once(' ')).map(|(n, r)| (n.to_string(), r.to_string())).collect())
}

/// `PID COMMAND` → start time in ticks. What comes and goes by itself (the test's own shell) is left to the comparer.
fn processes(node: &mut dyn Node) -> Result<BTreeMap<String, String>> {
    let listed = ask(
        node,
        "for p in /proc/[0-9]*; do s=$(cat $p/stat 2>/dev/null) || continue; [ -r $p/exe ] && readlink $p/exe \
         >/dev/null 2>&1 || continue; c=${s#*(}; c=${c%)*}; r=${s##*) }; set -- $r; \
         echo \"${p#/proc/} $c|start=${20} cgroup=$(cut -d: -f3 $p/cgroup | tail -1)\"; done 2>/dev/null; true",
    )?;
    Ok(listed
        .lines()
        .filter_map(|l| l.split_once('|'))
        .filter(|(_, rest)| !rest.contains("vmtest") && !rest.contains("mesh-test"))
        .map(|(n, r)| (n.to_string(), r.to_string()))
        .collect())
}

/// The ruleset as a map, each rule under its chain and its place in it: counters, handles and expiry left out.
pub fn ruleset(json: &str) -> Result<BTreeMap<String, String>> {
    let document: Value = serde_json::from_str(json).context("reading the ruleset")?;
    let mut all = BTreeMap::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for item in document["nftables"].as_array().context("no `nftables` in the ruleset")? {
        let Some((kind, body)) = item.as_object().and_then(|o| o.iter().next()) else { continue };
        if kind == "metainfo" {
            continue;
        }
        let mut body = body.clone();
        forget(&mut body);
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_string();
        let mut name = format!("{kind} {} {} {} {}", text("family"), text("table"), text("chain"), text("name"));
        if kind == "rule" {
            let place = places.entry(name.clone()).or_default();
            name = format!("{name}#{place:03}");
            *place += 1;
        }
        all.insert(name, body.to_string());
    }
    Ok(all)
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in ["handle", "packets", "bytes", "expires"] {
                map.remove(key);
            }
            map.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ruleset_is_compared_without_what_moves_by_itself() -> Result<()> {
        let a = r#"{"nftables":[{"metainfo":{"version":"1"}},{"rule":{"family":"inet","table":"filter","chain":"input",
            "handle":4,"expr":[{"counter":{"packets":1,"bytes":2}},{"accept":null}]}}]}"#;
        let b = a.replace("\"handle\":4", "\"handle\":9").replace("\"packets\":1", "\"packets\":77");
        assert_eq!(ruleset(a)?, ruleset(&b)?);
        let c = a.replace("accept", "drop");
        assert_ne!(ruleset(a)?, ruleset(&c)?);
        Ok(())
    }

    #[test]
    fn every_kind_of_difference_is_one_entry() {
        let part = |pairs: &[(&str, &str)]| Snapshot {
            parts: [("files", pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect())].into(),
        };
        let before = part(&[("/a", "1"), ("/b", "1"), ("/c", "1")]);
        let after = part(&[("/a", "1"), ("/b", "2"), ("/d", "1")]);
        assert_eq!(before.differences(&after, |_, _| false).len(), 3);
        assert_eq!(before.differences(&after, |_, n| n == "/b").len(), 2);
    }
}
