//! Saying what is being done: on a terminal as one moving line, under systemd as `STATUS=`.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// The progress of one verb. Silent where standard error is no terminal and no manager listens.
#[derive(Debug)]
pub struct Progress {
    line: ProgressBar,
}

impl Progress {
    /// Begins.
    pub fn new() -> Progress {
        let line = ProgressBar::new_spinner();
        // The template is a constant; if it were wrong the default style would do.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}") {
            line.set_style(style);
        }
        line.enable_steady_tick(Duration::from_millis(120));
        Progress { line }
    }

    /// The step that begins now.
    pub fn step(&self, text: &str) {
        self.line.set_message(text.to_string());
        notify(&[sd_notify::NotifyState::Status(text)]);
    }

    /// All is done: the line goes, and the manager is told that the unit is ready.
    pub fn ready(&self, text: &str) {
        self.line.finish_and_clear();
        notify(&[sd_notify::NotifyState::Status(text), sd_notify::NotifyState::Ready]);
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}

/// Tells the manager, where there is one. Status that cannot be told changes nothing of what is done.
fn notify(state: &[sd_notify::NotifyState]) {
    if let Err(e) = sd_notify::notify(state) {
        drop(super::text::err(&format!("mesh: telling the service manager: {e}")));
    }
}
