//! Loads what an operator wrote: the mode, `node.toml` with its drop-ins, the catalogue.
//!
//! Which file is in force is decided by [`mesh_model::layers`], what the files mean by [`mesh_model::node`] and
//! [`mesh_model::manifest`]; here is only the reading.

use crate::layout::Layout;
use anyhow::Context as _;
use mesh_model::catalogue::{Catalogue, check};
use mesh_model::diagnostic::{Diagnostic, Diagnostics};
use mesh_model::document::{Document, Source, merge};
use mesh_model::failure::{Failure, Kind};
use mesh_model::layers::{CATALOGUE, Chosen, DIRS, Listed, NODE, NODE_DROPINS, choose};
use mesh_model::manifest::{self, ModuleName};
use mesh_model::mode::Mode;
use mesh_model::node::{self, Node};
use mesh_model::pending::Pending;
use mesh_model::state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The mode file, as faults name it.
const MODE: &str = "/etc/mesh/mode";
/// The state file, as faults name it.
const STATE: &str = "/etc/mesh/state.toml";
/// The pending file, as faults name it.
const PENDING: &str = "/etc/mesh/pending";

/// The largest file that is read; what is larger is not a configuration.
const LARGEST: u64 = 16 << 20;

/// One file that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its path on the machine, without any `--root`.
    pub path: String,
    /// Whether it masks the files of its name instead of saying something.
    pub masks: bool,
    /// The files of the same name that it puts out of force.
    pub overrides: Vec<String>,
    /// Its text; empty where it masks.
    pub text: String,
}

/// Everything that was written, valid.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The node.
    pub node: Node,
    /// The catalogue; every manifest read, assigned or not.
    pub manifests: Catalogue,
    /// The files of `node.toml` in the order of their layers, lowest first, masked ones too.
    pub sources: Vec<ConfigFile>,
    /// The merged tree of `node.toml`, for showing where each key comes from.
    pub document: Document,
    /// The manifests' files, by module.
    pub manifest_files: BTreeMap<ModuleName, ConfigFile>,
    /// Faults of manifests that this node is not assigned: they stop nothing, and are worth saying.
    pub unassigned_faults: Vec<Diagnostic>,
}

/// What was read, before anything of it is understood.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// `node.toml` and its drop-ins, lowest layer first, masked ones too.
    pub node: Vec<ConfigFile>,
    /// The manifests in force and masked ones, by file name without `.toml`.
    pub catalogue: BTreeMap<String, ConfigFile>,
    /// Files that are no text.
    pub faults: Vec<Diagnostic>,
}

impl Files {
    /// Whether there is anything of `node.toml` in force.
    pub fn has_node(&self) -> bool {
        self.node.iter().any(|f| !f.masks)
    }
}

/// Reads all configuration files in force. An error is one of the disk; what is in the files is not looked at.
pub fn read_files(layout: &Layout) -> anyhow::Result<Files> {
    let mut files = Files::default();
    let main: Vec<Vec<Listed>> =
        DIRS.iter().map(|d| stat(layout, d, NODE).map(|l| l.into_iter().collect())).collect::<anyhow::Result<_>>()?;
    for chosen in choose(&main) {
        let file = read(layout, &chosen, "", &mut files.faults)?;
        files.node.push(file);
    }
    for chosen in choose(&listings(layout, NODE_DROPINS)?) {
        let file = read(layout, &chosen, NODE_DROPINS, &mut files.faults)?;
        files.node.push(file);
    }
    for chosen in choose(&listings(layout, CATALOGUE)?) {
        let file = read(layout, &chosen, CATALOGUE, &mut files.faults)?;
        let name = chosen.name.trim_end_matches(".toml").to_string();
        files.catalogue.insert(name, file);
    }
    Ok(files)
}

/// Loads and validates everything; `None` where there is no `node.toml` at all. A fault of the files is
/// [`Diagnostics`] in the error.
pub fn load(layout: &Layout) -> anyhow::Result<Option<Loaded>> {
    let files = read_files(layout)?;
    if !files.has_node() {
        return Ok(None);
    }
    understand(files).map(Some).map_err(anyhow::Error::new)
}

