//! Plans as values: pure code, no I/O.

pub mod adopt;
pub mod finding;
pub mod release;
