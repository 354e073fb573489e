//! The one small program of the predecessor's world: every service and container runs it, its control daemons are it,
//! and it takes the file tree's snapshot. Built static, so that the same file runs in a machine and in an empty image.
//!
//! * `serve`: says who it is (`NAME INSTANCE`) on each TCP connection and echoes what it is sent; echoes UDP likewise.
//!   INSTANCE changes when the process does, so a restart is seen from outside the machine.
//! * `rewrite`: writes the synced files again and again, as a fleet system's sync does.
//! * `tree`: prints every file below `/` with all that can be compared, one JSON object a line.

use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (verb, rest) = words.split_first().context("usage: mesh-world serve|rewrite|tree …")?;
    match verb.as_str() {
        "serve" => serve(rest),
        "rewrite" => rewrite(rest),
        "tree" => tree(rest),
        other => bail!("{other:?} is none of serve, rewrite, tree"),
    }
}

/// Every value given for `--key`.
fn values<'a>(words: &'a [String], key: &str) -> Vec<&'a str> {
    words.windows(2).filter(|w| w[0] == key).map(|w| w[1].as_str()).collect()
}

/// The one value that must be given for `--key`.
fn value<'a>(words: &'a [String], key: &str) -> Result<&'a str> {
    values(words, key).first().copied().with_context(|| format!("{key} is missing"))
}

// ---- serve

fn serve(words: &[String]) -> Result<()> {
    let name = value(words, "--name")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let mut who = format!("{name} {}.{now:x}", std::process::id());
    if let Some(dir) = values(words, "--data").first() {
        who = format!("{who} {}", stored(Path::new(dir), name)?);
    }
    let mut threads = Vec::new();
    for address in values(words, "--tcp") {
        let listener = bind(address, |a| TcpListener::bind(a))?;
        let who = who.clone();
        threads.push(thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let who = who.clone();
                // A connection that cannot be given a thread is dropped; the prober counts it.
                let started = thread::Builder::new().stack_size(64 << 10).spawn(move || converse(stream, &who));
                if let Err(e) = started {
                    eprintln!("no thread for a connection: {e}");
                }
            }
        }));
    }
    for address in values(words, "--udp") {
        let socket = bind(address, |a| UdpSocket::bind(a))?;
        let who = who.clone();
        threads.push(thread::spawn(move || {
            let mut buffer = [0u8; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let mut answer = format!("{who}\n").into_bytes();
                answer.extend_from_slice(&buffer[..length]);
                if let Err(e) = socket.send_to(&answer, from) {
                    eprintln!("answering {from}: {e}");
                }
            }
        }));
    }
    eprintln!("{who} serves");
    for t in threads {
        if t.join().is_err() {
            bail!("a listener ended");
        }
    }
    Ok(())
}

/// Binds, and tries for ten seconds while the address is not there yet (early boot).
fn bind<T>(address: &str, bind: impl Fn(&str) -> std::io::Result<T>) -> Result<T> {
    for _ in 0..100 {
        match bind(address) {
            Ok(socket) => return Ok(socket),
            Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => thread::sleep(Duration::from_millis(100)),
            Err(e) => return Err(e).with_context(|| format!("binding {address}")),
        }
    }
    bail!("{address} is not an address of this machine")
}

/// The banner, then every line back until the other side closes. The prober closes with a reset on purpose, so how a
/// connection ends is nobody's error.
fn converse(mut stream: TcpStream, who: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(format!("{who}\n").as_bytes())?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        stream.write_all(&line)?;
        line.clear();
    }
    Ok(())
}

/// A store's data: written at its first start, read back at every later one, named by its length and first word.
fn stored(dir: &Path, name: &str) -> Result<String> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let file = dir.join("data");
    if !file.exists() {
        let rows: String = (0..2000).map(|i| format!("{name} row {i:06}\n")).collect();
        fs::write(&file, rows).with_context(|| format!("writing {}", file.display()))?;
    }
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    Ok(format!("rows={}", text.lines().count()))
}

// ---- rewrite

/// `--list FILE` holds lines `SOURCE DESTINATION`; `--every MS` repeats for ever; `--count FILE` gets the round's number.
fn rewrite(words: &[String]) -> Result<()> {
    let list = value(words, "--list")?;
    let every = values(words, "--every").first().map(|v| v.parse::<u64>()).transpose()?;
    let count = values(words, "--count").first().map(PathBuf::from);
    let mut round = 0u64;
    loop {
        for line in fs::read_to_string(list).with_context(|| format!("reading {list}"))?.lines() {
            let (source, destination) = line.split_once(' ').with_context(|| format!("{list}: {line:?}"))?;
            let content = fs::read(source).with_context(|| format!("reading {source}"))?;
            // In place, as careless sync tools do: owner and mode stay, the time of modification tells.
            fs::write(destination, content).with_context(|| format!("writing {destination}"))?;
        }
        round += 1;
        if let Some(count) = &count {
            fs::write(count, format!("{round}\n")).with_context(|| format!("writing {}", count.display()))?;
        }
        match every {
            Some(ms) => thread::sleep(Duration::from_millis(ms)),
            None => return Ok(()),
        }
    }
}

// ---- tree

/// `--skip PATH` leaves out PATH and all below it.
fn tree(words: &[String]) -> Result<()> {
    let root = values(words, "--root").first().copied().unwrap_or("/");
    let skip: Vec<PathBuf> = values(words, "--skip").into_iter().map(PathBuf::from).collect();
    let out = std::io::stdout().lock();
    let mut out = std::io::BufWriter::new(out);
    let mut todo = vec![PathBuf::from(root)];
    while let Some(path) = todo.pop() {
        if skip.contains(&path) {
            continue;
        }
        let Some(entry) = mesh_tests_vm::snapshot::FileEntry::read(&path)? else { continue };
        if entry.kind == "dir" {
            let mut below: Vec<PathBuf> = fs::read_dir(&path)
                .with_context(|| format!("listing {}", path.display()))?
                .map(|e| Ok(e?.path()))
                .collect::<Result<_>>()?;
            below.sort();
            todo.extend(below);
        }
        serde_json::to_writer(&mut out, &entry)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}
