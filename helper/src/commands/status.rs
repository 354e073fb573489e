//! The verb `status`.
