//! Every JSON document has the same head: `schema`, `node`, `mode`, `generated_at`.

use mesh_model::failure::Failure;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// What heads every document.
#[derive(Debug, Clone)]
pub struct Head {
    /// The node's name, or the host's where there is no node.toml.
    pub node: String,
    /// The mode's word, or `invalid`.
    pub mode: String,
}

/// The document `mesh.VERB/1` with the fields of `body` (which must be a map) after the head.
pub fn document(verb: &str, head: &Head, body: &impl Serialize) -> anyhow::Result<Value> {
    let mut map = Map::new();
    map.insert("schema".into(), json!(format!("mesh.{verb}/1")));
    map.insert("node".into(), json!(head.node));
    map.insert("mode".into(), json!(head.mode));
    map.insert("generated_at".into(), json!(jiff::Timestamp::now().to_string()));
    match serde_json::to_value(body)? {
        Value::Object(fields) => map.extend(fields),
        other => anyhow::bail!("the body of mesh.{verb}/1 is not a map: {other}"),
    }
    Ok(Value::Object(map))
}

/// The document `mesh.error/1`.
pub fn error(failure: &Failure) -> Value {
    json!({
        "schema": "mesh.error/1",
        "code": failure.kind.exit_code(),
        "kind": failure.kind.word(),
        "what": failure.what,
        "where": failure.place,
        "remedy": failure.remedy,
    })
}
