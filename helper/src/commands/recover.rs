//! The verb `recover`.
