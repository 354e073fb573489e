//! The verb `cat-config`: what was written, from where, and what is wrong with it.

use crate::adapters::config::{self, ConfigFile, Loaded};
use crate::cli;
use crate::commands::Context;
use crate::layout::Layout;
use crate::show::json::{self, Head};
use crate::show::snippet;
use crate::show::text;
use mesh_model::diagnostic::{Diagnostic, Diagnostics};
use mesh_model::document::Place;
use mesh_model::failure::{Failure, Kind};
use mesh_model::layers::DIRS;
use mesh_model::nearest::nearest;
use mesh_model::secret::Masked;
use mesh_model::{node, view};
use serde::Serialize;

/// One file in `mesh.cat-config/1`.
#[derive(Debug, Serialize)]
struct File<'a> {
    path: &'a str,
    /// Whether it only puts the files of its name out of force.
    masks: bool,
    overrides: &'a [String],
    /// Its text, secrets hidden.
    content: String,
}

/// One key in `mesh.cat-config/1`.
#[derive(Debug, Serialize)]
struct Key {
    key: String,
    /// The value as TOML, secrets hidden.
    value: String,
    #[serde(flatten)]
    place: Place,
}

/// The body of `mesh.cat-config/1`.
#[derive(Debug, Serialize)]
struct Body<'a> {
    /// The files of node.toml, lowest layer first.
    files: Vec<File<'a>>,
    /// The merged keys of node.toml.
    keys: Vec<Key>,
    /// The manifests in force, by module.
    catalogue: Vec<Module<'a>>,
    /// Faults of manifests that this node is not assigned.
    warnings: &'a [Diagnostic],
}

/// One module in `mesh.cat-config/1`.
#[derive(Debug, Serialize)]
struct Module<'a> {
    module: &'a str,
    assigned: bool,
    #[serde(flatten)]
    file: File<'a>,
}

/// Runs `cat-config`.
pub fn run(ctx: &Context, args: &cli::CatConfig) -> anyhow::Result<()> {
    refuse_faults(&ctx.layout)?;
    let what = args.what.as_deref();
    let Some(loaded) = config::load(&ctx.layout)? else {
        return Err(Failure::new(Kind::Failed, format!("there is no node.toml in {}", DIRS.join(", ")))
            .remedy("mesh init writes one from what it finds")
            .into());
    };
    if let Some(name) = what.filter(|w| *w != "node") {
        if !loaded.manifest_files.keys().any(|m| m.as_str() == name) {
            let known = loaded.manifest_files.keys().map(|m| m.as_str()).chain(["node"]);
            let remedy = nearest(name, known)
                .map_or("name node, or a module of the catalogue".into(), |n| format!("did you mean {n}?"));
            return Err(Failure::new(Kind::Usage, format!("{name:?} is not in the catalogue")).remedy(remedy).into());
        }
    }
    if ctx.json {
        let mode = config::read_mode(&ctx.layout)?;
        let head = Head { node: loaded.node.name.clone(), mode: mode.word().into() };
        let document = json::document("cat-config", &head, &body(&loaded, what))?;
        return text::out(&serde_json::to_string_pretty(&document)?);
    }
    text::out(human(&loaded, what).trim_end())
}

/// Prints every fault with its line to standard error and fails with them (exit code 78), if there are any.
pub(crate) fn refuse_faults(layout: &Layout) -> anyhow::Result<()> {
    let faults = config::faults(layout)?;
    if faults.is_empty() {
        return Ok(());
    }
    let faults = Diagnostics(faults);
    text::err(snippet::render(&faults, &config::texts(layout)?).trim_end())?;
    Err(faults.into())
}

/// A file's text with its secrets hidden. What was loaded is valid, so that it can be said what part is one.
fn shown(file: &ConfigFile) -> String {
    Masked::of(&file.text).map_or_else(String::new, |m| m.text().to_string())
}

fn file(file: &ConfigFile) -> File<'_> {
    File { path: &file.path, masks: file.masks, overrides: &file.overrides, content: shown(file) }
}

/// The manifests that were asked for.
fn modules<'a>(loaded: &'a Loaded, what: Option<&'a str>) -> impl Iterator<Item = (&'a str, bool, &'a ConfigFile)> {
    loaded
        .manifest_files
        .iter()
        .filter(move |(name, _)| what.is_none_or(|w| w == name.as_str()))
        .map(|(name, file)| (name.as_str(), loaded.node.modules.contains(name), file))
}

fn body<'a>(loaded: &'a Loaded, what: Option<&'a str>) -> Body<'a> {
    let node = what.is_none_or(|w| w == "node");
    let keys = loaded.document.leaves().into_iter().map(|(key, item, place)| Key {
        key,
        value: view::value(&item.value),
        place,
    });
    Body {
        files: loaded.sources.iter().filter(|_| node).map(file).collect(),
        keys: keys.filter(|_| node).collect(),
        catalogue: modules(loaded, what)
            .map(|(module, assigned, f)| Module { module, assigned, file: file(f) })
            .collect(),
        warnings: &loaded.unassigned_faults,
    }
}