/// Validates what was read; the error holds every fault of `node.toml` and of the assigned manifests.
pub fn understand(files: Files) -> Result<Loaded, Diagnostics> {
    let Files { node: sources, catalogue, faults: not_text } = files;
    let (mut faults, mut unassigned_faults) = (Vec::new(), Vec::new());
    let broken = |path: &str| not_text.iter().filter(|d| d.file == path).cloned().collect::<Vec<Diagnostic>>();
    let mut layers = Vec::new();
    for f in sources.iter().filter(|f| !f.masks) {
        faults.extend(broken(&f.path));
        layers.push(Source { file: f.path.clone(), text: f.text.clone() });
    }
    // A layer that is no text says nothing: whatever is missing without it is not told.
    let document = if faults.is_empty() { merge(layers) } else { Err(Diagnostics(Vec::new())) };
    let assigned: BTreeSet<String> = document.iter().flat_map(|doc| node::assigned(doc)).map(String::from).collect();
    let parsed = document.and_then(|doc| node::read(&doc).map(|node| (doc, node)));
    let mut manifests = Catalogue::default();
    let mut manifest_files = BTreeMap::new();
    for (stem, file) in catalogue {
        if file.masks {
            continue;
        }
        let name = match ModuleName::new(stem.as_str()) {
            Ok(name) => name,
            Err(why) => {
                let (what, remedy) = why.split_once("; ").unwrap_or((&why, ""));
                unassigned_faults.push(Diagnostic {
                    file: file.path,
                    line: 1,
                    column: 1,
                    value: stem,
                    what: what.into(),
                    remedy: format!("rename the file: {remedy}"),
                });
                continue;
            }
        };
        manifests.known.insert(name.clone());
        let told = if assigned.contains(&stem) { &mut faults } else { &mut unassigned_faults };
        let no_text = broken(&file.path);
        if !no_text.is_empty() {
            told.extend(no_text);
            manifest_files.insert(name, file);
            continue;
        }
        match manifest::read(name.clone(), Source { file: file.path.clone(), text: file.text.clone() }) {
            Ok(m) => {
                manifests.manifests.insert(name.clone(), m);
            }
            Err(e) => told.extend(e.0),
        }
        manifest_files.insert(name, file);
    }
    let checked = match parsed {
        Ok((document, node)) => match check(&node, &manifests) {
            Ok(()) => Some((document, node)),
            Err(e) => {
                faults.extend(e.0);
                None
            }
        },
        Err(e) => {
            faults.splice(0..0, e.0);
            None
        }
    };
    match checked {
        Some((document, node)) if faults.is_empty() => {
            Ok(Loaded { node, manifests, sources, document, manifest_files, unassigned_faults })
        }
        _ => Err(Diagnostics(faults)),
    }
}

/// The mode that the mode file says; absent means unmanaged. What the kernel command line lowers is not in it.
pub fn read_mode(layout: &Layout) -> Result<Mode, Failure> {
    match bytes(&layout.mode()) {
        Ok(None) => Ok(Mode::Unmanaged),
        Ok(Some(content)) => Ok(Mode::read(MODE, &content)?),
        Err(e) => Err(unreadable(MODE, &e)),
    }
}

/// `state.toml`; the default where there is none.
pub fn read_state(layout: &Layout) -> anyhow::Result<State> {
    let path = layout.state();
    match bytes(&path).with_context(|| format!("reading {}", path.display()))? {
        None => Ok(State::default()),
        Some(content) => Ok(State::parse(Source::from_bytes(STATE, content)?)?),
    }
}

/// What a verb is in the middle of, if one is.
pub fn read_pending(layout: &Layout) -> anyhow::Result<Option<Pending>> {
    let path = layout.pending();
    match bytes(&path).with_context(|| format!("reading {}", path.display()))? {
        None => Ok(None),
        Some(content) => Ok(Some(Pending::parse(PENDING, &content)?)),
    }
}

/// Every fault of the mode, node, assigned manifests, state and pending files; what is read on the way is dropped.
/// Nothing is wrong where the list is empty. An error is one of the disk.
pub fn faults(layout: &Layout) -> anyhow::Result<Vec<Diagnostic>> {
    let mut all = Vec::new();
    let mode = match bytes(&layout.mode()).map_err(|e| unreadable(MODE, &e))? {
        Some(content) => Mode::read(MODE, &content),
        None => Ok(Mode::Unmanaged),
    };
    let files = read_files(layout)?;
    let needs_node = matches!(mode, Ok(Mode::Adopted | Mode::Converged));
    all.extend(mode.err().into_iter().flat_map(|e| e.0));
    if files.has_node() {
        all.extend(understand(files).err().into_iter().flat_map(|e| e.0));
    } else if needs_node {
        all.push(no_node());
    }
    for result in [read_state(layout).map(drop), read_pending(layout).map(drop)] {
        if let Err(e) = result {
            all.extend(e.downcast::<Diagnostics>()?.0);
        }
    }
    Ok(all)
}

