//! The verb `probe`.
