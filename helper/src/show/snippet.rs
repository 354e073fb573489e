//! Faults as a reader sees them: the line of the file with a caret under what is wrong, and what would be right.

use crate::show::text::{BAD, GOOD, HEAD, styled};
use mesh_model::diagnostic::{Diagnostic, Diagnostics};
use mesh_model::secret::Masked;
use std::collections::BTreeMap;

/// All faults, each with its line. `texts` has the files' texts by the name that the faults use; a fault of a file that
/// is not in it, or whose line may not be shown, is told in words alone.
pub fn render(all: &Diagnostics, texts: &BTreeMap<String, String>) -> String {
    let masked: BTreeMap<&str, Option<Masked>> =
        texts.iter().map(|(file, text)| (file.as_str(), Masked::of(text))).collect();
    let mut out = String::new();
    for d in &all.0 {
        out.push_str(&format!("{}: {}\n", styled(BAD, "error"), styled(HEAD, &d.what)));
        out.push_str(&format!("  --> {}:{}:{}\n", d.file, d.line, d.column));
        let line = match (masked.get(d.file.as_str()), texts.get(&d.file)) {
            (Some(Some(m)), Some(text)) => m.line(text, d.line, d.column),
            _ => None,
        };
        if let Some((line, column)) = line {
            out.push_str(&source_line(d, line, column));
        }
        out.push_str(&format!("  {}: {}\n\n", styled(GOOD, "help"), d.remedy));
    }
    out
}

/// The longest line shown whole; of a longer one, what is around the fault.
const WIDTH: usize = 100;

fn source_line(d: &Diagnostic, line: &str, column: usize) -> String {
    let number = d.line.to_string();
    let gutter = " ".repeat(number.len());
    // Tabs and control characters have no width that one could count on.
    let chars: Vec<char> = line.trim_end_matches('\r').chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let from = if chars.len() > WIDTH { column.saturating_sub(WIDTH / 2) } else { 0 };
    let shown: String = chars.iter().skip(from).take(WIDTH).collect();
    let value = d.value.trim_end_matches('…').chars().count();
    let at = column.saturating_sub(1).saturating_sub(from);
    let rest = shown.chars().count().saturating_sub(at);
    // The mark spans the value where the value is what stands there.
    let there: String = shown.chars().skip(at).take(value).collect();
    let length =
        if !d.value.is_empty() && there == d.value.trim_end_matches('…') { value.min(rest).max(1) } else { 1 };
    format!(" {gutter} |\n {number} | {shown}\n {gutter} | {}{}\n", " ".repeat(at), styled(BAD, &"^".repeat(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn fault(line: usize, column: usize, value: &str) -> Diagnostics {
        Diagnostics(vec![Diagnostic {
            file: "/f".into(),
            line,
            column,
            value: value.into(),
            what: "wrong".into(),
            remedy: "right".into(),
        }])
    }

    #[test]
    fn the_caret_stands_under_the_value() {
        let texts = BTreeMap::from([("/f".to_string(), "a = 1\nü\t= rolle\n".to_string())]);
        assert_eq!(
            plain(&render(&fault(2, 5, "rolle"), &texts)),
            "error: wrong\n  --> /f:2:5\n   |\n 2 | ü = rolle\n   |     ^^^^^\n  help: right\n\n"
        );
        let long = BTreeMap::from([("/f".to_string(), format!("{}bad{}", "x".repeat(500), "y".repeat(500)))]);
        let shown = plain(&render(&fault(1, 501, "bad"), &long));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[4].find('^'), lines[3].find("bad"), "{shown}");
        assert!(plain(&render(&fault(9, 9, ""), &texts)).contains("-->"));
    }

    #[test]
    fn a_secret_is_in_no_snippet() {
        for text in ["[[file]]\nsecret = true\ncontent = 'hush'\n", "[[file]]\nsecret = true\ncontent = 'hush\n"] {
            let texts = BTreeMap::from([("/f".to_string(), text.to_string())]);
            assert!(!render(&fault(3, 11, ""), &texts).contains("hush"));
        }
    }
}
