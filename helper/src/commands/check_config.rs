//! The hidden verb `check-config`: says in full what the generator could only refuse, and fails; what
//! `mesh-mode-invalid.service` runs, so that `systemctl --failed` leads to file, line and remedy.

use super::Context;
use crate::adapters::config;
use crate::show::text;

/// Runs `mesh check-config`: mode, node, manifests and state; exit code 78 on a fault.
pub fn run(ctx: &Context) -> anyhow::Result<()> {
    config::read_mode(&ctx.layout)?;
    config::load(&ctx.layout)?;
    config::read_state(&ctx.layout)?;
    text::out("mode, node, manifests and state are valid; run systemctl daemon-reload to have them read")
}
