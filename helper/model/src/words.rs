//! Checks of single words that operators write: paths, names, modes, times. Each says what would be right.

use crate::unit::UnitName;
use crate::walk::Wrong;
use std::time::Duration;

fn wrong<T>(what: impl Into<String>, remedy: impl Into<String>) -> Result<T, Wrong> {
    Err((what.into(), remedy.into()))
}

/// An absolute path of a thing (not `/`), written the one way that it can be compared by.
pub(crate) fn path(text: &str) -> Result<String, Wrong> {
    if text.is_empty() {
        return wrong("an empty path", "write an absolute path, /…");
    }
    if !text.starts_with('/') {
        return wrong(
            format!("path {text:?} is not absolute"),
            format!("write it from the root, /…/{}", text.trim_start_matches("./")),
        );
    }
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return wrong(format!("path {text:?} holds the control character {c:?}"), "write the path without it");
    }
    if text.len() > 4095 || text.split('/').any(|p| p.len() > 255) {
        return wrong("the path is longer than Linux takes", "4095 bytes, 255 for each part");
    }
    if text == "/" {
        return wrong("the path is the root", "name a thing below it");
    }
    let mut clean: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                clean.pop();
            }
            p => clean.push(p),
        }
    }
    let clean = format!("/{}", clean.join("/"));
    let fault = if text.split('/').any(|p| p == "..") {
        "has .. in it"
    } else if text.split('/').any(|p| p == ".") {
        "has . in it"
    } else if text.contains("//") {
        "has // in it"
    } else if text.ends_with('/') {
        "ends in /"
    } else {
        return Ok(text.to_string());
    };
    wrong(format!("path {text:?} {fault}"), format!("write {clean:?} if that is meant"))
}

/// A path below the file's own folder.
pub(crate) fn relative(text: &str) -> Result<String, Wrong> {
    let bad = text.is_empty() || text.starts_with('/') || text.chars().any(char::is_control);
    if bad || text.split('/').any(|p| matches!(p, "" | "." | "..")) {
        return wrong(
            format!("{text:?} is not a path below the folder of this file"),
            "write a relative path such as hosts.j2, without . and ..",
        );
    }
    Ok(text.to_string())
}

/// A unit name, not of a template.
pub(crate) fn unit(text: &str) -> Result<UnitName, Wrong> {
    let name = UnitName::new(text).map_err(split)?;
    if name.is_template() {
        let (stem, kind) = (name.stem().trim_end_matches('@'), name.kind());
        return wrong(
            format!("{text:?} is a template, which cannot run itself"),
            format!("name its instance, {stem}@INSTANCE.{kind}"),
        );
    }
    Ok(name)
}

/// An error in one text, `WHAT; REMEDY`, in its two parts.
pub(crate) fn split(text: String) -> Wrong {
    match text.split_once("; ") {
        Some((what, remedy)) => (what.into(), remedy.into()),
        None => (text, "see mesh-node.toml(5)".into()),
    }
}

/// Permission bits in octal.
pub(crate) fn mode(text: &str) -> Result<u32, Wrong> {
    let good = (3..=5).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    match u32::from_str_radix(text, 8) {
        Ok(bits) if good && bits <= 0o7777 => Ok(bits),
        _ => wrong(format!("{text:?} is not permission bits"), "write three or four octal digits, such as \"0644\""),
    }
}

/// A user's or group's name, or its number.
pub(crate) fn account(text: &str) -> Result<String, Wrong> {
    let mut bytes = text.bytes();
    let first = bytes.next();
    let number = text.len() <= 10 && text.parse::<u32>().is_ok_and(|n| n != u32::MAX) && first != Some(b'+');
    // What useradd of Debian takes by default, and a number (shadow, libmisc/chkname.c).
    let body = text.strip_suffix('$').unwrap_or(text);
    let name = first.is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && text.len() <= 32
        && body.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-' || b == b'.');
    if number || name {
        Ok(text.to_string())
    } else {
        wrong(format!("{text:?} is not a user or group name"), "write a name such as root, or a number")
    }
}