/// The fault of a machine whose mode needs a node.toml that is not there.
pub fn no_node() -> Diagnostic {
    Diagnostic {
        file: format!("{}/{NODE}", DIRS[0]),
        line: 1,
        column: 1,
        value: String::new(),
        what: "there is no node.toml, but the mode file says that this is a node of the mesh".into(),
        remedy: "write one, see mesh init, or remove /etc/mesh/mode".into(),
    }
}

/// The texts that faults can point into, by file.
pub fn texts(layout: &Layout) -> anyhow::Result<BTreeMap<String, String>> {
    let files = read_files(layout)?;
    let mut texts: BTreeMap<String, String> =
        files.node.into_iter().chain(files.catalogue.into_values()).map(|f| (f.path, f.text)).collect();
    for (name, path) in [(MODE, layout.mode()), (STATE, layout.state())] {
        if let Some(text) = bytes(&path)?.and_then(|b| String::from_utf8(b).ok()) {
            texts.insert(name.into(), text);
        }
    }
    Ok(texts)
}

fn unreadable(path: &str, e: &std::io::Error) -> Failure {
    match e.kind() {
        ErrorKind::PermissionDenied => {
            Failure::new(Kind::NoPermission, format!("cannot read {path}")).at(path).remedy("run it as root")
        }
        _ => Failure::new(Kind::Config, format!("cannot read {path}: {e}")).at(path).remedy("make it a readable file"),
    }
}

/// A regular file's bytes; `None` where there is none.
fn bytes(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    // Not blocking: somebody may have put a FIFO there.
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LARGEST {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "it is larger than 16 MiB"));
    }
    Ok(Some(content))
}

/// The listing entry of one name in one folder, if it is there.
fn stat(layout: &Layout, dir: &str, name: &str) -> anyhow::Result<Option<Listed>> {
    let path = layout.under(dir).join(name);
    let link = match std::fs::symlink_metadata(&path) {
        Ok(m) => m,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
    };
    let masks = if link.is_symlink() {
        // Judged by its text first: below --root, /dev/null need not exist.
        if std::fs::read_link(&path)? == Path::new("/dev/null") {
            true
        } else {
            match std::fs::metadata(&path) {
                Ok(m) => m.is_file() && m.len() == 0,
                // A link to nothing is as no file, for the generator too.
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
            }
        }
    } else {
        link.is_file() && link.len() == 0
    };
    Ok(Some(Listed { name: name.into(), masks }))
}

/// The listings of one folder below each of [`DIRS`].
fn listings(layout: &Layout, folder: &str) -> anyhow::Result<Vec<Vec<Listed>>> {
    let mut all = Vec::new();
    for dir in DIRS {
        let dir = format!("{dir}/{folder}");
        let path = layout.under(&dir);
        let mut listed = Vec::new();
        let entries = match std::fs::read_dir(&path) {
            Ok(e) => e,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                all.push(listed);
                continue;
            }
            Err(e) => return Err(e).with_context(|| format!("listing {}", path.display())),
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", path.display()))?;
            // A name that is no UTF-8 cannot end in .toml and be a module's or a drop-in's.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(".toml") {
                listed.extend(stat(layout, &dir, &name)?);
            }
        }
        all.push(listed);
    }
    Ok(all)
}

