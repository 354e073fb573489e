//! Names of systemd units, checked once.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of a unit: prefix, optional instance, type suffix; at most 255 bytes
/// (systemd `unit_name_is_valid`, src/basic/unit-name.c).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitName(String);

/// The types of units.
const TYPES: [&str; 11] =
    ["service", "socket", "timer", "path", "target", "mount", "automount", "swap", "slice", "scope", "device"];

impl UnitName {
    /// Checks a name; the error says what is wrong and what would be right.
    pub fn new(name: impl Into<String>) -> Result<UnitName, String> {
        let name = name.into();
        let Some((prefix, suffix)) = name.rsplit_once('.') else {
            return Err(format!("{name:?} has no unit type; write {name}.service or another of {}", TYPES.join(", ")));
        };
        if !TYPES.contains(&suffix) {
            return Err(format!("{suffix:?} in {name:?} is not a unit type; it must be one of {}", TYPES.join(", ")));
        }
        if prefix.is_empty() || prefix.starts_with('@') || name.len() > 255 {
            return Err(format!("{name:?} is not a unit name; it needs 1 to 255 bytes before its type"));
        }
        if let Some(c) = prefix.chars().find(|c| !(c.is_ascii_alphanumeric() || ":-_.\\@".contains(*c))) {
            return Err(format!("{c:?} may not be in a unit name ({name:?}); see systemd-escape(1)"));
        }
        Ok(UnitName(name))
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The type: what follows the last dot.
    pub fn kind(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(_, t)| t)
    }

    /// What precedes the type.
    pub fn stem(&self) -> &str {
        self.0.rsplit_once('.').map_or(&self.0, |(s, _)| s)
    }

    /// Whether this is `name@.type`, which cannot run itself.
    pub fn is_template(&self) -> bool {
        self.stem().ends_with('@')
    }
}

impl TryFrom<String> for UnitName {
    type Error = String;
    fn try_from(s: String) -> Result<Self, String> {
        UnitName::new(s)
    }
}

impl From<UnitName> for String {
    fn from(u: UnitName) -> String {
        u.0
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Escapes a path as systemd does for mount units: `/etc/cron.d/x` becomes `etc-cron.d-x`
/// (systemd.unit(5), "String escaping for inclusion in unit names").
pub fn escape_path(path: &str) -> String {
    let trimmed: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    if trimmed.is_empty() {
        return "-".into();
    }
    let mut out = String::new();
    for (i, byte) in trimmed.join("/").bytes().enumerate() {
        match byte {
            b'/' => out.push('-'),
            b'.' if i == 0 => out.push_str("\\x2e"),
            b if b.is_ascii_alphanumeric() || b":_.".contains(&b) => out.push(b as char),
            b => out.push_str(&format!("\\x{b:02x}")),
        }
    }
    out
}

/// The path that [`escape_path`] made `escaped` of, absolute.
pub fn unescape_path(escaped: &str) -> String {
    if escaped == "-" {
        return "/".into();
    }
    let mut out = vec![b'/'];
    let bytes = escaped.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let hex = escaped.get(i + 2..i + 4).filter(|_| bytes[i..].starts_with(b"\\x"));
        match (bytes[i], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (_, Some(byte)) => {
                out.push(byte);
                i += 4;
                continue;
            }
            (b'-', None) => out.push(b'/'),
            (byte, None) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Whose manager a unit belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// PID 1.
    System,
    /// The manager of this user (a name from `node.toml`).
    User(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::System => f.write_str("system"),
            Scope::User(name) => write!(f, "user {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_names_are_what_systemd_takes() {
        for good in ["a.service", "fleet-agent@x.service", "user@1000.service", "a\\x2db.mount", "x@.timer"] {
            assert!(UnitName::new(good).is_ok(), "{good}");
        }
        for bad in ["a", "a.svc", ".service", "@x.service", "a b.service", "a/b.service", "ä.service"] {
            assert!(UnitName::new(bad).is_err(), "{bad}");
        }
        assert!(UnitName::new(format!("{}.service", "a".repeat(250))).is_err());
    }

    #[test]
    fn paths_escape_as_systemd_escape_does() {
        assert_eq!(escape_path("/etc/cron.d/fleet-x"), "etc-cron.d-fleet\\x2dx");
        assert_eq!(escape_path("/"), "-");
        assert_eq!(escape_path("//.a//b"), "\\x2ea-b");
        for path in ["/etc/cron.d/fleet-x", "/", "/.a/b", "/var/spool/cron/crontabs/fl\u{e4}t"] {
            assert_eq!(unescape_path(&escape_path(path)), path);
        }
    }
}
