//! The verb `release`.
