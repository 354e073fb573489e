//! A client outside the machine that connects to every served port, again and again, and counts what fails.
//!
//! One thread in a network namespace of its own, non-blocking sockets, one `poll`: a few hundred connections a second
//! at a few per cent of a core. Beside the short connections it holds long ones with numbered lines, and knocks at
//! ports that must stay shut. What the bed itself loses is told by a control run of the same length.

mod attempt;
mod stream;

use crate::netns::Netns;
use crate::world::files;
use crate::world::plan::{self, Size, Speaks, Transport};
use anyhow::{Context, Result, anyhow};
use attempt::Attempt;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stream::Stream;

/// Connections begun in a second, over all targets.
const RATE: u32 = 250;
/// An answer later than this lost a packet on its way: the first retransmission of a SYN is after one second.
const LATE: Duration = Duration::from_millis(900);
/// How many long connections are held.
const STREAMS: usize = 24;

/// What a target must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Answer as who it is.
    Served(Speaks),
    /// Not answer, or refuse.
    Shut,
}

/// One thing to knock at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name in the report, unique.
    pub label: String,
    /// Who must answer.
    pub name: String,
    /// Where.
    pub address: SocketAddr,
    /// Over what.
    pub transport: Transport,
    /// From which of the prober's addresses, where it matters.
    pub source: Option<IpAddr>,
    /// What must happen.
    pub expect: Expect,
}

/// Whether the mesh has opened what `node.toml` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// As the machine was found.
    No,
    /// Adopted.
    Yes,
}

/// Every served port of the world over IPv4, those of the machine itself over IPv6 too, and what must stay shut.
pub fn targets(size: Size, opened: Opened) -> Result<Vec<Target>> {
    let v4: IpAddr = files::INSIDE.parse()?;
    let v6: IpAddr = files::INSIDE6.parse()?;
    let banned: IpAddr = files::BANNED_OUTSIDE.parse()?;
    let mut all = Vec::new();
    for s in plan::served(size) {
        let mut add = |ip: IpAddr, family: &str, source, expect| {
            all.push(Target {
                label: format!("{} {}/{}{family}", s.name, s.transport.word(), s.port),
                name: s.name.clone(),
                address: SocketAddr::new(ip, s.port),
                transport: s.transport,
                source,
                expect,
            });
        };
        add(v4, "", None, Expect::Served(s.speaks));
        if !s.forwarded && s.transport == Transport::Tcp && !s.name.starts_with("fleet-") {
            add(v6, " v6", None, Expect::Served(s.speaks));
        }
        if s.name == "edge-tls" && s.transport == Transport::Tcp {
            add(v4, " from a banned address", Some(banned), Expect::Shut);
        }
    }
    let mut knock = |name: &str, port: u16, from: &str, source: Option<IpAddr>, open: bool| {
        all.push(Target {
            label: format!("{name} tcp/{port}{from}"),
            name: name.into(),
            address: SocketAddr::new(v4, port),
            transport: Transport::Tcp,
            source,
            expect: if open { Expect::Served(Speaks::Banner) } else { Expect::Shut },
        });
    };
    for port in plan::SHUT {
        knock("nobody", port, "", None, false);
    }
    let stranger: IpAddr = files::STRANGER_OUTSIDE.parse()?;
    let opened = opened == Opened::Yes;
    knock("edge-tls", plan::OPENED_ADMIN, "", None, opened);
    knock("edge-tls", plan::OPENED_ADMIN, " from a stranger", Some(stranger), false);
    knock("edge-tls", plan::OPENED_ANY, "", None, opened);
    knock("edge-tls", plan::OPENED_ANY, " from a stranger", Some(stranger), opened);
    knock("edge-tls", plan::OPENED_ANY, " from a banned address", Some(banned), false);
    Ok(all)
}

/// What was counted at one target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Finished attempts.
    pub attempts: u64,
    /// Those that did not end as they must.
    pub failures: u64,
    /// Those that ended well but lost a packet on the way.
    pub late: u64,
    /// How failures ended, with how often.
    pub reasons: BTreeMap<String, u64>,
    /// Which processes answered: more than one means that it was started again.
    pub instances: BTreeSet<String>,
}

/// What was counted on the long connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamCount {
    /// Numbered lines that came back in order.
    pub lines: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Lines that came back out of order, twice or not as sent.
    pub wrong: u64,
    /// The longest time that a line took to come back.
    pub longest: Duration,
}

/// What was counted since the start or the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How long.
    pub length: Duration,
    /// By label.
    pub targets: BTreeMap<String, Count>,
    /// Over all long connections.
    pub streams: StreamCount,
}

impl Report {
    /// Attempts over all targets.
    pub fn attempts(&self) -> u64 {
        self.targets.values().map(|c| c.attempts).sum()
    }

    /// Failures over all targets.
    pub fn failures(&self) -> u64 {
        self.targets.values().map(|c| c.failures).sum()
    }

