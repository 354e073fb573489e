//! The verb `init`.
