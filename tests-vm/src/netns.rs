//! A network namespace of its own, to look at a node from outside.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

use crate::process::{Checked, command};

/// A named network namespace with its loopback up; deleted when dropped, with every link in it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A new, empty one. The real name (as in `ip netns`) carries this process's id and is unique.
    pub fn new(label: &str) -> Result<Netns> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mesh-{}-{n}-{label}", std::process::id());
        command("ip", ["netns", "add", &name]).checked()?;
        let netns = Netns { name };
        command("ip", ["-n", &netns.name, "link", "set", "lo", "up"]).checked()?;
        Ok(netns)
    }

    /// The name for `ip -n NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside. (Only the network is the namespace's: no mounts change, unlike `ip netns exec`,
    /// which would hide this machine's cgroups.)
    pub fn command(&self, program: &str) -> Command {
        command("nsenter", [format!("--net=/run/netns/{}", self.name), program.to_owned()])
    }

    /// Runs a bash script inside and gives its output; an exit other than 0 is an error.
    pub fn run(&self, script: &str) -> Result<String> {
        self.command("bash").args(["-ec", script]).checked()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // What stays is cleared by the next run.
        command("ip", ["netns", "del", &self.name]).checked().ok();
    }
}
