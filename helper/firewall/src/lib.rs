//! The found packet filter as a value: decoded from the kernel's bytes, asked, and changed by a plan. No I/O.
//!
//! ```text
//! netlink bytes ─ decode ─→ ir::Ruleset ─┬─ kind   whose table is this
//!                                        ├─ text   a rule for people
//!                                        ├─ walk   one flow through one base chain, three-valued (uses eval, bits)
//!                                        └─ open   flow → plan ─ encode ─→ netlink bytes
//! ```
//!
//! What is not understood stays a value ([`ir::Expr::Unknown`]) and makes an answer unknown; it never matches all.
#![forbid(unsafe_code)]

pub mod bits;
pub mod compare;
pub mod decode;
pub mod encode;
pub mod eval;
pub mod ir;
pub mod kind;
pub mod open;
pub mod text;
pub mod walk;
pub mod wire;
pub mod xt;
