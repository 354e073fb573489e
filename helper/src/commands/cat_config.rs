//! The verb `cat_config`.
