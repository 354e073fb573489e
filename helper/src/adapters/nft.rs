//! The kernel's packet filter over netlink: read whole between two equal generations, changed in one batch that the
//! kernel refuses if somebody else was quicker. No program is run; whether `nft` is there does not matter.
//!
//! The bytes are made and read in `mesh-firewall`; this file only moves them.

use mesh_firewall::decode::{self, Generation, message};
use mesh_firewall::encode::{self, Batch};
use mesh_firewall::eval::Facts;
use mesh_firewall::ir::Ruleset;
use mesh_firewall::open::{Plan, Step};
use mesh_firewall::wire;
use mesh_model::failure::{Failure, Kind};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

/// How often a read that others' changes overtook is begun again.
const READS: u32 = 50;
/// The kernel dumps in pieces of at most 32 KiB; notifications may be larger.
const BUFFER: usize = 256 * 1024;
/// What a dump is waited for. The kernel answers at once; more than this is a fault.
const ANSWER: u16 = 5000;

/// A socket to nf_tables in this process's network namespace.
#[derive(Debug)]
pub struct Nft {
    fd: OwnedFd,
    seq: u32,
    buffer: Vec<u8>,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// The kernel took it.
    Taken,
    /// The generation had moved; nothing was done.
    Moved,
    /// Refused at one step; nothing was done.
    Refused {
        /// Which step of the plan, if the kernel said so.
        step: Option<usize>,
        /// Its error.
        errno: Errno,
    },
}

enum ReadError {
    /// Somebody changed the ruleset meanwhile.
    Overtaken,
    Other(anyhow::Error),
}

impl From<anyhow::Error> for ReadError {
    fn from(e: anyhow::Error) -> Self {
        ReadError::Other(e)
    }
}

fn io_failure(what: &str, e: Errno) -> anyhow::Error {
    let kind = if e == Errno::EPERM || e == Errno::EACCES { Kind::NoPermission } else { Kind::Failed };
    let failure = Failure::new(kind, format!("{what}: {}", e.desc()));
    match kind {
        Kind::NoPermission => failure.remedy("run it as root").into(),
        _ => failure.into(),
    }
}

fn not_understood(e: &dyn std::fmt::Display) -> anyhow::Error {
    Failure::new(Kind::NotUnderstood, format!("the kernel's ruleset is not understood: {e}"))
        .remedy("report this with the output of `nft --debug=netlink list ruleset`")
        .into()
}

