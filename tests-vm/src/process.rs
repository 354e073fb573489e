//! Child processes of the bed: they end with the bed, and a failure says what was run and what it said.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail};

/// Runs a command to its end and takes its output.
pub trait Checked {
    /// Standard output. An exit other than 0 is an error with the command line and standard error in it.
    fn checked(&mut self) -> Result<String>;
}

impl Checked for Command {
    fn checked(&mut self) -> Result<String> {
        let shown = shown(self);
        let output = self.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{shown}: {}\n{out}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(out)
    }
}

/// A command with its arguments, in one go.
pub fn command<A: AsRef<std::ffi::OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

fn shown(command: &Command) -> String {
    let words: Vec<_> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Starts `program` so that the kernel ends it when this process dies, however it dies.
///
/// The kernel binds that promise to the *thread* that forked, so one thread, which lives as long as the process,
/// does it for all: a node may be dropped on another thread than the one it was booted on.
pub fn spawn(program: &str, configure: impl FnOnce(&mut Command)) -> Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in orders {
                // Nobody waits for the child any more: it is ended, not leaked.
                if let Err(unheard) = reply.send(command.spawn()) {
                    if let Ok(mut child) = unheard.0 {
                        end(&mut child);
                    }
                }
            }
        });
        Mutex::new(sender)
    });
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).stdin(Stdio::null());
    configure(&mut command);
    let shown = shown(&command);
    let (reply, answer) = channel();
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply))
        .map_err(|_| anyhow::anyhow!("the thread that starts processes is gone"))?;
    answer.recv().context("the thread that starts processes is gone")?.with_context(|| format!("cannot run {shown}"))
}

/// Ends a child at once and takes its exit status, so that neither a process nor a zombie stays.
pub fn end(child: &mut Child) {
    // Both fail only if it has ended already, which is what is wanted.
    child.kill().ok();
    child.wait().ok();
}
