//! The predecessor's world: a machine in use, built by code, at the size of DESIGN §1.
//!
//! | file | question it answers |
//! | --- | --- |
//! | [`plan`] | which services, containers and ports there are |
//! | [`firewall`] | what the found firewall says |
//! | [`control`] | what the predecessor's control is |
//! | [`files`] | which files make a Debian machine into this one |
//! | [`machine`] | how it is built once, and booted for a test |
//! | [`node_toml`] | what its operator tells the mesh about it |
//! | [`tree`] | files as values |

pub mod control;
pub mod files;
pub mod firewall;
pub mod machine;
pub mod node_toml;
pub mod plan;
pub mod tree;

pub use machine::{Site, World};
pub use plan::Size;
