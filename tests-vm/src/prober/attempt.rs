//! One short connection, from its first packet to its verdict.

use super::{Expect, Target};
use crate::world::plan::{Speaks, Transport};
use nix::poll::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long an answer may take.
const SERVED_WITHIN: Duration = Duration::from_secs(4);
/// How long a shut port must stay silent.
const SHUT_FOR: Duration = Duration::from_millis(1500);
/// What is sent over UDP and must come back.
const PAYLOAD: &[u8] = b"knock\n";

/// A finished attempt: which instance answered (if one could), or why it failed.
pub(super) type Outcome = Result<Option<String>, String>;

/// A connection under way.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Index of its target.
    pub(super) target: usize,
    began: Instant,
    state: State,
    got: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Failed(String),
    Connecting(OwnedFd),
    Reading(OwnedFd),
}

/// A socket on its way to `address`, never waited for.
pub(super) fn towards(
    address: SocketAddr,
    transport: Transport,
    source: Option<std::net::IpAddr>,
) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let fd = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    if let Some(source) = source {
        rustix::net::bind(&fd, &SocketAddr::new(source, 0))?;
    }
    if transport == Transport::Tcp {
        // Closed with a reset: hundreds of connections a second must not use up the ports in TIME_WAIT.
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        sockopt::set_tcp_nodelay(&fd, true)?;
    }
    match connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(e) => Err(e),
    }
}

impl Attempt {
    /// Sends the first packet.
    pub(super) fn begin(index: usize, target: &Target, now: Instant) -> Attempt {
        let begun = towards(target.address, target.transport, target.source).and_then(|fd| {
            if target.transport == Transport::Udp {
                rustix::net::send(&fd, PAYLOAD, rustix::net::SendFlags::NOSIGNAL)?;
                return Ok(State::Reading(fd));
            }
            Ok(State::Connecting(fd))
        });
        let state = begun.unwrap_or_else(|e| State::Failed(format!("connect: {e}")));
        Attempt { target: index, began: now, state, got: Vec::new() }
    }

    /// What to wait for.
    pub(super) fn poll(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Failed(_) => None,
            State::Connecting(fd) => Some(PollFd::new(fd.as_fd(), PollFlags::POLLOUT)),
            State::Reading(fd) => Some(PollFd::new(fd.as_fd(), PollFlags::POLLIN)),
        }
    }

    /// How long it has been under way.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now - self.began
    }

    /// Goes as far as it can without waiting; `Some` when it is finished.
    pub(super) fn turn(&mut self, target: &Target, now: Instant) -> Option<Outcome> {
        let result = self.progress(target);
        let shut = target.expect == Expect::Shut;
        let limit = if shut { SHUT_FOR } else { SERVED_WITHIN };
        match result {
            Ok(Some(instance)) if shut => Some(Err(format!("open: {}", instance.unwrap_or_default()))),
            Ok(Some(instance)) => Some(Ok(instance)),
            Err(_) if shut => Some(Ok(None)),
            Err(reason) => Some(Err(reason)),
            Ok(None) if self.age(now) > limit && shut => Some(Ok(None)),
            Ok(None) if self.age(now) > limit => {
                let at = if matches!(self.state, State::Connecting(_)) { "connecting" } else { "reading" };
                Some(Err(format!("no answer ({at})")))
            }
            Ok(None) => None,
        }
    }

    fn progress(&mut self, target: &Target) -> Result<Option<Option<String>>, String> {
        let fd = match std::mem::replace(&mut self.state, State::Failed("in between".into())) {
            State::Failed(reason) => return Err(reason),
            State::Connecting(fd) => {
                if let Err(e) = sockopt::socket_error(&fd).map_err(|e| e.to_string())? {
                    return Err(format!("connect: {e}"));
                }
                if rustix::net::getpeername(&fd).is_err() {
                    self.state = State::Connecting(fd);
                    return Ok(None);
                }
                if target.expect == Expect::Shut {
                    return Ok(Some(Some("connected".into())));
                }
                if target.expect == Expect::Served(Speaks::Http) {
                    let request = b"GET / HTTP/1.0\r\n\r\n";
                    rustix::net::send(&fd, request, rustix::net::SendFlags::NOSIGNAL)
                        .map_err(|e| format!("send: {e}"))?;
                }
                fd
            }
            State::Reading(fd) => fd,
        };
        let mut buffer = [0u8; 512];
        match rustix::net::recv(&fd, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) if target.transport == Transport::Tcp => {
                return judge(target, &self.got).map(Some);
            }
            Ok((n, _)) => self.got.extend_from_slice(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => {
                self.state = State::Reading(fd);
                return Ok(None);
            }
            Err(e) => return Err(format!("read: {e}")),
        }
        if self.got.contains(&b'\n') {
            return judge(target, &self.got).map(Some);
        }
        self.state = State::Reading(fd);
        Ok(None)
    }
}

/// Whether the first line is that of whom it must be.
fn judge(target: &Target, got: &[u8]) -> Result<Option<String>, String> {
    let text = String::from_utf8_lossy(got);
    let line = text.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    let (first, second) = (words.next().unwrap_or_default(), words.next());
    match target.expect {
        Expect::Served(Speaks::Banner) if first == target.name => Ok(second.map(String::from)),
        Expect::Served(Speaks::Http) if first.starts_with("HTTP/1.") && second == Some("200") => Ok(None),
        Expect::Served(Speaks::Ssh) if first.starts_with("SSH-2.0") => Ok(None),
        Expect::Served(_) | Expect::Shut => Err(format!("answered {line:?}")),
    }
}
