//! Writing down what was done.

pub mod audit;
pub mod ledger;
