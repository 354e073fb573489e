//! The verb `user_manager`.
