//! systemd's managers: PID 1 directly, a user's manager through `mesh user-manager` run as that user.
//!
//! Root speaks over the managers' private sockets (as systemctl does), so that a bus that is down or masked does not
//! matter; anybody else over the system bus. One request, one reply: the same values go over D-Bus here or as JSON
//! to the process that runs as the user.

mod private;

use anyhow::{Context as _, bail};
use mesh_model::closure::{Graph, Hold, Known};
use mesh_model::failure::{Failure, Kind};
use mesh_model::unit::{Scope, UnitName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use zbus::blocking::Connection;
use zbus::zvariant::{DynamicType, OwnedObjectPath, OwnedValue};

/// What can be asked of a manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// The states of these units.
    States(Vec<UnitName>),
    /// Every loaded unit of these types.
    Loaded(Vec<String>),
    /// What hangs on these units.
    Dependents(Vec<UnitName>),
    /// Stop, and wait until the job is done.
    Stop {
        /// The unit.
        unit: UnitName,
        /// Leave alone what hangs on it (job mode `ignore-dependencies`).
        alone: bool,
    },
    /// Start, and wait until the job is done.
    Start(UnitName),
    /// Queue a start and do not wait.
    Queue(UnitName),
    /// Forget that a unit failed, and how often it was started.
    ResetFailed(UnitName),
    /// Read all units again (runs the generators).
    Reload,
}

/// What a manager answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To `States` and `Loaded`.
    Units(Vec<UnitState>),
    /// To `Dependents`.
    Graph(Graph),
    /// To all others.
    Done,
    /// It did not work; in words.
    Failed(String),
}

/// One unit as its manager sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitState {
    /// Its name.
    pub unit: UnitName,
    /// `loaded`, `not-found`, `masked`, …
    pub load: String,
    /// `active`, `inactive`, `failed`, `activating`, …
    pub active: String,
    /// The type's own state.
    pub sub: String,
    /// `enabled`, `static`, …; empty when there is no file.
    pub file_state: String,
    /// The unit file.
    pub fragment: String,
    /// What it triggers (timers, paths, sockets).
    pub triggers: Vec<String>,
}

impl UnitState {
    /// Whether it runs or is about to.
    pub fn is_up(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading" | "deactivating" | "refreshing")
    }
}

const UNIT: &str = "org.freedesktop.systemd1.Unit";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";

/// How long a job may take; systemd's own default stop time-out is 90 s.
const JOB_TIME: Duration = Duration::from_secs(120);
/// How long a job of a user's manager may take, with what is around it.
const USER_JOB_TIME: Duration = Duration::from_secs(150);
/// How long a user's manager may take for anything else; a reload with many units takes a few seconds.
const USER_TIME: Duration = Duration::from_secs(25);

/// Users whose manager did not answer: it is not waited for again by the same verb.
static DEAF: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A connection to one manager.
#[derive(Debug)]
struct Manager {
    bus: Connection,
    /// `None` on a private socket, where there is no bus to route by name.
    destination: Option<&'static str>,
}

type Properties = HashMap<String, OwnedValue>;

fn text(p: &Properties, key: &str) -> String {
    p.get(key).and_then(|v| <&str>::try_from(v).ok()).unwrap_or("").to_string()
}

fn names(p: &Properties, key: &str) -> Vec<String> {
    p.get(key).and_then(|v| v.try_clone().ok()).and_then(|v| Vec::<String>::try_from(v).ok()).unwrap_or_default()
}

impl Manager {
    /// PID 1.
    fn system() -> anyhow::Result<Manager> {
        if rustix::process::geteuid().is_root() {
            return Manager::private("/run/systemd/private");
        }
        let bus = Connection::system().context("connecting to the system bus")?;
        Ok(Manager { bus, destination: Some("org.freedesktop.systemd1") })
    }

    /// The manager behind a private socket.
    fn private(socket: &str) -> anyhow::Result<Manager> {
        let bus = zbus::blocking::connection::Builder::unix_stream(private::connect(socket)?)
            .p2p()
            .build()
            .with_context(|| format!("speaking to the manager at {socket}"))?;
        Ok(Manager { bus, destination: None })
    }

