//! What the generator has to say. There is no journal yet when it runs at boot, and the manager keeps nothing of its
//! output: `/dev/kmsg` is the one way to be heard. A user's generator, and `--dry-run`, speak to stderr.

use rustix::fs::{Mode, OFlags, open};
use std::io::Write;

/// How grave it is, as a syslog priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something of the mesh will not work.
    Error = 3,
    /// Something was ignored.
    Warning = 4,
}

/// One line to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line(pub Level, pub String);

impl Line {
    /// An error.
    pub fn error(text: impl ToString) -> Line {
        Line(Level::Error, text.to_string())
    }

    /// A warning.
    pub fn warning(text: impl ToString) -> Line {
        Line(Level::Warning, text.to_string())
    }
}

/// Says it all; the kernel's log takes one record a write. A log that cannot be written is no reason to fail a boot.
pub fn say(lines: &[Line], kernel_log: bool) {
    if lines.is_empty() {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let kmsg = if kernel_log { open("/dev/kmsg", flags, Mode::empty()).ok() } else { None };
    let pid = std::process::id();
    for Line(level, text) in lines {
        for line in text.lines() {
            let record = format!("<{}>mesh-generator[{pid}]: {line}\n", *level as u8);
            let written = match &kmsg {
                Some(kmsg) => rustix::io::write(kmsg, record.as_bytes()).is_ok(),
                None => std::io::stderr().write_all(record.as_bytes()).is_ok(),
            };
            if !written {
                return;
            }
        }
    }
}
