//! Real Debian machines for tests, made from the archives that this machine already uses.
//!
//! | file | question it answers |
//! | --- | --- |
//! | [`bed`] | where images and running nodes live, and what is left of dead runs |
//! | [`image`] | how packages become a root directory, a disk and a kernel to boot it |
//! | [`node`] | what every node can do: run a script, take files, reboot, give its journal |
//! | [`nspawn`] | systemd in namespaces of this machine: up in half a second, full speed, this machine's kernel |
//! | [`vm`] | a machine with its own kernel (qemu, no KVM): real reboots and power cuts |
//! | [`saved`] | a booted machine kept on disk, copied in about a second |
//! | [`cgroup`] | what keeps two nodes apart, and ends all of a node |
//! | [`netns`] | a network namespace to look at a node from |
//! | [`switch`] | one Ethernet between virtual machines that counts frames and can be unplugged |
//! | [`world`] | the predecessor's world: a machine in use |
//! | [`prober`] | a client outside the machine that counts failures |
//! | [`snapshot`] | everything that is compared before and after |
//! | [`scenarios`] | what an operator sees on a machine in use |
//! | [`crash`] | every state of a disk that a power cut could have left |
//!
//! Nothing here sends a packet outside this machine, and only processes started here are ended.
//! All of it needs root. `install-needs.sh` installs the programs.

pub mod bed;
pub mod cgroup;
mod channel;
pub mod crash;
pub mod image;
pub mod initrd;
pub mod netns;
pub mod node;
pub mod nspawn;
pub mod prober;
pub mod process;
pub mod qmp;
pub mod saved;
pub mod scenarios;
pub mod snapshot;
pub mod switch;
pub mod vm;
pub mod world;

pub use bed::Bed;
pub use image::{Image, Recipe, Suite};
pub use netns::Netns;
pub use node::{Node, Output};
pub use nspawn::Nspawn;
pub use saved::{Preparation, Saved};
pub use switch::Switch;
pub use vm::{Hardware, Vm};
