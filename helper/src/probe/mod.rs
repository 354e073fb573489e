//! Reading the machine into values.

pub mod listeners;
pub mod machine;
pub mod units;