    fn call<B: serde::Serialize + DynamicType>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> zbus::Result<zbus::Message> {
        self.bus.call_method(self.destination, path, Some(interface), method, body)
    }

    fn manager<B: serde::Serialize + DynamicType>(&self, method: &str, body: &B) -> zbus::Result<zbus::Message> {
        self.call(MANAGER_PATH, MANAGER, method, body)
    }

    fn properties(&self, unit: &UnitName) -> anyhow::Result<Properties> {
        let reply = self.manager("LoadUnit", &unit.as_str()).with_context(|| format!("loading {unit}"))?;
        let path: OwnedObjectPath = reply.body().deserialize()?;
        let reply = self
            .call(path.as_str(), "org.freedesktop.DBus.Properties", "GetAll", &UNIT)
            .with_context(|| format!("reading the properties of {unit}"))?;
        Ok(reply.body().deserialize::<Properties>()?)
    }

    fn state(&self, unit: &UnitName) -> anyhow::Result<UnitState> {
        let p = self.properties(unit)?;
        Ok(UnitState {
            unit: unit.clone(),
            load: text(&p, "LoadState"),
            active: text(&p, "ActiveState"),
            sub: text(&p, "SubState"),
            file_state: text(&p, "UnitFileState"),
            fragment: text(&p, "FragmentPath"),
            triggers: names(&p, "Triggers"),
        })
    }

