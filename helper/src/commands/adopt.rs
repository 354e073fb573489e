//! The verb `adopt`.