/// A node's name.
pub(crate) fn node(text: &str) -> Result<String, Wrong> {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if text.len() <= 64 && text.split('.').all(label) {
        return Ok(text.to_string());
    }
    let lower = text.to_ascii_lowercase();
    let remedy = if lower != text && lower.split('.').all(label) {
        format!("write it in lower case, {lower:?}")
    } else {
        "use a-z, 0-9 and -, in parts divided by dots, at most 64 in all".into()
    };
    wrong(format!("{text:?} is not a node name"), remedy)
}

/// An interface's name (Linux net/core/dev.c, `dev_valid_name`).
pub(crate) fn interface(text: &str) -> Result<String, Wrong> {
    let bad = text.is_empty()
        || text.len() > 15
        || text == "."
        || text == ".."
        || text.chars().any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if bad {
        return wrong(
            format!("{text:?} is not an interface name"),
            "a name has 1 to 15 bytes, no slash, colon or space",
        );
    }
    Ok(text.to_string())
}

/// The longest time that a key takes.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A time span in systemd's words, `5min`, `90s`, `1h 30min`; over nothing, at most a day.
pub(crate) fn duration(text: &str) -> Result<Duration, Wrong> {
    let bad = |why: &str| wrong(format!("{text:?} {why}"), "write a time such as \"90s\", \"5min\" or \"1h 30min\"");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return bad("is not a time");
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, next) = after.split_at(letters);
        let seconds = match unit {
            "s" | "sec" | "second" | "seconds" => 1,
            "m" | "min" | "minute" | "minutes" => 60,
            "h" | "hr" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 24 * 3600,
            "" => return bad("has no unit"),
            _ => return bad("is not a time"),
        };
        let Some(span) = number.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds)) else {
            return bad("is not a time");
        };
        total = total.saturating_add(Duration::from_secs(span));
        rest = next.trim_start();
    }
    if total.is_zero() {
        return bad("is no time at all");
    }
    if total > LONGEST {
        return bad("is longer than a day");
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_form() {
        for good in ["/etc/hosts", "/home/a b/ü", "/...", "/a/.b/c.."] {
            assert_eq!(path(good), Ok(good.to_string()));
        }
        for (bad, hint) in [
            ("", "/…"),
            ("etc/hosts", "/…/etc/hosts"),
            ("./x", "/…/x"),
            ("/", "below"),
            ("/a/../b", "\"/b\""),
            ("/a/./b", "\"/a/b\""),
            ("/a//b", "\"/a/b\""),
            ("/a/", "\"/a\""),
            ("/a\0b", "without"),
        ] {
            let (_, remedy) = path(bad).unwrap_err();
            assert!(remedy.contains(hint), "{bad:?}: {remedy}");
        }
        assert!(path(&format!("/{}", "a".repeat(256))).is_err());
        assert!(path(&"/a".repeat(3000)).is_err());
    }

    #[test]
    fn times_are_systemds() {
        for (text, seconds) in
            [("5min", 300), ("90s", 90), ("1h 30min", 5400), ("1h30m", 5400), ("2 min", 120), ("1d", 86400)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in [
            "",
            "5",
            "min",
            "0s",
            "2d",
            "-5min",
            "5 parsecs",
            "99999999999999999999s",
            "18446744073709551615h",
            "5min,",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_accounts_and_names() {
        for (text, bits) in [("0644", 0o644), ("644", 0o644), ("04755", 0o4755)] {
            assert_eq!(mode(text), Ok(bits));
        }
        for bad in ["", "64", "0o644", "888", "rw-r--r--", "-644", "17777"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
        for good in ["root", "_apt", "www-data", "0", "1000", "m$"] {
            assert!(account(good).is_ok(), "{good}");
        }
        for bad in ["", "Root", "a b", "-x", "+5", "4294967295", "99999999999", "a/b"] {
            assert!(account(bad).is_err(), "{bad}");
        }
        for good in ["alpha", "a-1.example.org", "1a"] {
            assert!(node(good).is_ok(), "{good}");
        }
        for bad in ["", "Alpha", "a_b", "-a", "a.", "a..b", "ä"] {
            assert!(node(bad).is_err(), "{bad}");
        }
        assert!(unit("x@.service").unwrap_err().1.contains("x@INSTANCE.service"));
    }
}
