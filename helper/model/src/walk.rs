//! Walking a document by hand: every fault is collected, and what is right is taken.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::document::{At, Cursor, Document, Item, Origins, Table, Value, clip};
use crate::nearest::nearest;
use std::collections::BTreeMap;

/// What is wrong and what would be right.
pub(crate) type Wrong = (String, String);

/// A walk over one document and the faults found on it.
#[derive(Debug)]
pub(crate) struct Walk<'d> {
    pub(crate) doc: &'d Document,
    faults: Vec<(At, Diagnostic)>,
    pub(crate) origins: Origins,
    cursor: Cursor,
}

impl<'d> Walk<'d> {
    pub(crate) fn new(doc: &'d Document) -> Walk<'d> {
        Walk { doc, faults: Vec::new(), origins: Origins::default(), cursor: Cursor::default() }
    }

    /// A fault at `at`, whose text is shown.
    pub(crate) fn fault(&mut self, at: At, what: impl Into<String>, remedy: impl Into<String>) {
        let value = self.doc.text(at);
        self.fault_as(at, value, what, remedy);
    }

    /// A fault at `at` with another text than what stands there.
    pub(crate) fn fault_as(
        &mut self,
        at: At,
        value: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let p = self.doc.place_from(at, &mut self.cursor);
        let d = Diagnostic {
            file: p.file,
            line: p.line,
            column: p.column,
            value: value.into(),
            what: what.into(),
            remedy: remedy.into(),
        };
        self.faults.push((at, d));
    }

    /// Remembers where `path` stands.
    pub(crate) fn keep(&mut self, path: impl Into<String>, at: At) {
        let place = self.doc.place_from(at, &mut self.cursor);
        self.origins.0.insert(path.into(), place);
    }

    /// The value, if nothing was found wrong.
    pub(crate) fn finish<T>(mut self, value: Option<T>) -> Result<(T, Origins), Diagnostics> {
        match value {
            Some(v) if self.faults.is_empty() => Ok((v, self.origins)),
            _ => {
                self.faults.sort_by_key(|(at, _)| *at);
                self.faults.dedup();
                Err(Diagnostics(self.faults.into_iter().map(|(_, d)| d).collect()))
            }
        }
    }

    /// Enters a table whose keys are `known`; each other key is a fault.
    pub(crate) fn section<'t>(&mut self, table: &'t Table, at: At, name: &str, known: &[&str]) -> Section<'t> {
        let mut meant = Vec::new();
        for (key, entry) in table {
            if known.contains(&key.as_str()) {
                continue;
            }
            let place = if name.is_empty() { String::new() } else { format!(" in {name}") };
            let remedy = match nearest(key, known.iter().copied()) {
                Some(near) => {
                    meant.push(near.to_string());
                    format!("did you mean {near}?")
                }
                None => format!("known here: {}", known.join(", ")),
            };
            self.fault_as(entry.key_at, clip(key), format!("unknown key {:?}{place}", clip(key)), remedy);
        }
        Section { table, at, name: name.to_string(), meant }
    }

    fn wrong_type(&mut self, key: &str, item: &Item, want: &str, remedy: String) {
        // A content may be a secret, whatever its type turned out to be.
        let value = if key == "content" { String::new() } else { self.doc.text(item.at) };
        self.fault_as(item.at, value, format!("{key} must be {want}, not {}", item.value.kind()), remedy);
    }
}

/// A table on the walk.
#[derive(Debug, Clone)]
pub(crate) struct Section<'d> {
    pub(crate) table: &'d Table,
    pub(crate) at: At,
    /// Its name in texts, `[predecessor]`; empty for the root.
    pub(crate) name: String,
    /// Known keys of which a slip of the pen stands here: they are not told as missing as well.
    meant: Vec<String>,
}

/// A value with where it stands.
pub(crate) type Placed<T> = (T, At);

impl<'d> Section<'d> {
    /// The value of `key`, of any type.
    pub(crate) fn item(&self, key: &str) -> Option<&'d Item> {
        self.table.get(key).map(|e| &e.item)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Where `key` stands, or the section's header.
    pub(crate) fn key_at(&self, key: &str) -> At {
        self.table.get(key).map_or(self.at, |e| e.key_at)
    }

    /// Says that `key` is missing.
    pub(crate) fn missing(&self, walk: &mut Walk<'_>, key: &str, remedy: impl Into<String>) {
        if self.meant.iter().any(|m| m == key) {
            return;
        }
        let place = if self.name.is_empty() { String::new() } else { format!(" in {}", self.name) };
        walk.fault_as(self.at, key, format!("{key} is missing{place}"), remedy);
    }

