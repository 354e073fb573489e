//! The declared control as it is now, and what looks like control to somebody who has not declared it yet.

use crate::adapters::systemd::{self, UnitState};
use crate::plan::adopt::{EndProcess, FoundCron, FoundUnit, StopUnit};
use crate::probe::listeners::executable_of;
use anyhow::Context as _;
use mesh_model::closure::Graph;
use mesh_model::failure::{Failure, Kind};
use mesh_model::node::{ControlProcess, Predecessor};
use mesh_model::unit::{Scope, UnitName};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The control units by the manager that they belong to.
pub fn by_scope(predecessor: &Predecessor) -> BTreeMap<Scope, Vec<UnitName>> {
    let mut out: BTreeMap<Scope, Vec<UnitName>> = BTreeMap::new();
    for (scope, unit) in predecessor.control() {
        out.entry(scope).or_default().push(unit.clone());
    }
    out
}

/// Every declared control unit, in declared order.
pub fn control(predecessor: &Predecessor) -> anyhow::Result<Vec<FoundUnit>> {
    let mut out = Vec::new();
    for (scope, units) in by_scope(predecessor) {
        if let Scope::User(name) = &scope {
            if systemd::account(name)?.is_none() {
                return Err(no_user(name, &format!("[predecessor.user.{name}]")).into());
            }
        }
        let states = systemd::states(&scope, &units)?;
        for unit in units {
            let state = states.iter().find(|s| s.unit == unit);
            out.push(FoundUnit {
                scope: scope.clone(),
                missing: state.is_some_and(|s| s.load == "not-found"),
                up: state.is_some_and(UnitState::is_up),
                fragment: state.map(|s| s.fragment.clone()).unwrap_or_default(),
                unit,
            });
        }
    }
    Ok(out)
}

fn no_user(name: &str, place: &str) -> Failure {
    Failure::new(Kind::Config, format!("there is no user {name} on this machine"))
        .at(place)
        .remedy("name the user who runs the control, or take that declaration out")
}

/// What hangs on the control units, by scope.
pub fn graphs(predecessor: &Predecessor) -> anyhow::Result<BTreeMap<Scope, Graph>> {
    let mut out = BTreeMap::new();
    for (scope, units) in by_scope(predecessor) {
        let graph = systemd::dependents(&scope, &units)?;
        out.insert(scope, graph);
    }
    Ok(out)
}

/// The units among `units` that run, although they should not.
pub fn still_up(units: &[StopUnit]) -> anyhow::Result<Vec<StopUnit>> {
    let mut scopes: BTreeMap<&Scope, Vec<&StopUnit>> = BTreeMap::new();
    for u in units.iter().filter(|u| !u.stand_in) {
        scopes.entry(&u.scope).or_default().push(u);
    }
    let mut out = Vec::new();
    for (scope, units) in scopes {
        let names: Vec<UnitName> = units.iter().map(|u| u.unit.clone()).collect();
        let states = systemd::states(scope, &names)?;
        out.extend(units.into_iter().filter(|u| states.iter().any(|s| s.unit == u.unit && s.is_up())).cloned());
    }
    Ok(out)
}

/// Each declared cron file as it is.
///
/// # Errors
/// A file that exists and cannot be read.
pub fn cron(predecessor: &Predecessor, root: &Path) -> anyhow::Result<Vec<FoundCron>> {
    let mut out = Vec::new();
    for entry in &predecessor.cron {
        let path = root.join(entry.file.trim_start_matches('/'));
        let (content, regular, mtime_ns) = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => (None, true, 0),
            Err(e) => return Err(e).with_context(|| format!("looking at {}", entry.file)),
            Ok(meta) if !meta.is_file() => (Some(String::new()), false, 0),
            Ok(meta) => {
                let text = fs::read(&path).with_context(|| format!("reading {}", entry.file))?;
                let text = String::from_utf8(text).map_err(|e| {
                    Failure::refused(format!("not UTF-8, so its lines cannot be covered: {e}"))
                        .at(entry.file.as_str())
                        .remedy("mend the file, or take it out of [predecessor] cron")
                })?;
                let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
                (Some(text), meta.nlink() == 1, mtime_ns)
            }
        };
        out.push(FoundCron { entry: entry.clone(), content, regular, mtime_ns });
    }
    Ok(out)
}

/// Declared bare processes that run: by executable, and user where one is declared.
pub fn processes(declared: &[ControlProcess]) -> anyhow::Result<Vec<EndProcess>> {
    let mut out = Vec::new();
    if declared.is_empty() {
        return Ok(out);
    }
    let mut wanted = Vec::new();
    for d in declared {
        let uid = match &d.user {
            Some(name) => Some(systemd::account(name)?.ok_or_else(|| no_user(name, "[predecessor] processes"))?.uid),
            None => None,
        };
        wanted.push((d.executable.as_str(), uid));
    }
    for process in procfs::process::all_processes().context("reading /proc")? {
        // One that ends while it is looked at needs no ending.
        let Ok(process) = process else { continue };
        let Ok(uid) = process.uid() else { continue };
        let found = wanted.iter().filter(|(_, u)| u.is_none_or(|u| u == uid)).find(|(e, _)| is_running(&process, e));
        let Some((executable, _)) = found else { continue };
        let Ok(stat) = process.stat() else { continue };
        out.push(EndProcess {
            pid: process.pid(),
            start_ticks: stat.starttime,
            executable: executable.to_string(),
            uid,
        });
    }
    Ok(out)
}

