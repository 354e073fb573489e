//! The planner over rulesets made by hand and drawn at random.
// Not only in test functions: what makes and walks a ruleset panics where that is the test failing, and errors are as
// large as the rules that they name.
#![allow(clippy::unwrap_used, clippy::result_large_err)]

mod cases;
mod laws;
mod made;
