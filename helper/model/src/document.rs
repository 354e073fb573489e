//! TOML files merged in layers, each key with the file, line and column that it comes from.
//!
//! Tables are merged key by key; anything else (a number, a text, a list) is replaced whole by the later layer. What
//! the keys mean is not known here: [`crate::node`] and [`crate::manifest`] walk the tree.

use crate::diagnostic::{Diagnostic, Diagnostics};
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};

/// One file's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its path as shown to people.
    pub file: String,
    /// Its whole text.
    pub text: String,
}

impl Source {
    /// A source from the bytes of a file; the fault names the first byte that is not UTF-8.
    pub fn from_bytes(file: impl Into<String>, bytes: Vec<u8>) -> Result<Source, Diagnostics> {
        let file = file.into();
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Source { file, text }),
            Err(e) => {
                let good = e.utf8_error().valid_up_to();
                let bytes = e.as_bytes();
                let head = String::from_utf8_lossy(&bytes[..good]);
                let (line, column) = (head.matches('\n').count() + 1, last_line(&head).chars().count() + 1);
                Err(Diagnostics(vec![Diagnostic {
                    file,
                    line,
                    column,
                    value: format!("\\x{:02x}", bytes.get(good).copied().unwrap_or_default()),
                    what: "this byte is not UTF-8".into(),
                    remedy: "save the file as UTF-8 text".into(),
                }]))
            }
        }
    }
}

fn last_line(text: &str) -> &str {
    text.rsplit_once('\n').map_or(text, |(_, l)| l)
}

/// Where something stands: a byte range of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct At {
    source: u32,
    start: u32,
    end: u32,
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The value.
    pub value: Value,
    /// Where it stands; of a table, its header.
    pub at: At,
}

/// A TOML value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    String(String),
    /// A whole number; one beyond `i128` is held as its nearest end.
    Integer(i128),
    /// `true` or `false`.
    Boolean(bool),
    /// A float or a date, as written: no key of ours takes one.
    Other(&'static str, String),
    /// A list.
    Array(Vec<Item>),
    /// A table.
    Table(Table),
}

impl Value {
    /// What it is, with its article.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::String(_) => "a text",
            Value::Integer(_) => "a whole number",
            Value::Boolean(_) => "true or false",
            Value::Other(kind, _) => kind,
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// A table: keys in alphabetical order.
pub type Table = BTreeMap<String, Entry>;

/// One key of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where the key stands.
    pub key_at: At,
    /// Its value.
    pub item: Item,
}

/// A place for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Place {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Where the parts of a validated file stand, by dotted path (`modules.0`, `file.2.path`).
///
/// Two are always equal: where a thing is written is no part of what it says.
#[derive(Debug, Clone, Default)]
pub struct Origins(pub BTreeMap<String, Place>);

impl PartialEq for Origins {
    fn eq(&self, _: &Origins) -> bool {
        true
    }
}

impl Eq for Origins {}

impl Origins {
    /// The place of a path; the file's beginning where it was never recorded.
    pub fn place(&self, path: &str, file: &str) -> Place {
        self.0.get(path).cloned().unwrap_or_else(|| Place { file: file.into(), line: 1, column: 1 })
    }
}

/// The last place that was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    source: u32,
    line: usize,
    offset: u32,
    column: usize,
}

/// Merged layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    sources: Vec<Source>,
    /// For each source, the byte offsets at which its lines begin.
    lines: Vec<Vec<u32>>,
    root: Table,
    /// What each layer says of its schema, also where a later one says otherwise.
    schemas: Vec<Item>,
}

impl Document {
    /// The merged tree.
    pub fn root(&self) -> &Table {
        &self.root
    }

    /// What each layer that names a `schema` says of it.
    pub fn schemas(&self) -> &[Item] {
        &self.schemas
    }

    /// The layers, lowest precedence first.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The beginning of the lowest layer, where a missing key is to be added.
    pub fn beginning(&self) -> At {
        At::default()
    }

    /// File, line and column of `at`.
    pub fn place(&self, at: At) -> Place {
        self.place_from(at, &mut Cursor::default())
    }

    /// The same; a cursor that is kept over many places of one long line makes each cost what lies between two.
    pub(crate) fn place_from(&self, at: At, cursor: &mut Cursor) -> Place {
        let (Some(source), Some(starts)) = (self.sources.get(at.source as usize), self.lines.get(at.source as usize))
        else {
            return Place { file: String::new(), line: 1, column: 1 };
        };
        let line = starts.partition_point(|s| *s <= at.start).max(1);
        let start = starts.get(line - 1).copied().unwrap_or(0);
        if (cursor.source, cursor.line) != (at.source, line) || cursor.offset > at.start {
            *cursor = Cursor { source: at.source, line, offset: start, column: 1 };
        }
        let between = source.text.get(cursor.offset as usize..at.start as usize);
        cursor.column += between.map_or(0, |text| text.chars().count());
        cursor.offset = at.start;
        Place { file: source.file.clone(), line, column: cursor.column }
    }

