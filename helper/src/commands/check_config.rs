//! The hidden verb `check-config`: says in full what the generator could only refuse, and fails; what
//! `mesh-mode-invalid.service` runs, so that `systemctl --failed` leads to file, line and remedy.

use super::{Context, cat_config};
use crate::show::{json, text};

/// Runs `mesh check-config`: mode, node, assigned manifests, state and pending; exit code 78 on a fault, all are told.
pub fn run(ctx: &Context) -> anyhow::Result<()> {
    cat_config::refuse_faults(&ctx.layout)?;
    if ctx.json {
        let body = serde_json::json!({ "faults": [] });
        return text::out(&format!("{:#}", json::document("check-config", &ctx.head(), &body)?));
    }
    text::out("mode, node, manifests and state are valid; run systemctl daemon-reload to have them read")
}