impl Nft {
    /// Opens the socket.
    pub fn open() -> anyhow::Result<Nft> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)
            .map_err(|e| io_failure("opening a netfilter socket", e))?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(|e| io_failure("binding a netfilter socket", e))?;
        // Best effort: a small buffer only means more reads begun again.
        if setsockopt(&fd, sockopt::RcvBufForce, &(4 << 20)).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &(4 << 20)).ok();
        }
        Ok(Nft { fd, seq: 1, buffer: vec![0; BUFFER] })
    }

    fn next(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The next datagram; `None` if none comes within `wait` milliseconds.
    fn receive(&mut self, wait: u16) -> Result<Option<&[u8]>, Errno> {
        loop {
            let mut ready = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::from(wait)) {
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e),
                Ok(0) => return Ok(None),
                Ok(_) => {}
            }
            match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(e) => return Err(e),
                Ok(n) => return Ok(Some(&self.buffer[..n])),
            }
        }
    }

    /// Sends a request and gives each message of the answer to `take`.
    fn ask(
        &mut self,
        what: &str,
        request: &[u8],
        seq: u32,
        mut take: impl FnMut(&wire::Message<'_>) -> Result<(), decode::DecodeError>,
    ) -> Result<(), ReadError> {
        let fail = |e| ReadError::Other(io_failure(&format!("asking the kernel for {what}"), e));
        self.send(request).map_err(fail)?;
        // NLM_F_MULTI: the answer is a dump and ends with NLMSG_DONE.
        const MULTI: u16 = 2;
        const INTERRUPTED: u16 = 0x10;
        let mut overtaken = false;
        loop {
            let Some(datagram) = self.receive(ANSWER).map_err(fail)? else {
                return Err(ReadError::Other(
                    Failure::new(Kind::Failed, format!("the kernel did not answer when asked for {what}")).into(),
                ));
            };
            for m in wire::messages(datagram).map_err(|e| not_understood(&e))? {
                if m.seq != seq {
                    continue;
                }
                overtaken |= m.flags & INTERRUPTED != 0;
                let done = match m.kind {
                    // NLMSG_ERROR and NLMSG_DONE carry an errno.
                    2 | 3 => match Errno::from_raw(-wire::error_code(m.body).unwrap_or(0)) {
                        _ if wire::error_code(m.body).unwrap_or(0) == 0 => true,
                        // The set went away between its listing and this request.
                        Errno::ENOENT | Errno::EINTR => return Err(ReadError::Overtaken),
                        e => return Err(fail(e)),
                    },
                    _ => {
                        if !overtaken {
                            take(&m).map_err(|e| not_understood(&e))?;
                        }
                        m.flags & MULTI == 0
                    }
                };
                if done {
                    return if overtaken { Err(ReadError::Overtaken) } else { Ok(()) };
                }
            }
        }
    }

    /// The generation in force.
    pub fn generation(&mut self) -> anyhow::Result<u32> {
        let seq = self.next();
        let mut id = 0;
        let answer = self.ask("its generation", &encode::get_generation(seq), seq, |m| {
            if m.kind == message::NEWGEN {
                id = decode::generation(m)?.id;
            }
            Ok(())
        });
        match answer {
            Ok(()) => Ok(id),
            Err(ReadError::Overtaken) => Err(busy()),
            Err(ReadError::Other(e)) => Err(e),
        }
    }

    /// Reads everything, as it stood at one generation.
    pub fn read(&mut self) -> anyhow::Result<Ruleset> {
        for attempt in 0..READS {
            match self.read_once() {
                Ok(r) => return Ok(r),
                Err(ReadError::Overtaken) => std::thread::sleep(Duration::from_millis(u64::from(attempt.min(20)))),
                Err(ReadError::Other(e)) => return Err(e),
            }
        }
        Err(busy())
    }

    fn read_once(&mut self) -> Result<Ruleset, ReadError> {
        let generation = self.generation()?;
        let mut r = Ruleset { generation, ..Ruleset::default() };
        for (what, kind) in [
            ("tables", message::GETTABLE),
            ("chains", message::GETCHAIN),
            ("rules", message::GETRULE),
            ("sets", message::GETSET),
            ("objects", message::GETOBJ),
            ("flowtables", message::GETFLOWTABLE),
        ] {
            let seq = self.next();
            self.ask(what, &encode::dump(kind, seq), seq, |m| r.take(m))?;
        }
        let sets: Vec<_> = r.sets.iter().map(|s| (s.family, s.table.clone(), s.name.clone())).collect();
        for (family, table, name) in sets {
            let seq = self.next();
            self.ask("the elements of a set", &encode::dump_elements(family, &table, &name, seq), seq, |m| r.take(m))?;
        }
        if self.generation()? == generation { Ok(r) } else { Err(ReadError::Overtaken) }
    }

    /// Sends the steps of `plan` as one batch, bound to the generation that it was made from.
    pub fn send_plan(&mut self, plan: &Plan) -> anyhow::Result<Sent> {
        let begin = self.next();
        let mut batch = Batch::begin(plan.generation, begin);
        for step in &plan.steps {
            self.seq = match step {
                Step::Insert(i) => batch.insert((i.family, &i.table, &i.chain), i.before, &i.exprs, &i.mark),
                Step::Remove(r) => batch.remove((r.family, &r.table, &r.chain), r.handle),
            };
        }
        let first = begin + 1;
        self.next();
        // The kernel handles the whole batch before send returns, so every answer is queued by then.
        if let Err(e) = self.send(&batch.end()) {
            return Err(io_failure("sending a change to the kernel", e));
        }
        let mut acknowledged = 0;
        let mut refused = None;
        while let Some(datagram) =
            self.receive(0).map_err(|e| io_failure("reading the kernel's answer to a change", e))?
        {
            for m in wire::messages(datagram).map_err(|e| not_understood(&e))? {
                if m.kind != 2 {
                    continue;
                }
                match wire::error_code(m.body).unwrap_or(0) {
                    0 => acknowledged += 1,
                    code => {
                        let errno = Errno::from_raw(-code);
                        if errno == Errno::ERESTART {
                            return self.drained(Sent::Moved);
                        }
                        let step = m.seq.checked_sub(first).map(|n| n as usize).filter(|n| *n < plan.steps.len());
                        refused.get_or_insert(Sent::Refused { step, errno });
                    }
                }
            }
        }
        match refused {
            Some(r) => Ok(r),
            // An acknowledgement is not yet a commit, but a commit has one for each step; the caller reads back.
            None if acknowledged == plan.steps.len() => Ok(Sent::Taken),
            None => Err(Failure::new(
                Kind::Failed,
                format!("the kernel acknowledged {acknowledged} of {} changes", plan.steps.len()),
            )
            .into()),
        }
    }

    fn drained(&mut self, sent: Sent) -> anyhow::Result<Sent> {
        while self.receive(0).map_err(|e| io_failure("reading the kernel's answer to a change", e))?.is_some() {}
        Ok(sent)
    }
}

