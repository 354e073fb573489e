//! The one persistent mode switch: `/etc/mesh/mode`, one word and a newline.
//!
//! An absent file means [`Mode::Unmanaged`]; anything but a known word and one newline is invalid, never guessed.

use crate::diagnostic::{Diagnostic, Diagnostics};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far the mesh controls this node. Ordered: the kernel command line can only lower it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The mesh does nothing here.
    Unmanaged,
    /// The found firewall and files are in custody and in force.
    Adopted,
    /// The mesh's own firewall and files are in force.
    Converged,
}

/// Why the bytes of a mode file are not a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    /// The file exists but holds nothing.
    #[error("the file is empty; it must hold one of unmanaged, adopted, converged and a newline")]
    Empty,
    /// The word has no newline after it, so the write may have been cut.
    #[error("no newline after {0:?}; the write was cut short or the file was made by hand: use printf 'adopted\\n'")]
    NoNewline(String),
    /// Not a known word.
    #[error("{0:?} is not a mode; it must be one of unmanaged, adopted, converged")]
    Unknown(String),
}

impl Mode {
    /// The word in the mode file.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Unmanaged => "unmanaged",
            Mode::Adopted => "adopted",
            Mode::Converged => "converged",
        }
    }

    /// A mode from its word.
    pub fn from_word(word: &str) -> Option<Mode> {
        [Mode::Unmanaged, Mode::Adopted, Mode::Converged].into_iter().find(|m| m.word() == word)
    }

    /// Reads the bytes of a mode file: exactly one word and one newline.
    pub fn parse(bytes: &[u8]) -> Result<Mode, ModeError> {
        if bytes.is_empty() {
            return Err(ModeError::Empty);
        }
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
        let Some(word) = text.strip_suffix('\n') else {
            return Err(match Mode::from_word(&text) {
                Some(_) => ModeError::NoNewline(text),
                None => ModeError::Unknown(text),
            });
        };
        Mode::from_word(word).ok_or_else(|| ModeError::Unknown(word.to_string()))
    }

    /// Reads the bytes of the mode file `file`, its fault as one of a configuration file.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Mode, Diagnostics> {
        Mode::parse(bytes).map_err(|e| {
            let value = match &e {
                ModeError::Empty => String::new(),
                ModeError::NoNewline(word) | ModeError::Unknown(word) => word.lines().next().unwrap_or("").into(),
            };
            let text = e.to_string();
            let (what, remedy) = text.split_once("; ").unwrap_or((&text, ""));
            let (what, remedy) = (what.to_string(), remedy.to_string());
            Diagnostics(vec![Diagnostic { file: file.into(), line: 1, column: 1, value, what, remedy }])
        })
    }

    /// The bytes of the mode file.
    pub fn file_content(self) -> String {
        format!("{}\n", self.word())
    }

    /// The mode in force, given the kernel command line (or PID 1's in a container): `mesh.mode=` can only lower it.
    ///
    /// The last `mesh.mode=` wins, as for other kernel options; a word that is not a mode is returned as the
    /// second value, changes nothing, and is for the caller to log.
    pub fn lowered_by(self, command_line: &str) -> (Mode, Option<String>) {
        let mut mode = self;
        let mut bad = None;
        for word in command_line.split(|c: char| c.is_ascii_whitespace() || c == '\0') {
            let Some(value) = word.strip_prefix("mesh.mode=") else { continue };
            let value = value.trim_matches('"');
            match Mode::from_word(value) {
                Some(asked) => {
                    mode = self.min(asked);
                    bad = None;
                }
                None => bad = Some(value.to_string()),
            }
        }
        (mode, bad)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_file_is_one_word_and_a_newline() {
        assert_eq!(Mode::parse(b"adopted\n"), Ok(Mode::Adopted));
        assert_eq!(Mode::parse(b"converged\n"), Ok(Mode::Converged));
        assert_eq!(Mode::parse(b""), Err(ModeError::Empty));
        assert_eq!(Mode::parse(b"adopted"), Err(ModeError::NoNewline("adopted".into())));
        for bad in
            ["adopted \n", " adopted\n", "adopted\n\n", "adopted\nx\n", "Adopted\n", "\n", "adopted\r\n", "ad\0pted\n"]
        {
            assert!(matches!(Mode::parse(bad.as_bytes()), Err(ModeError::Unknown(_))), "{bad:?}");
        }
        assert!(matches!(Mode::parse(&[0xff, b'\n']), Err(ModeError::Unknown(_))));
        assert!(matches!(Mode::parse(&[b'a'; 1 << 20]), Err(ModeError::Unknown(_))));
    }

    #[test]
    fn the_command_line_only_lowers() {
        for (mode, line, want) in [
            (Mode::Converged, "ro quiet mesh.mode=adopted", Mode::Adopted),
            (Mode::Adopted, "mesh.mode=converged", Mode::Adopted),
            (Mode::Adopted, "mesh.mode=unmanaged", Mode::Unmanaged),
            (Mode::Converged, "mesh.mode=unmanaged mesh.mode=adopted", Mode::Adopted),
            (Mode::Adopted, "mesh.mode=\"unmanaged\"", Mode::Unmanaged),
            (Mode::Adopted, "/sbin/init\0mesh.mode=unmanaged\0", Mode::Unmanaged),
            (Mode::Adopted, "xmesh.mode=unmanaged", Mode::Adopted),
        ] {
            assert_eq!(mode.lowered_by(line).0, want, "{mode} {line}");
        }
        assert_eq!(Mode::Adopted.lowered_by("mesh.mode=off"), (Mode::Adopted, Some("off".into())));
    }
}
