//! The only place that prints: documents as JSON, tables for people.

pub mod failure;
pub mod json;
pub mod progress;
pub mod snippet;
pub mod text;