    /// The text at `at` as written: its first line, at most 80 characters.
    pub fn text(&self, at: At) -> String {
        let text = self.sources.get(at.source as usize).and_then(|s| s.text.get(at.start as usize..at.end as usize));
        clip(text.unwrap_or(""))
    }

    /// The file, the first line and the last line that `at` covers, for whoever must hide them.
    pub fn lines_of(&self, at: At) -> (String, usize, usize) {
        let first = self.place(at);
        let last = self.place(At { start: at.end.saturating_sub(1).max(at.start), ..at });
        (first.file, first.line, last.line)
    }

    /// Every value that is no table, with its path and where its key stands, in alphabetical order.
    pub fn leaves(&self) -> Vec<(String, &Item, Place)> {
        fn descend<'a>(doc: &'a Document, table: &'a Table, prefix: &str, out: &mut Vec<(String, &'a Item, Place)>) {
            for (key, entry) in table {
                let path = if prefix.is_empty() { quoted_key(key) } else { format!("{prefix}.{}", quoted_key(key)) };
                match &entry.item.value {
                    Value::Table(t) if !t.is_empty() => descend(doc, t, &path, out),
                    _ => out.push((path, &entry.item, doc.place(entry.key_at))),
                }
            }
        }
        let mut out = Vec::new();
        descend(self, &self.root, "", &mut out);
        out
    }
}

/// A key as TOML writes it: bare where it can be.
pub fn quoted_key(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if bare { key.to_string() } else { quoted(key) }
}

/// A text as a TOML basic string.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The first line of a text, at most 80 characters of it.
pub(crate) fn clip(text: &str) -> String {
    let line = text.lines().next().unwrap_or("");
    let mut out: String = line.chars().take(80).collect();
    if out.len() < line.len() || text.lines().nth(1).is_some() {
        out.push('…');
    }
    out
}

/// Merges layers, lowest precedence first; every syntax error of every layer is in the answer.
pub fn merge(sources: Vec<Source>) -> Result<Document, Diagnostics> {
    let mut lines = Vec::with_capacity(sources.len());
    let mut root = Table::new();
    let mut schemas = Vec::new();
    let mut faults = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        // Offsets are kept in 32 bits; nobody writes a larger file than that by hand.
        if source.text.len() > (1 << 24) {
            faults.push(Diagnostic {
                file: source.file.clone(),
                line: 1,
                column: 1,
                value: format!("{} bytes", source.text.len()),
                what: "the file is larger than 16 MiB".into(),
                remedy: "keep large contents in templates".into(),
            });
            continue;
        }
        let starts = std::iter::once(0)
            .chain(source.text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(n, _)| n as u32 + 1))
            .collect::<Vec<u32>>();
        lines.push(starts);
        let (parsed, errors) = DeTable::parse_recoverable(&source.text);
        if errors.is_empty() {
            let layer = table(parsed.into_inner(), i as u32);
            schemas.extend(layer.get("schema").map(|e| e.item.clone()));
            overlay(&mut root, layer);
        } else {
            faults.extend(syntax(source, &errors));
        }
    }
    if faults.is_empty() { Ok(Document { sources, lines, root, schemas }) } else { Err(Diagnostics(faults)) }
}

fn table(parsed: DeTable<'_>, source: u32) -> Table {
    parsed
        .into_iter()
        .map(|(key, value)| {
            let key_at = at(key.span(), source);
            (key.into_inner().into_owned(), Entry { key_at, item: item(value, source) })
        })
        .collect()
}

fn item(spanned: toml::Spanned<DeValue<'_>>, source: u32) -> Item {
    let at = at(spanned.span(), source);
    let value = match spanned.into_inner() {
        DeValue::String(s) => Value::String(s.into_owned()),
        DeValue::Integer(n) => Value::Integer(
            i128::from_str_radix(n.as_str(), n.radix())
                .unwrap_or_else(|_| if n.as_str().starts_with('-') { i128::MIN } else { i128::MAX }),
        ),
        DeValue::Boolean(b) => Value::Boolean(b),
        DeValue::Float(f) => Value::Other("a fraction", f.as_str().to_string()),
        DeValue::Datetime(d) => Value::Other("a date or time", d.to_string()),
        DeValue::Array(a) => Value::Array(a.into_iter().map(|v| item(v, source)).collect()),
        DeValue::Table(t) => Value::Table(table(t, source)),
    };
    Item { value, at }
}

fn at(span: std::ops::Range<usize>, source: u32) -> At {
    At { source, start: span.start as u32, end: span.end as u32 }
}