    fn loaded(&self, kinds: &[String]) -> anyhow::Result<Vec<UnitState>> {
        /// ListUnitsByPatterns: name, description, load, active, sub, following, path, job id, job type, job path.
        type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);
        let patterns: Vec<String> = kinds.iter().map(|k| format!("*.{k}")).collect();
        let reply = self.manager("ListUnitsByPatterns", &(Vec::<String>::new(), patterns)).context("listing units")?;
        let rows: Vec<Row> = reply.body().deserialize()?;
        let mut out = Vec::new();
        for row in rows {
            // A name that systemd holds and we cannot write is no control unit of ours.
            let Ok(unit) = UnitName::new(row.0) else { continue };
            out.push(self.state(&unit)?);
        }
        Ok(out)
    }

    /// Breadth first over everything that hangs on `roots`.
    fn dependents(&self, roots: &[UnitName]) -> anyhow::Result<Graph> {
        let mut graph = Graph::new();
        let mut todo: Vec<UnitName> = roots.to_vec();
        let mut seen: BTreeSet<UnitName> = roots.iter().cloned().collect();
        while let Some(unit) = todo.pop() {
            let p = self.properties(&unit)?;
            let mut known = Known {
                active: matches!(
                    text(&p, "ActiveState").as_str(),
                    "active" | "activating" | "reloading" | "deactivating"
                ),
                enabled: matches!(text(&p, "UnitFileState").as_str(), "enabled" | "enabled-runtime"),
                dependents: Vec::new(),
            };
            for (key, hold) in [
                ("RequiredBy", Hold::Requires),
                ("RequisiteOf", Hold::Requisite),
                ("BoundBy", Hold::BindsTo),
                ("ConsistsOf", Hold::PartOf),
                ("PropagatesStopTo", Hold::PropagatesStopTo),
            ] {
                for name in names(&p, key) {
                    let Ok(dependent) = UnitName::new(name) else { continue };
                    if seen.insert(dependent.clone()) {
                        todo.push(dependent.clone());
                    }
                    known.dependents.push((hold, dependent));
                }
            }
            graph.insert(unit, known);
        }
        Ok(graph)
    }

    /// Waits until the job is gone. The manager drops a finished job's object (systemd src/core/dbus-job.c).
    fn finish(&self, job: &OwnedObjectPath, what: &str) -> anyhow::Result<()> {
        let end = Instant::now() + JOB_TIME;
        loop {
            let gone = self
                .call(
                    job.as_str(),
                    "org.freedesktop.DBus.Properties",
                    "Get",
                    &("org.freedesktop.systemd1.Job", "State"),
                )
                .is_err();
            if gone {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("{what} has not finished after {} s", JOB_TIME.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn job(&self, method: &str, unit: &UnitName, mode: &str) -> anyhow::Result<()> {
        let what = format!("{} {unit}", if method == "StopUnit" { "stopping" } else { "starting" });
        let reply = self.manager(method, &(unit.as_str(), mode)).with_context(|| what.clone())?;
        let job: OwnedObjectPath = reply.body().deserialize()?;
        self.finish(&job, &what)
    }

    fn answer(&self, request: &Request) -> anyhow::Result<Reply> {
        Ok(match request {
            Request::States(units) => {
                Reply::Units(units.iter().map(|u| self.state(u)).collect::<anyhow::Result<Vec<_>>>()?)
            }
            Request::Loaded(kinds) => Reply::Units(self.loaded(kinds)?),
            Request::Dependents(units) => Reply::Graph(self.dependents(units)?),
            Request::Stop { unit, alone } => {
                // A unit that is not loaded or not running needs no stop, and StopUnit on it would be an error.
                if self.state(unit)?.is_up() {
                    self.job("StopUnit", unit, if *alone { "ignore-dependencies" } else { "replace" })?;
                }
                Reply::Done
            }
            Request::Start(unit) => {
                self.job("StartUnit", unit, "replace")?;
                let state = self.state(unit)?;
                if state.active == "failed" {
                    bail!("{unit} failed to start; see journalctl -u {unit}");
                }
                Reply::Done
            }
            Request::Queue(unit) => {
                self.manager("StartUnit", &(unit.as_str(), "replace")).with_context(|| format!("queueing {unit}"))?;
                Reply::Done
            }
            Request::ResetFailed(unit) => {
                // Also of a unit that has not failed: this is what clears the count of its start limit.
                if self.state(unit)?.load == "loaded" {
                    match self.manager("ResetFailedUnit", &unit.as_str()) {
                        // Nothing refers to it, so that the manager forgot it between the two calls, its count too.
                        Err(zbus::Error::MethodError(name, ..)) if name == "org.freedesktop.systemd1.NoSuchUnit" => {}
                        answer => drop(answer?),
                    }
                }
                Reply::Done
            }
            Request::Reload => {
                // The reply comes when the reload is done; a private connection survives it.
                self.manager("Reload", &()).context("daemon-reload")?;
                Reply::Done
            }
        })
    }
}

/// Answers one request for the manager of the calling user; for the process that runs as that user.
pub fn answer_as_user(request: &Request) -> Reply {
    let uid = rustix::process::geteuid().as_raw();
    let socket = format!("/run/user/{uid}/systemd/private");
    let result = Manager::private(&socket).and_then(|m| m.answer(request));
    result.unwrap_or_else(|e| Reply::Failed(format!("{e:#}")))
}

/// A user of this machine, as far as managers need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Home directory.
    pub home: String,
}

/// Looks a user up by name or number (NSS through libc, as systemd does).
pub fn account(name: &str) -> anyhow::Result<Option<Account>> {
    let user = match name.parse::<u32>() {
        Ok(uid) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)),
        Err(_) => nix::unistd::User::from_name(name),
    }
    .with_context(|| format!("looking up user {name}"))?;
    Ok(user.map(|u| Account { uid: u.uid.as_raw(), gid: u.gid.as_raw(), home: u.dir.to_string_lossy().into_owned() }))
}

/// Whether a manager of that user runs now.
pub fn user_manager_runs(account: &Account) -> bool {
    Path::new(&format!("/run/user/{}/systemd/private", account.uid)).exists()
}

