//! Runs scripts inside a test node, under the node's own PID 1, without network or login.
//!
//! One request a line, `ID TAB SECONDS TAB SCRIPT`; one answer a line, `ID TAB EXIT TAB STDOUT TAB STDERR`; backslash,
//! tab and newline escaped. Channel: the virtio-serial port `mesh.test.0`, or in a container the socket
//! `/run/mesh-test/agent.sock`. Scripts run side by side. Their output goes through files, so that a script that leaves
//! a daemon behind does not hold the channel.
//!
//! Standard library only: the bed compiles this one file for the node.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::{net::UnixListener, process::CommandExt};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const DIR: &str = "/run/mesh-test-agent";
const SOCKET_DIR: &str = "/run/mesh-test";
const PORT: &str = "mesh.test.0";

fn main() -> std::io::Result<()> {
    fs::create_dir_all(DIR)?;
    if fs::metadata(SOCKET_DIR).is_ok() { serve_socket() } else { serve_port() }
}

fn serve_socket() -> std::io::Result<()> {
    let path = format!("{SOCKET_DIR}/agent.sock");
    if fs::metadata(&path).is_ok() {
        fs::remove_file(&path)?;
    }
    for stream in UnixListener::bind(path)?.incoming() {
        let stream = stream?;
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                answer(line, &writer);
            }
        });
    }
    Ok(())
}

fn serve_port() -> std::io::Result<()> {
    let mut port = loop {
        match find_port().and_then(|path| OpenOptions::new().read(true).write(true).open(path).ok()) {
            Some(port) => break port,
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    let writer = Arc::new(Mutex::new(port.try_clone()?));
    let (mut pending, mut chunk) = (Vec::new(), [0u8; 65536]);
    loop {
        match port.read(&mut chunk) {
            // The outer end is not connected.
            Ok(0) | Err(_) => thread::sleep(Duration::from_millis(50)),
            Ok(n) => pending.extend_from_slice(&chunk[..n]),
        }
        while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
            let mut line: Vec<u8> = pending.drain(..=end).collect();
            line.pop();
            answer(line, &writer);
        }
    }
}

fn find_port() -> Option<String> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        if fs::read_to_string(entry.path().join("name")).ok()?.trim() == PORT {
            return Some(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    None
}

fn answer<W: Write + Send + 'static>(line: Vec<u8>, writer: &Arc<Mutex<W>>) {
    let fields: Vec<Vec<u8>> = line.split(|&byte| byte == b'\t').map(unescape).collect();
    let [id, seconds, script] = &fields[..] else { return };
    let (Some(id), Some(seconds)) = (number(id), number(seconds)) else { return };
    let (script, writer) = (script.clone(), writer.clone());
    thread::spawn(move || {
        let (out, err) = (format!("{DIR}/{id}.out"), format!("{DIR}/{id}.err"));
        let exit = run(&script, Duration::from_secs(seconds), &out, &err).unwrap_or(126);
        let line = format!("{id}\t{exit}\t{}\t{}\n", taken(&out), taken(&err));
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        // The outer end may be gone: then nobody is left to be told.
        writer.write_all(line.as_bytes()).ok();
    });
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn run(script: &[u8], limit: Duration, out: &str, err: &str) -> std::io::Result<i32> {
    let file = format!("{out}.sh");
    fs::write(&file, script)?;
    let started = Instant::now();
    let mut child = Command::new("/bin/bash")
        .arg(&file)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("SYSTEMD_PAGER", "")
        .current_dir("/root")
        .stdin(Stdio::null())
        .stdout(File::create(out)?)
        .stderr(File::create(err)?)
        .process_group(0)
        .spawn()?;
    let exit = loop {
        if let Some(status) = child.try_wait()? {
            break status.code().unwrap_or(-1);
        }
        if started.elapsed() > limit {
            let group = format!("-{}", child.id());
            Command::new("/bin/kill").args(["-9", "--", &group]).status()?;
            child.wait()?;
            break 124;
        }
        thread::sleep(Duration::from_millis(if started.elapsed().as_millis() < 200 { 3 } else { 20 }));
    };
    fs::remove_file(file)?;
    Ok(exit)
}

/// What a file held, escaped for one field; the file is gone after.
fn taken(path: &str) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    fs::remove_file(path).ok();
    text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut bytes = field.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match (byte, byte == b'\\') {
            (_, true) => match bytes.next() {
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                _ => b'\\',
            },
            (other, false) => other,
        });
    }
    plain
}
