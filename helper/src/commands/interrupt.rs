//! Signals to a verb that changes the machine: it is not cut in the middle by a lost terminal or one Ctrl-C.

use crate::show::text;
use nix::sys::signal::{SigSet, Signal};
use std::thread;

/// From here on a hang-up is not heeded (the connection over which somebody adopts may break), and the first interrupt
/// or termination is answered with words; the second ends the verb at once, and `mesh recover` finishes or undoes it.
///
/// Before any other thread is started, since what is blocked here is blocked in those as well.
pub fn defer() -> anyhow::Result<()> {
    let set: SigSet = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    set.thread_block()?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut asked = false;
        while let Ok(signal) = set.wait() {
            match (signal, asked) {
                (Signal::SIGHUP, _) => {}
                (_, false) => {
                    asked = true;
                    drop(text::err(
                        "mesh: finishing first; once more cuts it here, and mesh recover finishes or undoes it",
                    ));
                }
                (signal, true) => std::process::exit(128 + signal as i32),
            }
        }
    })?;
    Ok(())
}
