//! The verb `openings`.
