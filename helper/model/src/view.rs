//! The merged tree as text: valid TOML that means the same, each key with the file and line that it comes from.

use crate::document::{Document, Item, Table, Value, quoted, quoted_key};

/// Renders the merged tree. The contents of secret files are hidden.
pub fn render(doc: &Document) -> String {
    let mut out = String::new();
    // Lists of tables come last: what follows a [[header]] belongs to it.
    for (path, item, place) in doc.leaves() {
        if tables(item).is_none() {
            out.push_str(&format!("{path} = {} # from {}:{}\n", value(&item.value), place.file, place.line));
        }
    }
    for (path, item, _) in doc.leaves() {
        for (table, element) in tables(item).into_iter().flatten() {
            let place = doc.place(element.at);
            out.push_str(&format!("\n[[{path}]] # from {}:{}\n", place.file, place.line));
            for (key, entry) in table {
                let place = doc.place(entry.key_at);
                let shown = if hides(table, key) { hidden() } else { value(&entry.item.value) };
                out.push_str(&format!("{} = {shown} # from {}:{}\n", quoted_key(key), place.file, place.line));
            }
        }
    }
    out
}

/// The tables of a list that holds nothing else.
fn tables(item: &Item) -> Option<Vec<(&Table, &Item)>> {
    let Value::Array(items) = &item.value else { return None };
    if items.is_empty() {
        return None;
    }
    items
        .iter()
        .map(|i| match &i.value {
            Value::Table(t) => Some((t, i)),
            _ => None,
        })
        .collect()
}

fn hides(table: &Table, key: &str) -> bool {
    key == "content" && matches!(table.get("secret").map(|e| &e.item.value), Some(Value::Boolean(true)))
}

fn hidden() -> String {
    quoted("********")
}

/// A value on one line of TOML.
pub fn value(v: &Value) -> String {
    match v {
        Value::String(s) => quoted(s),
        Value::Integer(n) => n.to_string(),
        Value::Boolean(b) => b.to_string(),
        Value::Other(_, text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|i| value(&i.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Table(t) => {
            let fields: Vec<String> = t
                .iter()
                .map(|(k, e)| {
                    let shown = if hides(t, k) { hidden() } else { value(&e.item.value) };
                    format!("{} = {shown}", quoted_key(k))
                })
                .collect();
            if fields.is_empty() { "{}".into() } else { format!("{{ {} }}", fields.join(", ")) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Source, merge};

    #[test]
    fn the_merged_text_means_the_same_and_hides_secrets() {
        let text = "a.b = 1\nt = {}\nl = []\nm = ['x', 2]\n[[file]]\npath = '/a'\nsecret = true\ncontent = 'hush'\n\
                    [[file]]\ncontent = \"o\\\"pen\\n\"\n[p.q]\nr = [{ s = true, d = 1979-05-27 }]\n";
        let doc = merge(vec![Source { file: "/f".into(), text: text.into() }]).unwrap();
        let shown = render(&doc);
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("path = \"/a\" # from /f:6\n"), "{shown}");
        let again =
            merge(vec![Source { file: "/g".into(), text: shown.clone() }]).unwrap_or_else(|e| panic!("{e}\n{shown}"));
        let plain = |d: &Document| {
            d.leaves().into_iter().map(|(k, i, _)| format!("{k} = {}", value(&i.value))).collect::<Vec<_>>()
        };
        assert_eq!(plain(&again), plain(&doc));
    }
}
