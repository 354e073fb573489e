//! What every node can do, whatever it runs on.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// What a script in a node gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit code; 124 after the time limit, 126 if it could not be started, -1 if a signal ended it.
    pub exit: i32,
    /// Standard output, bytes that are not UTF-8 replaced.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Output {
    /// Both outputs, for a message.
    pub fn all(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// A booted machine.
pub trait Node {
    /// The name it was given.
    fn name(&self) -> &str;

    /// Runs a bash script as root under the node's PID 1. An error means that there is no answer: the node is gone, or
    /// did not answer within `limit` and ten seconds.
    fn try_run(&mut self, script: &str, limit: Duration) -> Result<Output>;

    /// Puts one file into the node, its folders made; `mode` as in `chmod`.
    fn put(&mut self, path: &str, content: &[u8], mode: u32) -> Result<()>;

    /// Copies a file or the content of a directory of this machine to `to` in the node, modes and links kept, owned by
    /// root.
    fn copy_in(&mut self, from: &Path, to: &str) -> Result<()>;

    /// Reboots by the node's own systemd and waits until it answers again.
    fn reboot(&mut self) -> Result<()>;

    /// What the console showed since the node was started.
    fn console(&self) -> String;

    /// Where this node's failures are kept.
    fn failed_dir(&self) -> Result<std::path::PathBuf>;

    /// Runs a script (at most two minutes) and fails unless it exits 0; gives its standard output.
    fn run(&mut self, script: &str) -> Result<String> {
        self.run_within(script, Duration::from_secs(120))
    }

    /// As [`Node::run`] with another limit.
    fn run_within(&mut self, script: &str, limit: Duration) -> Result<String> {
        let output = self.try_run(script, limit)?;
        if output.exit != 0 {
            bail!("on {}, exit {}:\n{script}\n{}", self.name(), output.exit, output.all());
        }
        Ok(output.out)
    }

    /// Waits until systemd has started all it was to start; failed units are an error that names them.
    fn wait_running(&mut self) -> Result<()> {
        let output = self.try_run("systemctl is-system-running --wait", Duration::from_secs(180))?;
        match output.out.trim() {
            "running" => Ok(()),
            state => {
                let failed = self.run("systemctl --failed --no-legend --plain --no-pager")?;
                bail!("{} is {state}: {failed}", self.name())
            }
        }
    }

    /// Runs a script again and again until it exits 0; after `limit` its last output is the error.
    fn wait_for(&mut self, script: &str, limit: Duration) -> Result<String> {
        let started = Instant::now();
        loop {
            let output = self.try_run(script, limit)?;
            if output.exit == 0 {
                return Ok(output.out);
            }
            if started.elapsed() > limit {
                bail!("on {}, still exit {} after {limit:?}:\n{script}\n{}", self.name(), output.exit, output.all());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Keeps console and journal in the cache's `failed/NAME`, as far as they can be had; says where.
    fn keep_evidence(&mut self) -> Result<String> {
        let dir = self.failed_dir()?;
        fs::write(dir.join("console.log"), self.console())?;
        for (file, script) in [
            ("journal.txt", "journalctl --no-pager -o short-monotonic"),
            ("units.txt", "systemctl list-units --all --no-pager --plain; systemctl list-jobs --no-pager"),
            ("ruleset.txt", "nft -a list ruleset"),
        ] {
            let text = match self.try_run(script, Duration::from_secs(60)) {
                Ok(output) => output.all(),
                Err(error) => format!("{error:#}\n"),
            };
            fs::write(dir.join(file), text)?;
        }
        Ok(dir.display().to_string())
    }
}

/// Runs a test on a node; when it fails, keeps the evidence and adds to the error where it lies.
pub fn on<N: Node, T>(node: &mut N, test: impl FnOnce(&mut N) -> Result<T>) -> Result<T> {
    test(node).map_err(|error| match node.keep_evidence() {
        Ok(place) => error.context(format!("{} failed; its console and journal: {place}", node.name())),
        Err(lost) => error.context(format!("{} failed; nothing could be kept of it: {lost:#}", node.name())),
    })
}