/// Asks the manager of `scope`. A user without a running manager has no units: states are `not running`.
pub fn ask(scope: &Scope, request: &Request) -> anyhow::Result<Reply> {
    match scope {
        Scope::System => Manager::system()?.answer(request),
        Scope::User(name) => {
            // A user who was removed has no manager either: what is undone for such a one is nothing.
            let account = account(name)?.filter(user_manager_runs);
            let Some(account) = account else {
                return Ok(match request {
                    Request::States(_) | Request::Loaded(_) => Reply::Units(Vec::new()),
                    Request::Dependents(_) => Reply::Graph(Graph::new()),
                    Request::Start(unit) | Request::Queue(unit) => {
                        bail!("user {name} has no running manager to start {unit} in")
                    }
                    Request::Stop { .. } | Request::ResetFailed(_) | Request::Reload => Reply::Done,
                });
            };
            ask_as_user(name, &account, request)
        }
    }
    .with_context(|| format!("asking the manager of {scope}"))
}

/// Runs `mesh user-manager` as the user, one request on its standard input; killed when it takes too long.
fn ask_as_user(name: &str, account: &Account, request: &Request) -> anyhow::Result<Reply> {
    let time = match request {
        Request::Start(_) | Request::Stop { .. } => USER_JOB_TIME,
        _ => USER_TIME,
    };
    let deaf = || {
        Failure::new(Kind::Failed, format!("the manager of user {name} did not answer within {} s", time.as_secs()))
            .remedy(format!("find why it hangs: systemctl status user@{}.service", account.uid))
    };
    if DEAF.lock().unwrap_or_else(PoisonError::into_inner).contains(&account.uid) {
        return Err(deaf().into());
    }
    let mut child = Command::new("/proc/self/exe")
        .arg0("mesh")
        .arg("user-manager")
        .env_clear()
        .env("XDG_RUNTIME_DIR", format!("/run/user/{}", account.uid))
        .uid(account.uid)
        .gid(account.gid)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running as user {name}"))?;
    let mut input = child.stdin.take().context("no standard input")?;
    input.write_all(&serde_json::to_vec(request)?)?;
    drop(input);
    let pid = rustix::process::Pid::from_child(&child);
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let watch = std::thread::spawn({
        let done = done.clone();
        move || {
            let end = Instant::now() + time;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                if Instant::now() > end {
                    return rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok();
                }
                std::thread::park_timeout(Duration::from_millis(500));
            }
            false
        }
    });
    let output = child.wait_with_output();
    done.store(true, std::sync::atomic::Ordering::Release);
    watch.thread().unpark();
    let killed = watch.join().unwrap_or(false);
    let output = output?;
    if killed {
        DEAF.lock().unwrap_or_else(PoisonError::into_inner).insert(account.uid);
        return Err(deaf().into());
    }
    if !output.status.success() {
        bail!("as user {name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    match serde_json::from_slice(&output.stdout)? {
        Reply::Failed(why) => bail!("{why}"),
        reply => Ok(reply),
    }
}

/// The states of `units`, in order; those of a user without a running manager are missing.
pub fn states(scope: &Scope, units: &[UnitName]) -> anyhow::Result<Vec<UnitState>> {
    match ask(scope, &Request::States(units.to_vec()))? {
        Reply::Units(u) => Ok(u),
        other => bail!("unexpected reply {other:?}"),
    }
}

/// Every loaded service, timer, path and socket.
pub fn loaded(scope: &Scope) -> anyhow::Result<Vec<UnitState>> {
    let kinds = ["service", "timer", "path", "socket"].map(String::from).to_vec();
    match ask(scope, &Request::Loaded(kinds))? {
        Reply::Units(u) => Ok(u),
        other => bail!("unexpected reply {other:?}"),
    }
}

/// What hangs on `units`.
pub fn dependents(scope: &Scope, units: &[UnitName]) -> anyhow::Result<Graph> {
    match ask(scope, &Request::Dependents(units.to_vec()))? {
        Reply::Graph(g) => Ok(g),
        other => bail!("unexpected reply {other:?}"),
    }
}

/// Whether this very process is the main process of a unit (`SYSTEMD_EXEC_PID`, systemd.exec(5)).
pub fn runs_as_unit() -> bool {
    std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string())
}

/// Asks for something that is done or fails.
pub fn act(scope: &Scope, request: &Request) -> anyhow::Result<()> {
    match ask(scope, request)? {
        Reply::Done => Ok(()),
        other => bail!("unexpected reply {other:?}"),
    }
}
