//! Scenarios on booted machines.
fn main() {}
