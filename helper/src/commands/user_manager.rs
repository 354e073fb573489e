//! The hidden verb `user-manager`: one request for the manager of the calling user, answered on standard output.
//!
//! Root never speaks to a user's manager itself: this runs as that user, with nothing of root's left.

use crate::adapters::systemd::{Reply, Request, answer_as_user};
use anyhow::Context as _;
use std::io::{Read, Write};

/// A request is small; more than this is not one.
const REQUEST_SIZE: u64 = 1 << 20;

/// Runs `mesh user-manager`.
pub fn run() -> anyhow::Result<()> {
    let mut input = Vec::new();
    std::io::stdin().take(REQUEST_SIZE).read_to_end(&mut input).context("reading the request")?;
    let reply = match serde_json::from_slice::<Request>(&input) {
        Ok(request) => answer_as_user(&request),
        Err(e) => Reply::Failed(format!("a malformed request: {e}")),
    };
    let bytes = serde_json::to_vec(&reply)?;
    std::io::stdout().write_all(&bytes).context("writing the reply")
}