/// Whether `process` is `executable` of this machine, itself or as a script. A container's own file of the same name is
/// another one, and what runs it is a service.
fn is_running(process: &procfs::process::Process, executable: &str) -> bool {
    let pid = process.pid();
    let here = fs::read_link("/proc/self/ns/pid").ok();
    if here.is_none() || fs::read_link(format!("/proc/{pid}/ns/pid")).ok() != here {
        return false;
    }
    let path = executable_of(process);
    // A replaced binary shows as "PATH (deleted)" (proc_pid_exe(5)); it is the same control.
    if path.strip_suffix(" (deleted)") == Some(executable) {
        return true;
    }
    let file = |path: &str| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if path == executable {
        return file(&format!("/proc/{pid}/exe")) == file(executable);
    }
    let Ok(line) = process.cmdline() else { return false };
    let Some((interpreter, argument)) = interpreter_of(executable) else { return false };
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let program = line.first().and_then(|p| p.rsplit('/').next());
    match (interpreter.as_str(), argument.as_deref()) {
        // It has become the program that it was asked for.
        ("/usr/bin/env" | "/bin/env", Some(asked)) => program == Some(asked) && line.get(1) == Some(&executable),
        // The kernel runs a script as INTERPRETER [ARGUMENT] PATH … (execve(2), interpreter scripts).
        (_, argument) => {
            let place = 1 + usize::from(argument.is_some());
            let runs_it = line.get(place) == Some(&executable) && (place == 1 || line.get(1).copied() == argument);
            runs_it && file(&format!("/proc/{pid}/exe")) == file(&interpreter)
        }
    }
}

/// The interpreter that the first line of a script names, with its argument.
fn interpreter_of(path: &str) -> Option<(String, Option<String>)> {
    // What the kernel reads of it (linux/binfmts.h, BINPRM_BUF_SIZE).
    let mut first = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut first).ok()?;
    let line = first.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let (interpreter, argument) = match line.trim().split_once([' ', '\t']) {
        Some((i, a)) => (i, Some(a.trim().to_owned())),
        None => (line.trim(), None),
    };
    Some((interpreter.to_owned(), argument))
}

/// Whether that very process still runs.
pub fn runs(process: &EndProcess) -> bool {
    procfs::process::Process::new(process.pid)
        .and_then(|p| p.stat())
        .is_ok_and(|s| s.starttime == process.start_ticks && s.state != 'Z')
}

/// A unit that may be the predecessor's control.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Candidate {
    /// Whose manager.
    pub scope: Scope,
    /// The unit.
    pub unit: UnitName,
    /// `active`, …
    pub state: String,
    /// Its file.
    pub fragment: String,
    /// Why it may be control, in words.
    pub why: String,
}

/// Users whose managers run although nobody logged in for them (`loginctl enable-linger`), by name.
pub fn lingering() -> Vec<String> {
    let mut out: Vec<String> = match fs::read_dir("/var/lib/systemd/linger") {
        Ok(dir) => dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect(),
        // No folder: nobody lingers.
        Err(_) => Vec::new(),
    };
    out.sort();
    out
}

/// What may be control: timers, paths and sockets that were made on this machine, with the services they trigger,
/// and the services that lingering users run. A guess for `mesh init`, for a person to check; nothing acts on it.
pub fn candidates() -> anyhow::Result<Vec<Candidate>> {
    let mut out = Vec::new();
    let mut scopes = vec![Scope::System];
    if rustix::process::geteuid().is_root() {
        scopes.extend(lingering().into_iter().map(Scope::User));
    }
    for scope in scopes {
        let units = systemd::loaded(&scope)?;
        let local = |s: &UnitState| match &scope {
            Scope::System => {
                ["/etc/systemd/system/", "/usr/local/lib/systemd/system/"].iter().any(|d| s.fragment.starts_with(d))
            }
            Scope::User(_) => {
                !s.fragment.starts_with("/usr/") && !s.fragment.starts_with("/run/") && !s.fragment.is_empty()
            }
        };
        for s in units.iter().filter(|s| local(s) && s.is_up() && s.unit.kind() != "service") {
            let why = format!("a {} made on this machine; it triggers {}", s.unit.kind(), s.triggers.join(", "));
            out.push(candidate(&scope, s, why));
            for t in units.iter().filter(|t| s.triggers.iter().any(|n| *n == *t.unit.as_str())) {
                out.push(candidate(&scope, t, format!("triggered by {}", s.unit)));
            }
        }
        if matches!(scope, Scope::User(_)) {
            for s in units.iter().filter(|s| local(s) && s.is_up() && s.unit.kind() == "service") {
                out.push(candidate(&scope, s, "a service of a lingering user, made by that user".into()));
            }
        }
    }
    out.sort();
    out.dedup_by(|a, b| a.scope == b.scope && a.unit == b.unit);
    Ok(out)
}

fn candidate(scope: &Scope, s: &UnitState, why: String) -> Candidate {
    Candidate { scope: scope.clone(), unit: s.unit.clone(), state: s.active.clone(), fragment: s.fragment.clone(), why }
}