fn read(layout: &Layout, chosen: &Chosen, folder: &str, faults: &mut Vec<Diagnostic>) -> anyhow::Result<ConfigFile> {
    let place = |dir: usize| {
        let dir = DIRS.get(dir).copied().unwrap_or_default();
        if folder.is_empty() { format!("{dir}/{}", chosen.name) } else { format!("{dir}/{folder}/{}", chosen.name) }
    };
    let path = place(chosen.dir);
    let overrides = chosen.overrides.iter().map(|d| place(*d)).collect();
    let mut file = ConfigFile { path, masks: chosen.masked, overrides, text: String::new() };
    if file.masks {
        return Ok(file);
    }
    let content = match bytes(&layout.under(&file.path)) {
        Ok(Some(content)) => content,
        // It was there a moment ago.
        Ok(None) => return Err(unreadable(&file.path, &ErrorKind::NotFound.into()).into()),
        Err(e) => return Err(unreadable(&file.path, &e).into()),
    };
    match Source::from_bytes(&file.path, content) {
        Ok(source) => file.text = source.text,
        Err(e) => faults.extend(e.0),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE_TEXT: &str = "schema = 1\nname = \"a\"\nrole = \"control\"\n";

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        for (path, text) in files {
            let path = layout.under(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                None => std::fs::write(path, text).unwrap(),
            }
        }
        (dir, layout)
    }

    #[test]
    fn layers_are_applied_as_the_specification_says() {
        // One row a rule: the files, and the node's name that comes out, or nothing.
        let usr = ("/usr/lib/mesh/node.toml", NODE_TEXT);
        for (files, want) in [
            (vec![], None),
            (vec![usr], Some("a")),
            (vec![usr, ("/run/mesh/node.toml", "schema = 1\nname = \"r\"\nrole = \"control\"\n")], Some("r")),
            (vec![usr, ("/etc/mesh/node.toml", "")], None),
            (vec![usr, ("/etc/mesh/node.toml", "-> /dev/null")], None),
            (vec![usr, ("/usr/lib/mesh/node.toml.d/10.toml", "name = \"d\"\n")], Some("d")),
            (
                vec![
                    usr,
                    ("/usr/lib/mesh/node.toml.d/20.toml", "name = \"u\"\n"),
                    ("/etc/mesh/node.toml.d/10.toml", "name = \"e\"\n"),
                ],
                Some("u"),
            ),
            (
                vec![
                    usr,
                    ("/usr/lib/mesh/node.toml.d/20.toml", "name = \"u\"\n"),
                    ("/run/mesh/node.toml.d/20.toml", "-> /dev/null"),
                ],
                Some("a"),
            ),
            (vec![usr, ("/etc/mesh/node.toml", "-> nowhere")], Some("a")),
            // Drop-ins are in force where the main file is masked, or missing.
            (vec![("/etc/mesh/node.toml", ""), ("/run/mesh/node.toml.d/x.toml", NODE_TEXT)], Some("a")),
            (vec![("/run/mesh/node.toml.d/x.toml", NODE_TEXT), ("/run/mesh/node.toml.d/x.conf", "{")], Some("a")),
        ] {
            let (_dir, layout) = tree(&files);
            let loaded = load(&layout).unwrap_or_else(|e| panic!("{files:?}: {e}"));
            assert_eq!(loaded.map(|l| l.node.name).as_deref(), want, "{files:?}");
        }
    }

    #[test]
    fn only_assigned_manifests_can_stop_a_node() {
        let bad = ("/usr/lib/mesh/catalogue/bad.toml", "schema = 1\nsumary = \"x\"\n");
        let (_dir, layout) = tree(&[("/etc/mesh/node.toml", NODE_TEXT), bad]);
        let loaded = load(&layout).unwrap().unwrap();
        assert_eq!(loaded.unassigned_faults[0].line, 2);
        assert_eq!(loaded.unassigned_faults[0].file, "/usr/lib/mesh/catalogue/bad.toml");

        let assigned = format!("{NODE_TEXT}modules = [\"bad\", \"bat\"]\n");
        let (_dir, layout) = tree(&[("/etc/mesh/node.toml", &assigned), bad]);
        let e = load(&layout).unwrap_err();
        let e = e.downcast_ref::<Diagnostics>().unwrap();
        let what: Vec<&str> = e.0.iter().map(|d| d.what.as_str()).collect();
        assert!(what.iter().any(|w| w.contains("sumary")), "{what:?}");
        assert!(e.0.iter().any(|d| d.what.contains("bat") && d.remedy.contains("bad")), "{what:?}");

        let masked = ("/etc/mesh/catalogue/bad.toml", "");
        let (_dir, layout) = tree(&[("/etc/mesh/node.toml", NODE_TEXT), bad, masked]);
        assert!(load(&layout).unwrap().unwrap().unassigned_faults.is_empty());
    }

    #[test]
    fn the_mode_file_is_read_or_refused() {
        for (content, want) in [
            (None, Ok(Mode::Unmanaged)),
            (Some("adopted\n"), Ok(Mode::Adopted)),
            (Some("adopted"), Err(78)),
            (Some(""), Err(78)),
            (Some("-> /etc/mesh/nowhere"), Ok(Mode::Unmanaged)),
            (Some("-> /"), Err(78)),
        ] {
            let files: Vec<(&str, &str)> = content.iter().map(|c| ("/etc/mesh/mode", *c)).collect();
            let (_dir, layout) = tree(&files);
            assert_eq!(read_mode(&layout).map_err(|f| f.kind.exit_code()), want, "{content:?}");
        }
    }
}
