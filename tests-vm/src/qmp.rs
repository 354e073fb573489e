//! qemu's own control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection to a machine's qemu.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Takes the greeting and enters command mode.
    pub fn new(stream: UnixStream) -> Result<Qmp> {
        let mut qmp = Qmp { stream: BufReader::new(stream) };
        qmp.stream.read_line(&mut String::new())?;
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs one command; events that come meanwhile are passed over.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.stream.get_mut().write_all(line.as_bytes()).with_context(|| format!("qemu is gone before {command}"))?;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                bail!("qemu ended during {command}");
            }
            let mut answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                bail!("qemu refuses {command}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Runs one line of the human monitor (snapshots are only there).
    pub fn monitor(&mut self, line: &str) -> Result<String> {
        let answer = self.ask("human-monitor-command", json!({ "command-line": line }))?;
        let text = answer.as_str().unwrap_or_default().to_owned();
        if text.starts_with("Error") {
            bail!("qemu refuses {line}: {text}");
        }
        Ok(text)
    }
}
