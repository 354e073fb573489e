//! Streams that know when one of their packets was not answered.
//!
//! `mesh-test-stream serve ADDRESS:PORT…` echoes, over TCP and UDP.
//! `mesh-test-stream send DIR NAME=tcp|udp/ADDRESS:PORT…` keeps one stream each: a number every 100 ms, the next after
//! the echo or after a second without it. `DIR/NAME` always says `echoed=N lost=N worst_ms=N` (the longest wait for an
//! echo) or ends in `error=…`, with which that stream is over.
//!
//! Standard library only: the bed compiles this one file for the node.

use std::fs;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let bad = || std::io::Error::new(ErrorKind::InvalidInput, "serve ADDRESS… | send DIR NAME=PROTOCOL/ADDRESS…");
    let (verb, rest) = words.split_first().ok_or_else(bad)?;
    match (verb.as_str(), rest) {
        ("serve", addresses) => {
            for address in addresses {
                let address: SocketAddr = address.parse().map_err(|_| bad())?;
                let (listener, socket) = (TcpListener::bind(address)?, UdpSocket::bind(address)?);
                thread::spawn(move || echo_tcp(&listener));
                thread::spawn(move || echo_udp(&socket));
            }
        }
        ("send", [dir, streams @ ..]) => {
            fs::create_dir_all(dir)?;
            for stream in streams {
                let (name, target) = stream.split_once('=').ok_or_else(bad)?;
                let (protocol, address) = target.split_once('/').ok_or_else(bad)?;
                let (protocol, address) = (protocol.to_owned(), address.parse().map_err(|_| bad())?);
                let mut state = State::new(Path::new(dir).join(name));
                thread::spawn(move || {
                    let ended = match protocol.as_str() {
                        "tcp" => send_tcp(address, &mut state),
                        _ => send_udp(address, &mut state),
                    };
                    if let Err(error) = ended {
                        state.write(&format!(" error={error}"));
                    }
                });
            }
        }
        _ => return Err(bad()),
    }
    loop {
        thread::park();
    }
}

fn echo_tcp(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        thread::spawn(move || {
            let mut number = [0u8; 8];
            while stream.read_exact(&mut number).and_then(|()| stream.write_all(&number)).is_ok() {}
        });
    }
}

fn echo_udp(socket: &UdpSocket) {
    let mut number = [0u8; 8];
    loop {
        // An ICMP error of one peer is not the end of the others.
        if let Ok((n, peer)) = socket.recv_from(&mut number) {
            socket.send_to(&number[..n], peer).ok();
        }
    }
}

struct State {
    place: PathBuf,
    echoed: u64,
    lost: u64,
    worst: Duration,
}

impl State {
    fn new(place: PathBuf) -> State {
        State { place, echoed: 0, lost: 0, worst: Duration::ZERO }
    }

    fn came(&mut self, waited: Duration) {
        self.echoed += 1;
        self.worst = self.worst.max(waited);
        self.write("");
    }

    fn write(&self, end: &str) {
        let text = format!("echoed={} lost={} worst_ms={}{end}\n", self.echoed, self.lost, self.worst.as_millis());
        // Hidden, so that a look at `DIR/*` never meets it.
        let part =
            self.place.with_file_name(format!(".{}", self.place.file_name().unwrap_or_default().to_string_lossy()));
        if fs::write(&part, text).and_then(|()| fs::rename(&part, &self.place)).is_err() {
            eprintln!("cannot write {}", self.place.display());
        }
    }
}

fn send_tcp(address: SocketAddr, state: &mut State) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE * 10)?;
    stream.set_nodelay(true)?;
    for number in 1u64.. {
        let sent = Instant::now();
        stream.write_all(&number.to_be_bytes())?;
        let mut echo = [0u8; 8];
        stream.read_exact(&mut echo)?;
        if u64::from_be_bytes(echo) != number {
            return Err(std::io::Error::new(ErrorKind::InvalidData, "another number came back"));
        }
        state.came(sent.elapsed());
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn send_udp(address: SocketAddr, state: &mut State) -> Result<()> {
    let any: SocketAddr = if address.is_ipv4() { ([0u8; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    for number in 1u64.. {
        let sent = Instant::now();
        socket.send(&number.to_be_bytes())?;
        loop {
            let mut echo = [0u8; 8];
            match socket.recv(&mut echo) {
                // A late one is passed over: it has been counted as lost.
                Ok(_) if u64::from_be_bytes(echo) != number => {}
                Ok(_) => break state.came(sent.elapsed()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    state.lost += 1;
                    break state.write("");
                }
                Err(error) => return Err(error),
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
