//! Real Debian machines for tests, made from the archives that this machine already uses.
//!
//! | file | question it answers |
//! | --- | --- |
//! | [`bed`] | where images and running nodes live, and what is left of dead runs |
//! | [`image`] | how packages become a root directory, a disk and a kernel to boot it |
//! | [`node`] | what every node can do: run a script, take files, reboot, give its journal |
//! | [`nspawn`] | systemd in namespaces of this machine: up in half a second, full speed, this machine's kernel |
//! | [`netns`] | a network namespace to look at a node from |
//!
//! Nothing here sends a packet outside this machine, and only processes started here are ended.
//! All of it needs root. `install-needs.sh` installs the programs.

pub mod bed;
mod channel;
pub mod image;
pub mod initrd;
pub mod netns;
pub mod node;
pub mod nspawn;
pub mod process;

pub use bed::Bed;
pub use image::{Image, Recipe, Suite};
pub use netns::Netns;
pub use node::{Node, Output};
pub use nspawn::Nspawn;