/// Lays `upper` over `lower`.
fn overlay(lower: &mut Table, upper: Table) {
    for (key, entry) in upper {
        match lower.get_mut(&key) {
            Some(old) => {
                if let (Value::Table(a), Value::Table(_)) = (&mut old.item.value, &entry.item.value) {
                    if let Value::Table(b) = entry.item.value {
                        overlay(a, b);
                    }
                } else {
                    *old = entry;
                }
            }
            None => {
                lower.insert(key, entry);
            }
        }
    }
}

/// The syntax errors worth telling: every double key, and the first of any other kind (what follows one is noise).
fn syntax(source: &Source, errors: &[toml::de::Error]) -> Vec<Diagnostic> {
    // What stands in a file that declares a secret is not repeated: where the text is broken, nobody can say what
    // part of it the secret is.
    let secret = source.text.contains("secret");
    let mut other_told = false;
    let mut out = Vec::new();
    let mut errors: Vec<&toml::de::Error> = errors.iter().collect();
    // Of two at one place, what is wrong with a text is the cause of what is wrong around it.
    errors.sort_by_key(|e| (e.span().map_or(0, |s| s.start), !e.message().contains("string, expected")));
    for e in errors {
        let double = e.message() == "duplicate key";
        if !double && std::mem::replace(&mut other_told, true) {
            continue;
        }
        let span = e.span().unwrap_or(0..0);
        let start =
            (0..=span.start.min(source.text.len())).rev().find(|i| source.text.is_char_boundary(*i)).unwrap_or(0);
        let head = &source.text[..start];
        let end = span.end.clamp(start, source.text.len());
        let written = source.text.get(start..end).unwrap_or("");
        let (what, remedy) = explain(e.message(), written, secret);
        out.push(Diagnostic {
            file: source.file.clone(),
            line: head.matches('\n').count() + 1,
            column: last_line(head).chars().count() + 1,
            value: if secret && !double { String::new() } else { clip(written) },
            what,
            remedy,
        });
    }
    out.sort_by_key(|d| (d.line, d.column));
    out
}

/// A parser's message in our words where ours say more, with what to do.
fn explain(message: &str, written: &str, secret: bool) -> (String, String) {
    let hidden = if secret { "" } else { written };
    if message == "duplicate key" {
        return (format!("key {} twice in one table", clip(written)), "keep one of the two".into());
    }
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let remedy = if what.starts_with("string values must be quoted") {
        "a value is a \"text\" in quotes, a number, true, false, a [list] or a { table }".to_string()
    } else if what.starts_with("invalid literal string") || what.starts_with("invalid basic string") {
        "close the text with the quote that it began with, on the same line".into()
    } else if what.starts_with("unclosed table") || what.starts_with("unclosed array") {
        "close it with ]".into()
    } else if expected.is_empty() {
        "see https://toml.io for the syntax".into()
    } else {
        format!("here may stand: {expected}")
    };
    let what = if hidden.trim().is_empty() { what.to_string() } else { format!("{what}: {:?}", clip(hidden)) };
    (format!("not TOML: {what}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &str, text: &str) -> Source {
        Source { file: file.into(), text: text.into() }
    }

    #[test]
    fn later_layers_win_and_keep_their_origin() {
        let doc = merge(vec![
            source("/usr/a", "x = 1\n[t]\na = 1\nb = [1, 2]\n[t.u]\nc = 1\n"),
            source("/etc/b", "[t]\nb = [3]\n  ü = 1\n[t.u]\nd = 2\n"),
        ])
        .unwrap_err();
        // A bare key has no umlaut.
        assert_eq!((doc.0[0].file.as_str(), doc.0[0].line, doc.0[0].column), ("/etc/b", 3, 3));

        let doc = merge(vec![
            source("/usr/a", "x = 1\n[t]\na = 1\nb = [1, 2]\n[t.u]\nc = 1\n"),
            source("/etc/b", "[t]\nb = [3]\n[t.u]\n\"ü\" = 'ä' #\nd = 2\n"),
        ])
        .unwrap();
        let leaves: Vec<String> = doc.leaves().into_iter().map(|(k, _, p)| format!("{k} {p}")).collect();
        assert_eq!(
            leaves,
            [
                "t.a /usr/a:3:1",
                "t.b /etc/b:2:1",
                "t.u.c /usr/a:6:1",
                "t.u.d /etc/b:5:1",
                "t.u.\"ü\" /etc/b:4:1",
                "x /usr/a:1:1"
            ]
        );
        let Value::Table(t) = &doc.root()["t"].item.value else { panic!() };
        let Value::Table(u) = &t["u"].item.value else { panic!() };
        assert_eq!(doc.text(u["ü"].item.at), "'ä'");
        assert_eq!(doc.place(u["ü"].item.at).column, 7);
    }

    #[test]
    fn bytes_that_are_no_text_are_placed() {
        let e = Source::from_bytes("/f", b"a = 1\nb\xc3\xbc\xff".to_vec()).unwrap_err();
        assert_eq!((e.0[0].line, e.0[0].column, e.0[0].value.as_str()), (2, 3, "\\xff"));
    }
}