fn human(loaded: &Loaded, what: Option<&str>) -> String {
    let mut out = String::new();
    let mut section = |title: &str, content: &str| {
        out.push_str(&text::styled(text::HEAD, &format!("# {title}")));
        out.push('\n');
        if !content.is_empty() {
            out.push_str(content.trim_end());
            out.push('\n');
        }
        out.push('\n');
    };
    let one = |f: &ConfigFile| {
        let overrides =
            if f.overrides.is_empty() { String::new() } else { format!(" (overrides {})", f.overrides.join(", ")) };
        let masks = if f.masks { " (empty: it only puts others out of force)" } else { "" };
        format!("{}{overrides}{masks}", f.path)
    };
    if what.is_none_or(|w| w == "node") {
        for f in &loaded.sources {
            section(&one(f), &shown(f));
        }
        section("merged: node.toml", &view::render(&loaded.document));
        let standard: String = node::FoundationPort::ALL
            .into_iter()
            .filter(|p| !loaded.node.origins.0.contains_key(&format!("foundation.{}", p.key())))
            .map(|p| format!("# foundation.{} = {}\n", p.key(), p.standard()))
            .collect();
        if loaded.node.role == node::Role::Control && !standard.is_empty() {
            section("not given, so standard", &standard);
        }
    }
    for (name, assigned, f) in modules(loaded, what) {
        let assigned = if assigned { "assigned" } else { "not assigned" };
        section(&format!("{} (module {name}, {assigned})", one(f)), &shown(f));
    }
    for d in &loaded.unassigned_faults {
        out.push_str(&format!("{} {d}\n", text::styled(text::WARN, "# not assigned, so only said:")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_model::document::{Source, merge};

    /// A node of two layers and two modules, one with a secret.
    fn machine() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        for (path, text) in [
            ("/usr/lib/mesh/node.toml", "schema = 1\nname = \"vendor\"\nrole = \"control\"\n"),
            ("/etc/mesh/node.toml", "schema = 1\nname = \"alpha\"\nrole = \"control\"\nmodules = [\"web\"]\n"),
            (
                "/etc/mesh/node.toml.d/50-key.toml",
                "[foundation]\nstore.sql = 5433\n[[file]]\npath = \"/etc/key\"\nmode = \"0600\"\nsecret = true\n\
                 content = \"\"\"\nhush-1\nhush-2\n\"\"\"\n",
            ),
            (
                "/usr/lib/mesh/catalogue/web.toml",
                "schema = 1\nsummary = \"Web\"\n[[file]]\npath = \"/etc/web\"\nmode = \"0600\"\nsecret = true\ncontent = \"hush-3\"\n",
            ),
            ("/usr/lib/mesh/catalogue/odd.toml", "schema = 1\nsumary = \"Odd\"\n"),
        ] {
            let path = layout.under(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (dir, layout)
    }

    #[test]
    fn it_says_where_each_key_is_from_and_tells_no_secret() {
        let (_dir, layout) = machine();
        refuse_faults(&layout).unwrap();
        let loaded = config::load(&layout).unwrap().unwrap();
        let shown = anstream::adapter::strip_str(&human(&loaded, None)).to_string();
        for want in [
            "# /etc/mesh/node.toml (overrides /usr/lib/mesh/node.toml)\n",
            "foundation.store.sql = 5433 # from /etc/mesh/node.toml.d/50-key.toml:2\n",
            "name = \"alpha\" # from /etc/mesh/node.toml:2\n",
            "content = \"********\" # from /etc/mesh/node.toml.d/50-key.toml:7\n",
            "# foundation.registry.http = 5000\n",
            "# /usr/lib/mesh/catalogue/web.toml (module web, assigned)\n",
            "/usr/lib/mesh/catalogue/odd.toml:2:1: unknown key \"sumary\"; did you mean summary?",
        ] {
            assert!(shown.contains(want), "no {want:?} in\n{shown}");
        }
        let json = serde_json::to_string(&body(&loaded, None)).unwrap();
        assert!(json.contains(r#"{"key":"foundation.store.sql","value":"5433","file":"/etc/mesh/node.toml.d/50-key.toml","line":2,"column":7}"#), "{json}");
        assert!(!shown.contains("hush") && !json.contains("hush"), "{shown}\n{json}");
        // What is shown as merged is the node again.
        let merged = view::render(&loaded.document).replace("\"********\"", "\"\\nhush-1\\nhush-2\\n\"");
        let doc =
            merge(vec![Source { file: "/m".into(), text: merged.clone() }]).unwrap_or_else(|e| panic!("{e}\n{merged}"));
        let again = node::read(&doc).unwrap();
        assert_eq!((again.name, again.foundation, again.modules), {
            let n = loaded.node.clone();
            (n.name, n.foundation, n.modules)
        });
        // One module alone, without the node.
        let web = human(&loaded, Some("web"));
        assert!(web.contains("catalogue/web.toml") && !web.contains("merged"), "{web}");
    }

    #[test]
    fn a_fault_ends_it_with_exit_code_78_and_an_unknown_name_with_2() {
        let (_dir, layout) = machine();
        let ctx = Context { layout: layout.clone(), json: false };
        let e = run(&ctx, &cli::CatConfig { what: Some("wbe".into()) }).unwrap_err();
        let f = e.downcast_ref::<Failure>().unwrap();
        assert_eq!((f.kind.exit_code(), f.remedy.as_deref()), (2, Some("did you mean web?")));
        std::fs::write(layout.state(), "schema = 1\nx = 1\n").unwrap();
        let e = run(&ctx, &cli::CatConfig { what: None }).unwrap_err();
        let faults = e.chain().find_map(|c| c.downcast_ref::<Diagnostics>()).unwrap();
        assert_eq!(Failure::from(faults.clone()).kind.exit_code(), 78);
    }
}
