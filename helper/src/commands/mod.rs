//! One file a verb: parse → probe → plan → show → apply → record.

pub mod adopt;
pub mod cat_config;
pub mod completions;
pub mod custody;
pub mod init;
pub mod log;
pub mod openings;
pub mod probe;
pub mod recover;
pub mod release;
pub mod status;
pub mod user_manager;

use crate::layout::Layout;

/// What every verb is given.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where things are.
    pub layout: Layout,
    /// Whether one JSON document is asked for.
    pub json: bool,
}
