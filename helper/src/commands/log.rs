//! The verb `log`.
