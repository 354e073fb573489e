//! Writing down what was done.

pub mod audit;
pub mod ledger;
pub mod lost_state;
