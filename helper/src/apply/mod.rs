//! Executing plans.

pub mod adopt;
pub mod openings;
pub mod recover;
pub mod release;