    pub(crate) fn string(&self, walk: &mut Walk<'_>, key: &str) -> Option<Placed<&'d str>> {
        let item = self.item(key)?;
        match &item.value {
            Value::String(s) => Some((s, item.at)),
            _ => {
                walk.wrong_type(key, item, "a text", format!("write {key} = \"…\""));
                None
            }
        }
    }

    pub(crate) fn required(&self, walk: &mut Walk<'_>, key: &str, example: &str) -> Option<Placed<&'d str>> {
        if !self.has(key) {
            self.missing(walk, key, format!("add {key} = {example}"));
        }
        self.string(walk, key)
    }

    /// A text that `parse` must take.
    pub(crate) fn parsed<T>(
        &self,
        walk: &mut Walk<'_>,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        let (text, at) = self.string(walk, key)?;
        taken(walk, at, parse(text))
    }

    pub(crate) fn boolean(&self, walk: &mut Walk<'_>, key: &str) -> Option<bool> {
        let item = self.item(key)?;
        match item.value {
            Value::Boolean(b) => Some(b),
            _ => {
                walk.wrong_type(key, item, "true or false", format!("write {key} = true or {key} = false"));
                None
            }
        }
    }

    /// A list of texts; empty where the key is absent.
    pub(crate) fn strings(&self, walk: &mut Walk<'_>, key: &str) -> Vec<Placed<&'d str>> {
        let mut out = Vec::new();
        for item in self.list(walk, key, "a list of texts", &format!("write {key} = [\"…\"]")) {
            match &item.value {
                Value::String(s) => out.push((s.as_str(), item.at)),
                _ => walk.wrong_type(&format!("each of {key}"), item, "a text", format!("write {key} = [\"…\"]")),
            }
        }
        out
    }

    /// A list of texts, each of which `parse` must take, without doubles.
    pub(crate) fn each<T: PartialEq + Ord + Clone>(
        &self,
        walk: &mut Walk<'_>,
        key: &str,
        mut parse: impl FnMut(&str) -> Result<T, Wrong>,
    ) -> Vec<Placed<T>> {
        let mut seen = BTreeMap::new();
        let mut out = Vec::new();
        for (text, at) in self.strings(walk, key) {
            let Some(value) = taken(walk, at, parse(text)) else { continue };
            match before(&mut seen, value.clone(), at) {
                Some(first) => twice(walk, at, &format!("{} in {key}", clip(text)), first),
                None => out.push((value, at)),
            }
        }
        out
    }

    /// A list of tables; empty where the key is absent.
    pub(crate) fn tables(&self, walk: &mut Walk<'_>, key: &str, remedy: &str) -> Vec<Placed<&'d Table>> {
        let mut out = Vec::new();
        for item in self.list(walk, key, "a list of tables", remedy) {
            match &item.value {
                Value::Table(t) => out.push((t, item.at)),
                _ => walk.wrong_type(&format!("each of {key}"), item, "a table", remedy.to_string()),
            }
        }
        out
    }

    pub(crate) fn table(&self, walk: &mut Walk<'_>, key: &str) -> Option<Placed<&'d Table>> {
        let item = self.item(key)?;
        match &item.value {
            Value::Table(t) => Some((t, item.at)),
            _ => {
                walk.wrong_type(key, item, "a table", format!("write [{key}] on a line of its own, its keys below"));
                None
            }
        }
    }

    fn list(&self, walk: &mut Walk<'_>, key: &str, want: &str, remedy: &str) -> &'d [Item] {
        let Some(item) = self.item(key) else { return &[] };
        match &item.value {
            Value::Array(items) => items,
            _ => {
                walk.wrong_type(key, item, want, remedy.to_string());
                &[]
            }
        }
    }

    /// `schema = 1`, first of all, in every layer that names one.
    pub(crate) fn schema(&self, walk: &mut Walk<'_>) {
        if !self.has("schema") {
            self.missing(walk, "schema", "add schema = 1 as the first line");
        }
        let doc = walk.doc;
        for item in doc.schemas() {
            match item.value {
                Value::Integer(1) => {}
                Value::Integer(n) => {
                    walk.fault(item.at, format!("schema {n} is not known to this release"), "write schema = 1");
                }
                _ => walk.wrong_type("schema", item, "a whole number", "write schema = 1".into()),
            }
        }
    }
}

/// The value, or its fault at `at`.
pub(crate) fn taken<T>(walk: &mut Walk<'_>, at: At, result: Result<T, Wrong>) -> Option<T> {
    match result {
        Ok(v) => Some(v),
        Err((what, remedy)) => {
            walk.fault(at, what, remedy);
            None
        }
    }
}

/// Notes that `key` stands at `at`; where it stood before, if it did.
pub(crate) fn before<K: Ord>(seen: &mut BTreeMap<K, At>, key: K, at: At) -> Option<At> {
    match seen.entry(key) {
        std::collections::btree_map::Entry::Occupied(first) => Some(*first.get()),
        std::collections::btree_map::Entry::Vacant(free) => {
            free.insert(at);
            None
        }
    }
}

/// Says that something stands twice.
pub(crate) fn twice(walk: &mut Walk<'_>, at: At, what: &str, first: At) {
    let p = walk.doc.place(first);
    walk.fault(at, format!("{what} twice; the first is at {p}"), "keep one of the two");
}

/// A port number of an item.
pub(crate) fn port(walk: &mut Walk<'_>, key: &str, item: &Item) -> Option<u16> {
    match &item.value {
        Value::Integer(n) => match u16::try_from(*n) {
            Ok(p) if p > 0 => Some(p),
            _ => {
                let shown = walk.doc.text(item.at);
                walk.fault(
                    item.at,
                    format!("{key} is {shown}, which is not a port"),
                    "a port is a number from 1 to 65535",
                );
                None
            }
        },
        Value::String(s) if s.parse::<u16>().is_ok() => {
            walk.wrong_type(key, item, "a whole number", format!("write {s} without quotes"));
            None
        }
        _ => {
            walk.wrong_type(key, item, "a whole number", "a port is a number from 1 to 65535".into());
            None
        }
    }
}
