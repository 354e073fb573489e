//! The verb `custody`.
