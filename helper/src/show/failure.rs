//! A failure on its way out: one line on standard error, and with `--json` a document on standard output.

use super::{json, text};
use mesh_model::failure::Failure;

/// Says it. What cannot be printed cannot be helped.
pub fn print(as_json: bool, failure: &Failure) {
    // Not eprintln!, which panics where standard error is full or gone: the exit code must still be told.
    drop(text::err(&format!("mesh: {failure}")));
    if !as_json {
        return;
    }
    let document = json::error(failure);
    if let Err(e) = text::out(&format!("{document:#}")) {
        drop(text::err(&format!("mesh: {e:#}")));
    }
}
