//! One long connection with numbered lines: what a service's client holds for days.

use super::attempt::towards;
use super::{StreamCount, Target};
use nix::poll::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often a line is sent.
const EVERY: Duration = Duration::from_millis(50);
/// How long after a break, or a failed try, the next connection is tried.
const AGAIN: Duration = Duration::from_millis(500);

/// A long connection, made again when it breaks.
#[derive(Debug)]
pub(super) struct Stream {
    target: Target,
    link: Option<Link>,
    next_try: Instant,
    /// Whether it ever was up: only then is a failure a break.
    was_up: bool,
}

#[derive(Debug)]
struct Link {
    fd: OwnedFd,
    up: bool,
    greeted: bool,
    sent: u64,
    back: u64,
    next_send: Instant,
    waiting_since: Instant,
    got: Vec<u8>,
}

impl Stream {
    /// One that is still to be connected.
    pub(super) fn new(target: Target) -> Stream {
        Stream { target, link: None, next_try: Instant::now(), was_up: false }
    }

    /// What to wait for.
    pub(super) fn poll(&self) -> Option<PollFd<'_>> {
        let link = self.link.as_ref()?;
        let flags = if link.up { PollFlags::POLLIN } else { PollFlags::POLLOUT };
        Some(PollFd::new(link.fd.as_fd(), flags))
    }

    /// Sends what is due and takes what came.
    pub(super) fn turn(&mut self, now: Instant, count: &mut StreamCount) {
        let Some(link) = &mut self.link else {
            if now >= self.next_try {
                self.next_try = now + AGAIN;
                let fd = towards(self.target.address, self.target.transport, self.target.source).ok();
                self.link = fd.map(|fd| Link::new(fd, now));
            }
            return;
        };
        match link.turn(now, count) {
            Ok(()) => self.was_up |= link.greeted,
            Err(_) => {
                // One break, however many tries it takes to come back.
                count.broken += u64::from(std::mem::take(&mut self.was_up));
                self.link = None;
                self.next_try = now + AGAIN;
            }
        }
    }
}

impl Link {
    fn new(fd: OwnedFd, now: Instant) -> Link {
        Link { fd, up: false, greeted: false, sent: 0, back: 0, next_send: now, waiting_since: now, got: Vec::new() }
    }

    fn turn(&mut self, now: Instant, count: &mut StreamCount) -> Result<(), Errno> {
        if !self.up {
            rustix::net::sockopt::socket_error(&self.fd)??;
            self.up = rustix::net::getpeername(&self.fd).is_ok();
            return Ok(());
        }
        let mut buffer = [0u8; 2048];
        loop {
            match rustix::net::recv(&self.fd, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((n, _)) => self.got.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(e) => return Err(e),
            }
        }
        while let Some(end) = self.got.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.got.drain(..=end).collect();
            if !std::mem::replace(&mut self.greeted, true) {
                continue;
            }
            if line == format!("{}\n", self.back).as_bytes() {
                count.lines += 1;
            } else {
                count.wrong += 1;
            }
            self.back += 1;
            count.longest = count.longest.max(now - self.waiting_since);
            self.waiting_since = now;
        }
        if self.back < self.sent {
            count.longest = count.longest.max(now - self.waiting_since);
        }
        if self.greeted && now >= self.next_send {
            if self.back == self.sent {
                self.waiting_since = now;
            }
            let line = format!("{}\n", self.sent);
            match rustix::net::send(&self.fd, line.as_bytes(), rustix::net::SendFlags::NOSIGNAL) {
                Ok(_) => self.sent += 1,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e),
            }
            self.next_send = now + EVERY;
        }
        Ok(())
    }
}
