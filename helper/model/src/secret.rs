//! What of a file must not be shown: whatever may be the content of a `[[file]]` that says `secret`.

use crate::nearest::nearest;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// What stands in a hidden value's place.
const MASK: &str = "\"********\"";

/// The keys of a secret `[[file]]` whose values may be shown; any other may be the content with a slip of the pen.
const SHOWN: [&str; 7] = ["path", "template", "owner", "group", "mode", "validator", "secret"];

/// A text with its secrets hidden and its lines where they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masked {
    text: String,
    /// Byte ranges of the original that are hidden, in order.
    hidden: Vec<Range<usize>>,
}

impl Masked {
    /// Hides what must not be shown. `None`: the text is broken and speaks of a secret, so nobody can say what part of
    /// it may be shown.
    pub fn of(text: &str) -> Option<Masked> {
        let (root, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            return (!text.contains("secret")).then(|| Masked { text: text.into(), hidden: Vec::new() });
        }
        let mut hidden = Vec::new();
        if let Some(DeValue::Array(files)) = root.get_ref().get("file").map(|f| f.get_ref()) {
            for file in files.iter() {
                if let DeValue::Table(t) = file.get_ref() {
                    hide(t, &mut hidden);
                }
            }
        }
        hidden.sort_by_key(|r: &Range<usize>| r.start);
        let mut masked = String::with_capacity(text.len());
        let mut done = 0;
        for range in &hidden {
            masked.push_str(&text[done..range.start]);
            masked.push_str(MASK);
            masked.extend(text[range.clone()].matches('\n'));
            done = range.end;
        }
        masked.push_str(&text[done..]);
        Some(Masked { text: masked, hidden })
    }

    /// The text to show.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// One line of it (from 1), and where a column of the original (in characters, from 1) is in it now.
    pub fn line(&self, original: &str, line: usize, column: usize) -> Option<(&str, usize)> {
        let shown = self.text.split('\n').nth(line.checked_sub(1)?)?;
        let start: usize = original.split('\n').take(line - 1).map(|l| l.len() + 1).sum();
        let at = original.get(start..)?.char_indices().nth(column - 1).map_or(original.len(), |(i, _)| start + i);
        let mut moved = column as i64;
        for range in self.hidden.iter().filter(|r| r.start >= start && r.start < at) {
            let gone = original.get(range.start..range.end.min(at)).map_or(0, |t| t.chars().count());
            moved += MASK.len() as i64 - gone as i64;
        }
        Some((shown, moved.max(1) as usize))
    }
}

fn hide(file: &DeTable<'_>, hidden: &mut Vec<Range<usize>>) {
    // A slip in the word itself still means it.
    let says = |key: &str| key == "secret" || nearest(key, ["secret"]).is_some();
    let secret = file.iter().any(|(k, v)| says(k.get_ref()) && !matches!(v.get_ref(), DeValue::Boolean(false)));
    if !secret {
        return;
    }
    for (key, value) in file {
        if !SHOWN.contains(&key.get_ref().as_ref()) && !matches!(value.get_ref(), DeValue::Boolean(_)) {
            // A dotted key below it has its table's span on the key alone: its leaves are what is hidden.
            leaves(value, hidden);
        }
    }
}

fn leaves(value: &toml::Spanned<DeValue<'_>>, hidden: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(t) => t.values().for_each(|v| leaves(v, hidden)),
        DeValue::Array(a) => a.iter().for_each(|v| leaves(v, hidden)),
        _ => hidden.push(value.span()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_lines_stay() {
        let text = "[[file]]\npath = \"/a\"\nsecret = true\ncontent = \"\"\"\ntop\nhush\n\"\"\" # c\nx = 1\n[[file]]\ncontent = 'open'\n";
        let masked = Masked::of(text).unwrap();
        assert!(!masked.text().contains("hush") && !masked.text().contains("top"));
        assert!(masked.text().contains("'open'"));
        assert_eq!(masked.text().split('\n').count(), text.split('\n').count());
        assert_eq!(masked.text().split('\n').nth(8), Some("[[file]]"));
        for (hidden, text) in [
            (true, "[[file]]\nsecrt = true\nconten = 'hush'\n"),
            (true, "[[file]]\nsecret = 'yes'\ncontent = ['hush']\n"),
            (true, "[[file]]\nsecret = true\na.b = 'hush'\n"),
            (true, "[[file]]\nsecret = true\na = { b = [{ c = 'hush' }] }\n"),
            (false, "[[file]]\nsecret = false\ncontent = 'hush'\n"),
            (false, "file = 1\ncontent = 'hush'\n"),
        ] {
            assert_eq!(!Masked::of(text).unwrap().text().contains("hush"), hidden, "{text}");
        }
        assert_eq!(Masked::of("[[file]]\nsecret = true\ncontent = 'hush\n"), None);
        assert!(Masked::of("a = \n").is_some());
    }

    #[test]
    fn columns_follow_the_mask() {
        let text = "file = [{ content = 'ühush', secret = true, extra = 1 }]\n";
        let masked = Masked::of(text).unwrap();
        for word in ["content", "secret", "extra"] {
            let column = text[..text.find(word).unwrap()].chars().count() + 1;
            let (line, moved) = masked.line(text, 1, column).unwrap();
            assert_eq!(line.chars().skip(moved - 1).take(word.len()).collect::<String>(), word, "{line}");
        }
    }
}
