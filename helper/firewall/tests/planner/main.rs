//! The planner over rulesets made by hand and drawn at random.

mod cases;
mod laws;
mod made;
