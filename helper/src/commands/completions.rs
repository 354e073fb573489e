//! The verb `completions`.
