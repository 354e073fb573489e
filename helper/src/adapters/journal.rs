//! One structured record to the journal, as `mesh`.
//!
//! The journal is the audit copy; the ledger is the memory. So a machine without journald (a container, early boot) is
//! not an error of the verb: the record is said on stderr instead. What goes in is made by `mesh_model::event`, which
//! cannot hold the content of a file.

use libsystemd::logging::{self, Priority};
use mesh_model::message;
use std::io::Write;
use std::path::Path;

/// What `journalctl -t` filters on.
pub const IDENTIFIER: &str = "mesh";

/// journald's native socket (systemd-journald.service(8)).
const SOCKET: &str = "/run/systemd/journal/socket";

/// Sends `text` with `fields`, whose names must be valid for the journal (the tests of `message` see to it: the
/// library leaves out others without a word).
pub fn send(id: &str, priority: message::Priority, text: &str, fields: &[(String, String)]) {
    let priority = match priority {
        message::Priority::Error => Priority::Error,
        message::Priority::Warning => Priority::Warning,
        message::Priority::Notice => Priority::Notice,
    };
    let head = [("MESSAGE_ID", id), ("SYSLOG_IDENTIFIER", IDENTIFIER)];
    let all = head.into_iter().chain(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    if !Path::new(SOCKET).exists() {
        said_once(&format!("no journal here, so said only once: {text}"));
        return;
    }
    if let Err(e) = logging::journal_send(priority, text, all) {
        said_once(&format!("not in the journal ({e}), so said only once: {text}"));
    }
}

/// Not `eprintln!`, which panics where standard error is full or gone.
fn said_once(text: &str) {
    drop(writeln!(std::io::stderr(), "mesh: {text}"));
}
