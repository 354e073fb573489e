//! Reading the machine into values.

pub mod init;
pub mod listeners;
pub mod machine;
pub mod units;
