//! Who listens: each socket with its process, user and unit.

use crate::adapters::sockets::{self, Listening};
use anyhow::Context as _;
use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Who holds a listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listener {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    /// Bound address.
    pub address: IpAddr,
    /// Bound port.
    pub port: u16,
    /// IPv6 only (an IPv6 wildcard without it takes IPv4 as well).
    pub v6_only: bool,
    /// User that made the socket.
    pub uid: u32,
    /// The processes that have it open; none for a kernel socket, or when they may not be read.
    pub processes: Vec<Process>,
    /// The unit whose cgroup the socket was made in.
    pub unit: Option<String>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Executable, or its short name where the path may not be read.
    pub executable: String,
}

impl Listener {
    /// In words: `5000/tcp on 0.0.0.0 is held by registry (pid 812), unit fleet.service`.
    pub fn words(&self) -> String {
        let who = match self.processes.first() {
            Some(p) => format!("{} (pid {})", p.executable, p.pid),
            None => "the kernel or a process that may not be read".to_string(),
        };
        let unit = self.unit.as_ref().map(|u| format!(", unit {u}")).unwrap_or_default();
        format!("{}/{} on {} is held by {who}{unit}", self.protocol, self.port, self.address)
    }
}

/// Every listening socket of this network namespace, sorted by protocol, port and address.
pub fn probe() -> anyhow::Result<Vec<Listener>> {
    let sockets = sockets::listening()?;
    let owners = socket_owners().context("reading /proc")?;
    let cgroups = cgroup_units();
    let mut out: Vec<Listener> = sockets.iter().map(|s| listener(s, &owners, &cgroups)).collect();
    out.sort_by(|a, b| (a.protocol, a.port, a.address).cmp(&(b.protocol, b.port, b.address)));
    Ok(out)
}

fn listener(s: &Listening, owners: &HashMap<u64, Vec<Process>>, cgroups: &HashMap<u64, String>) -> Listener {
    let processes = owners.get(&u64::from(s.inode)).cloned().unwrap_or_default();
    // The cgroup that the socket was made in names the unit even where the process has moved on; PID 1 holds the
    // sockets of units that wait for their first connection, and there the cgroup is the socket unit's.
    let unit = s
        .cgroup
        .and_then(|id| cgroups.get(&id).cloned())
        .or_else(|| processes.first().and_then(|p| unit_of_process(p.pid)));
    Listener {
        protocol: s.protocol.word(),
        address: s.address,
        port: s.port,
        v6_only: s.v6_only,
        uid: s.uid,
        processes,
        unit,
    }
}

/// Socket inode → processes that have it open. Processes that end meanwhile are left out.
fn socket_owners() -> anyhow::Result<HashMap<u64, Vec<Process>>> {
    let mut out: HashMap<u64, Vec<Process>> = HashMap::new();
    for process in procfs::process::all_processes()? {
        let Ok(process) = process else { continue };
        let Ok(fds) = process.fd() else { continue };
        let mut executable = None;
        for fd in fds {
            let Ok(fd) = fd else { continue };
            let procfs::process::FDTarget::Socket(inode) = fd.target else { continue };
            let name = executable.get_or_insert_with(|| executable_of(&process));
            let entry = out.entry(inode).or_default();
            if entry.last().is_none_or(|p: &Process| p.pid != process.pid()) {
                entry.push(Process { pid: process.pid(), executable: name.clone() });
            }
        }
    }
    Ok(out)
}

/// The executable's path, or the short name in brackets where the path may not be read (kernel threads).
pub fn executable_of(process: &procfs::process::Process) -> String {
    match process.exe() {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => process.stat().map(|s| format!("[{}]", s.comm)).unwrap_or_else(|_| "?".into()),
    }
}

/// The unit in the last component of a cgroup path that is a service, socket or scope.
pub fn unit_of_cgroup(path: &str) -> Option<String> {
    path.rsplit('/')
        .find(|c| c.ends_with(".service") || c.ends_with(".scope") || c.ends_with(".socket"))
        .map(str::to_string)
}

fn unit_of_process(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|l| l.strip_prefix("0::")).and_then(unit_of_cgroup)
}

/// Inode of each cgroup of the unified hierarchy → its unit.
fn cgroup_units() -> HashMap<u64, String> {
    let mut out = HashMap::new();
    let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let Some(root) = root.into_iter().find(|r| r.join("cgroup.procs").exists()) else { return out };
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        // A cgroup that ends while it is read has no sockets left to name.
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if !meta.is_dir() {
                continue;
            }
            let path = entry.path();
            if let Some(unit) = unit_of_cgroup(&path.to_string_lossy()) {
                out.insert(meta.ino(), unit);
            }
            todo.push(path);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_innermost_service_scope_or_socket() {
        for (path, want) in [
            ("/system.slice/nginx.service", Some("nginx.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/fleet-sync.service", Some("fleet-sync.service")),
            ("/system.slice/fleet.service/payload", Some("fleet.service")),
            ("/machine.slice/libpod-abc.scope/container", Some("libpod-abc.scope")),
            ("/user.slice", None),
            ("/", None),
        ] {
            assert_eq!(unit_of_cgroup(path).as_deref(), want, "{path}");
        }
    }

    #[test]
    fn this_test_holds_its_socket() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let all = probe().unwrap();
        let mine = all.iter().find(|l| l.protocol == "tcp" && l.port == port).unwrap();
        assert!(mine.processes.iter().any(|p| p.pid == std::process::id() as i32), "{mine:?}");
    }
}
