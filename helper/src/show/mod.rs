//! The only place that prints: documents as JSON, tables for people.

pub mod json;
pub mod snippet;
pub mod text;
