//! One Ethernet between virtual machines, over unix sockets: no privilege, no frame on any interface of this machine.
//! It counts frames, and a cable can be pulled.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

/// A hub: each frame goes to every other port. Clones are the same hub.
#[derive(Debug, Clone, Default)]
pub struct Switch {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    ports: BTreeMap<String, UnixStream>,
    frames: BTreeMap<String, u64>,
    unplugged: BTreeSet<String>,
}

impl Switch {
    /// A hub without ports.
    pub fn new() -> Switch {
        Switch::default()
    }

    /// Opens a port: the machine connects to the socket `place`. qemu's framing: 4 bytes of length, then the frame.
    pub(crate) fn port(&self, name: &str, place: &Path) -> Result<()> {
        if place.exists() {
            std::fs::remove_file(place)?;
        }
        let listener = UnixListener::bind(place)?;
        let (switch, name) = (self.clone(), name.to_owned());
        // Ends when the machine's end is closed.
        std::thread::spawn(move || listener.accept().and_then(|(stream, _)| switch.carry(&name, stream)));
        Ok(())
    }

    fn carry(&self, name: &str, mut stream: UnixStream) -> io::Result<()> {
        self.locked().ports.insert(name.to_owned(), stream.try_clone()?);
        let mut frame = vec![0u8; 70_000];
        loop {
            stream.read_exact(&mut frame[..4])?;
            let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
            stream.read_exact(&mut frame[4..4 + length])?;
            let mut state = self.locked();
            *state.frames.entry(name.to_owned()).or_default() += 1;
            if state.unplugged.contains(name) {
                continue;
            }
            let State { ports, unplugged, .. } = &mut *state;
            ports.retain(|other, to| {
                other == name || unplugged.contains(other) || to.write_all(&frame[..4 + length]).is_ok()
            });
        }
    }

    /// How many frames this node has sent, those into a pulled cable included.
    pub fn frames(&self, name: &str) -> u64 {
        self.locked().frames.get(name).copied().unwrap_or(0)
    }

    /// Pulls the node's cable.
    pub fn unplug(&self, name: &str) {
        self.locked().unplugged.insert(name.to_owned());
    }

    /// Puts it back.
    pub fn plug(&self, name: &str) {
        self.locked().unplugged.remove(name);
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
