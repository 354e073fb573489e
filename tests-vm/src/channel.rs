//! The outer end of the agent's channel; the format is in `bin/mesh-test-agent.rs`.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::node::Output;

/// Ids never repeat in a process: an answer that was late for its own request is not taken for the next one's.
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> Channel {
        Channel { stream, pending: Vec::new() }
    }

    pub(crate) fn run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        let id = u64::from(std::process::id()) * 1_000_000 + NEXT.fetch_add(1, Ordering::Relaxed);
        let escaped = script.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n");
        // The newline in front ends whatever half line a cut channel left in the agent.
        let request = format!("\n{id}\t{}\t{escaped}\n", limit.as_secs().max(1));
        self.stream.write_all(request.as_bytes()).context("the node is gone")?;
        let end = Instant::now() + limit + Duration::from_secs(10);
        let mut chunk = vec![0u8; 65536];
        loop {
            while let Some(at) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                if let Some(output) = answer(&String::from_utf8_lossy(&line), id) {
                    return Ok(output);
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer from the node within {} s to:\n{script}", limit.as_secs());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("the node is gone"),
                Ok(n) => self.pending.extend_from_slice(&chunk[..n]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error).context("the node is gone"),
            }
        }
    }
}

fn answer(line: &str, id: u64) -> Option<Output> {
    let mut fields = line.trim_end_matches('\n').split('\t');
    if fields.next()?.parse() != Ok(id) {
        return None;
    }
    let exit = fields.next()?.parse().ok()?;
    Some(Output { exit, out: unescape(fields.next()?), err: unescape(fields.next()?) })
}

fn unescape(field: &str) -> String {
    let mut plain = String::with_capacity(field.len());
    let mut chars = field.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                _ => '\\',
            },
            other => other,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_own_requests_only_and_comes_back_whole() {
        let line = "7\t3\ta\\tb\\\\n\\nc\t\n";
        assert_eq!(answer(line, 7), Some(Output { exit: 3, out: "a\tb\\n\nc".into(), err: String::new() }));
        assert_eq!(answer(line, 8), None);
    }
}
