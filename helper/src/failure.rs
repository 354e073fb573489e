//! From an error of the outer ring to what the operator is told.

use mesh_model::diagnostic::Diagnostics;
use mesh_model::failure::{Failure, Kind};

/// The failure in an error: the one it was made of, with the context around it, or a plain failure.
pub fn of(e: &anyhow::Error) -> Failure {
    let whole = format!("{e:#}");
    if let Some(f) = e.chain().find_map(|c| c.downcast_ref::<Failure>()).or_else(|| e.downcast_ref::<Failure>()) {
        let own = f.to_string();
        // Context that was put around it comes first; the failure's own words are said once.
        return match whole.strip_suffix(&own).and_then(|c| c.strip_suffix(": ")) {
            Some(context) => Failure { what: format!("{context}: {}", f.what), ..f.clone() },
            None => f.clone(),
        };
    }
    if let Some(d) = e.chain().find_map(|c| c.downcast_ref::<Diagnostics>()) {
        return d.clone().into();
    }
    Failure::new(Kind::Failed, whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_kind_survives_context() {
        let e: anyhow::Result<()> = Err(Failure::new(Kind::PortHeld, "held").remedy("stop it").into());
        let f = of(&e.context("adopting").unwrap_err());
        assert_eq!((f.kind, f.what.as_str(), f.remedy.as_deref()), (Kind::PortHeld, "adopting: held", Some("stop it")));
        let e: anyhow::Result<()> = Err(anyhow::anyhow!("plain"));
        let f = of(&e.context("around").unwrap_err());
        assert_eq!((f.kind, f.what.as_str()), (Kind::Failed, "around: plain"));
        let e = anyhow::anyhow!("cause").context(Failure::new(Kind::Failed, "outer"));
        assert_eq!(of(&e).kind, Kind::Failed);
    }
}
