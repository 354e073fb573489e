//! The words of the mesh as types. No I/O, no unsafe code: what is here can be tested with values alone.
//!
//! ```text
//! mode file ─┐
//! node.toml ─┼─ document ─→ node, manifest, catalogue ─→ generator (units)
//! manifests ─┘                        │
//!                   probe (values) ───┴─→ plan ─→ apply ─→ ledger, message
//! ```
//!
//! | theme | modules |
//! |---|---|
//! | what an operator writes | [`mode`], [`document`], [`node`], [`manifest`], [`catalogue`], [`flow`] |
//! | what the helper writes | [`state`], [`pending`], [`opening`], [`ledger`], [`custody`] |
//! | what it decides | [`closure`], [`plan`] |
//! | how it says so | [`failure`], [`diagnostic`], [`event`], [`message`] |
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod closure;
pub mod custody;
pub mod diagnostic;
pub mod document;
pub mod event;
pub mod failure;
pub mod flow;
pub mod init_template;
pub mod layers;
pub mod ledger;
pub mod manifest;
pub mod message;
pub mod mode;
pub mod nearest;
pub mod node;
pub mod opening;
pub mod pending;
pub mod secret;
pub mod state;
pub mod unit;
pub mod view;
mod walk;
mod words;
