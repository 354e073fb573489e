//! A manager's private socket, made fit for zbus.
//!
//! On it systemd names itself as the sender of each message by its well-known name (`bus->patch_sender`,
//! src/core/dbus.c), which the D-Bus specification allows for unique names only; zbus 5 panics when it reads one. Two
//! threads pass the bytes on, and in each message that comes from the manager the first byte of that name becomes `:`,
//! which makes it a unique name of the same length. Nothing else is changed.

use anyhow::Context as _;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

/// Connects; what comes out of the stream is D-Bus as zbus takes it. The threads end with either side.
pub fn connect(socket: &str) -> anyhow::Result<UnixStream> {
    let manager = UnixStream::connect(socket).with_context(|| format!("connecting to the manager at {socket}"))?;
    let (near, far) = UnixStream::pair().context("making a socket pair")?;
    let (manager_in, far_out) = (manager.try_clone()?, far.try_clone()?);
    thread::spawn(move || {
        // The other side sees the end of the stream; that is all there is to say about a connection that ended.
        let _ended = from_manager(manager_in, &far_out);
        far_out.shutdown(Shutdown::Both)
    });
    thread::spawn(move || {
        let (mut from, mut to) = (&far, &manager);
        let _ended = io::copy(&mut from, &mut to);
        manager.shutdown(Shutdown::Both)
    });
    Ok(near)
}

/// More than this is no message (D-Bus specification: 128 MiB).
const MESSAGE_MAX: usize = 1 << 27;
/// Endianness, type, flags, version, body length, serial, length of the fields.
const FIXED: usize = 16;

fn from_manager(mut from: UnixStream, mut to: &UnixStream) -> io::Result<()> {
    let mut first = [0u8; 1];
    loop {
        from.read_exact(&mut first)?;
        if first != *b"l" && first != *b"B" {
            // A line of the authentication, which begins with an upper-case word and never with B.
            let mut line = first.to_vec();
            while !line.ends_with(b"\r\n") {
                from.read_exact(&mut first)?;
                line.push(first[0]);
            }
            to.write_all(&line)?;
            continue;
        }
        let mut message = vec![0; FIXED];
        message[0] = first[0];
        from.read_exact(&mut message[1..])?;
        let whole = length(&message).ok_or(io::ErrorKind::InvalidData)?;
        message.resize(whole, 0);
        from.read_exact(&mut message[FIXED..])?;
        mend_sender(&mut message);
        to.write_all(&message)?;
    }
}

fn number(message: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = message.get(at..at + 4)?.try_into().ok()?;
    let n = if message[0] == b'l' { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    usize::try_from(n).ok()
}

/// The length of a whole message, from its fixed part.
fn length(message: &[u8]) -> Option<usize> {
    let (body, fields) = (number(message, 4)?, number(message, 12)?);
    let whole = FIXED.checked_add(fields.checked_next_multiple_of(8)?)?.checked_add(body)?;
    (whole <= MESSAGE_MAX).then_some(whole)
}

/// Field 7 (SENDER) of type `s`, at an 8-byte boundary of the fields: its name gets a `:` for its first byte, unless it
/// is a unique name already.
fn mend_sender(message: &mut [u8]) {
    let Some(end) = number(message, 12).map(|fields| (FIXED + fields).min(message.len())) else { return };
    let mut at = FIXED;
    while at + 8 < end {
        if message[at..at + 4] == *b"\x07\x01s\0" && message[at + 8] != b':' {
            message[at + 8] = b':';
            return;
        }
        at += 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A method return of serial 1 with REPLY_SERIAL, SIGNATURE and SENDER, and a body of four bytes.
    fn message(sender: &str) -> Vec<u8> {
        let mut fields = b"\x05\x01u\0\x01\0\0\0\x08\x01g\0\x01u\0\0\x07\x01s\0".to_vec();
        fields.extend((sender.len() as u32).to_le_bytes());
        fields.extend(sender.as_bytes());
        fields.push(0);
        let mut out = b"l\x02\0\x01\x04\0\0\0\x01\0\0\0".to_vec();
        out.extend((fields.len() as u32).to_le_bytes());
        out.extend(&fields);
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(b"\x07\x01s\0");
        out
    }

    #[test]
    fn only_the_sender_changes_and_only_its_first_byte() {
        let before = message("org.freedesktop.systemd1");
        assert_eq!(length(&before), Some(before.len()));
        let mut after = before.clone();
        mend_sender(&mut after);
        let changed: Vec<usize> = (0..before.len()).filter(|i| before[*i] != after[*i]).collect();
        assert_eq!(changed.len(), 1);
        assert_eq!(&after[changed[0]..changed[0] + 4], b":rg.");
        let mut unique = message(":1.7");
        let same = unique.clone();
        mend_sender(&mut unique);
        assert_eq!(unique, same);
    }

    #[test]
    fn a_length_that_cannot_be_is_none() {
        assert_eq!(length(b"l\x02\0\x01\xff\xff\xff\xff\x01\0\0\0\xff\xff\xff\xff"), None);
    }
}