    /// Answers that lost a packet on the way, over all targets.
    pub fn late(&self) -> u64 {
        self.targets.values().map(|c| c.late).sum()
    }

    /// Targets where more than one process answered.
    pub fn restarted(&self) -> Vec<&str> {
        self.targets.iter().filter(|(_, c)| c.instances.len() > 1).map(|(label, _)| label.as_str()).collect()
    }

    /// Each target with failures, in words.
    pub fn failed(&self) -> Vec<String> {
        self.targets
            .iter()
            .filter(|(_, c)| c.failures > 0)
            .map(|(label, c)| format!("{label}: {} of {} failed {:?}", c.failures, c.attempts, c.reasons))
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamCount { lines, broken, wrong, longest } = &self.streams;
        write!(
            f,
            "{:.0} s: {} connections to {} targets, {} failed, {} late, {} started again; \
             {lines} lines on long connections, {broken} broken, {wrong} wrong, longest {:.0} ms",
            self.length.as_secs_f64(),
            self.attempts(),
            self.targets.len(),
            self.failures(),
            self.late(),
            self.restarted().len(),
            longest.as_secs_f64() * 1000.0
        )
    }
}

/// A running prober.
#[derive(Debug)]
pub struct Prober {
    ask: Sender<Sender<Report>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Prober {
    /// Starts knocking from `outside`.
    pub fn start(outside: &Netns, targets: Vec<Target>) -> Result<Prober> {
        let namespace = format!("/run/netns/{}", outside.name());
        let namespace = File::open(&namespace).with_context(|| format!("opening {namespace}"))?;
        let (ask, asked) = channel();
        let thread = std::thread::Builder::new().name("prober".into()).spawn(move || -> Result<()> {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))
                .context("entering the prober's namespace")?;
            run(&targets, &asked)
        })?;
        Ok(Prober { ask, thread: Some(thread) })
    }

    /// What was counted since the start or the last call; counting begins anew.
    pub fn report(&mut self) -> Result<Report> {
        let (reply, answer) = channel();
        let answered = self.ask.send(reply).ok().and_then(|()| answer.recv_timeout(Duration::from_secs(20)).ok());
        answered.map_or_else(|| Err(self.ended()), Ok)
    }

    fn ended(&mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(e))) => e.context("the prober ended"),
            _ => anyhow!("the prober ended"),
        }
    }
}

/// Runs until nobody can ask any more.
fn run(targets: &[Target], asked: &Receiver<Sender<Report>>) -> Result<()> {
    let mut report = Report::default();
    let mut since = Instant::now();
    let mut attempts: Vec<Attempt> = Vec::new();
    let served: Vec<&Target> = targets
        .iter()
        .filter(|t| t.transport == Transport::Tcp && t.expect == Expect::Served(Speaks::Banner))
        .collect();
    let apart = (served.len() / STREAMS).max(1);
    let mut streams: Vec<Stream> =
        served.iter().step_by(apart).take(STREAMS).map(|t| Stream::new((*t).clone())).collect();
    let step = Duration::from_secs(1) / RATE;
    let (mut next, mut due) = (0usize, Instant::now());
    loop {
        match asked.recv_timeout(Duration::ZERO) {
            Ok(reply) => {
                report.length = since.elapsed();
                // Who asked may have gone meanwhile; then nobody wants the numbers.
                reply.send(std::mem::take(&mut report)).ok();
                since = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let now = Instant::now();
        while due <= now && !targets.is_empty() {
            let target = &targets[next % targets.len()];
            attempts.push(Attempt::begin(next % targets.len(), target, now));
            next += 1;
            // After a stall the lost time is not made up for: the rate stays what it is.
            due = (due + step).max(now.checked_sub(step * 20).unwrap_or(now));
        }
        for stream in &mut streams {
            stream.turn(now, &mut report.streams);
        }
        wait(&attempts, &streams, due)?;
        let now = Instant::now();
        attempts.retain_mut(|a| {
            let target = &targets[a.target];
            let Some(outcome) = a.turn(target, now) else { return true };
            let count = report.targets.entry(target.label.clone()).or_default();
            count.attempts += 1;
            match outcome {
                Ok(instance) => {
                    count.late += u64::from(target.expect != Expect::Shut && a.age(now) > LATE);
                    count.instances.extend(instance);
                }
                Err(reason) => {
                    count.failures += 1;
                    *count.reasons.entry(reason).or_default() += 1;
                }
            }
            false
        });
    }
}

fn wait(attempts: &[Attempt], streams: &[Stream], due: Instant) -> Result<()> {
    use nix::poll::{PollFd, PollTimeout, poll};
    let mut fds: Vec<PollFd<'_>> = attempts.iter().filter_map(Attempt::poll).collect();
    fds.extend(streams.iter().filter_map(Stream::poll));
    let timeout = due.saturating_duration_since(Instant::now()).as_millis().clamp(1, 20);
    match poll(&mut fds, PollTimeout::from(u8::try_from(timeout)?)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(e) => Err(e).context("polling"),
    }
}