fn busy() -> anyhow::Error {
    Failure::new(Kind::Busy, "the ruleset changes faster than it can be read")
        .remedy("find what keeps changing it: nft monitor")
        .into()
}

/// Reads the ruleset of this network namespace.
pub fn ruleset() -> anyhow::Result<Ruleset> {
    Nft::open()?.read()
}

/// What the planner must know of this machine besides the ruleset. `etc` is the folder of its configuration.
pub fn facts(etc: &Path) -> anyhow::Result<Facts> {
    let mut facts = Facts::default();
    for i in &nix::net::if_::if_nameindex().map_err(|e| io_failure("listing the interfaces", e))? {
        facts.interfaces.insert(i.name().to_string_lossy().into_owned(), i.index());
    }
    // Reading these names creates nothing; iptables-legacy -L would register its tables.
    for (path, family) in
        [("/proc/thread-self/net/ip_tables_names", "ip"), ("/proc/thread-self/net/ip6_tables_names", "ip6")]
    {
        match fs::read_to_string(path) {
            Ok(names) => facts.legacy.extend(names.lines().map(|n| format!("{family} {n}"))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                let kind = if e.kind() == io::ErrorKind::PermissionDenied { Kind::NoPermission } else { Kind::Failed };
                return Err(Failure::new(kind, format!("reading {path}: {e}")).into());
            }
        }
    }
    match fs::read_to_string(etc.join("ufw/ufw.conf")) {
        Ok(text) => facts.ufw_enabled = text.lines().any(|l| l.trim().eq_ignore_ascii_case("enabled=yes")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(Failure::new(Kind::Failed, format!("reading ufw.conf: {e}")).into()),
    }
    Ok(facts)
}

/// What was read from a socket that is told of every change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The generations, in order, with who made them.
    pub generations: Vec<Generation>,
    /// Some were lost: the kernel had no room for them.
    pub lost: bool,
}

/// How often a drained socket is looked at again while it is quiet.
const LOOK: Duration = Duration::from_millis(20);

/// Reads all that is queued on `fd` (the activation socket of `ListenNetlink=netfilter 64`) until nothing has come for
/// `quiet`, but no longer than `most`: a reload is many commits, and is answered once.
///
/// It takes a bare descriptor because that is what systemd hands over, and so looks again instead of polling.
pub fn drain(fd: RawFd, quiet: Duration, most: Duration) -> anyhow::Result<Changes> {
    let mut changes = Changes::default();
    let mut buffer = vec![0; BUFFER];
    let begun = Instant::now();
    let mut last = begun;
    while last.elapsed() < quiet && begun.elapsed() < most {
        match recv(fd, &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => std::thread::sleep(LOOK),
            Err(Errno::EINTR) => {}
            Err(Errno::ENOBUFS) => {
                changes.lost = true;
                last = Instant::now();
            }
            Err(e) => return Err(io_failure("reading netfilter's changes", e)),
            Ok(n) => {
                last = Instant::now();
                for m in wire::messages(&buffer[..n]).unwrap_or_default() {
                    if m.kind == message::NEWGEN {
                        changes.generations.extend(decode::generation(&m).ok());
                    }
                }
            }
        }
    }
    Ok(changes)
}
