//! The edges: kernel, systemd, disk, journal. Each file speaks to one of them and returns values.

pub mod config;
pub mod custody_fs;
pub mod custody_put;
pub mod custody_store;
pub mod durable;
pub mod journal;
pub mod lock;
pub mod nft;
pub mod sockets;
pub mod systemd;
