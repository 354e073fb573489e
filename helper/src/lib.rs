//! The outer ring: everything of the mesh that touches the machine.
//!
//! `probe` reads the machine into values, `plan` (pure) makes plans of them, `apply` executes a plan unchanged,
//! `record` writes what was done. `commands` has one file a verb and ties them; `adapters` speak to the kernel, to
//! systemd and to the disk; `show` is the only place that prints.

pub mod adapters;
pub mod apply;
pub mod cli;
pub mod commands;
pub mod failure;
pub mod layout;
pub mod plan;
pub mod probe;
pub mod record;
pub mod show;
