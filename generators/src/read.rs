//! Reads what a generator may read: `/etc`, `/run`, `/usr`, and the command line of the kernel or of a container's
//! PID 1. The order is that of cost: without a mode file it is two system calls.

use crate::environment::Environment;
use crate::generate::{Config, Inputs, Managed};
use crate::log::Line;
use mesh_model::catalogue::{self, Catalogue};
use mesh_model::diagnostic::{Diagnostic, Diagnostics};
use mesh_model::document::{Source, merge};
use mesh_model::manifest::{self, Manifest, ModuleName};
use mesh_model::mode::Mode;
use mesh_model::node::{self, Node};
use mesh_model::state::State;
use mesh_model::unit::Scope;
use rustix::fs::{AtFlags, OFlags, openat, statat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Where configuration lies; the first that has a file of a name wins (UAPI configuration files specification).
const LAYERS: [&str; 3] = ["/etc/mesh", "/run/mesh", "/usr/lib/mesh"];

/// Reads everything that is needed, and no more; the lines are for the log.
pub fn read(environment: &Environment) -> (Inputs, Vec<Line>) {
    let mut lines = Vec::new();
    let config = config(environment, &mut lines).unwrap_or_else(|faults| {
        lines.push(Line::error(faults));
        Config::Invalid
    });
    let scope = environment.scope();
    let pending = scope == Scope::System && exists(environment, "/etc/mesh/pending");
    (Inputs { scope, pending, config }, lines)
}

fn config(environment: &Environment, lines: &mut Vec<Line>) -> Result<Config, Diagnostics> {
    const MODE: &str = "/etc/mesh/mode";
    let Some(bytes) = bytes(environment, MODE)? else {
        return Ok(Config::Unmanaged);
    };
    let written = Mode::parse(&bytes).map_err(|e| {
        let text = e.to_string();
        let (what, remedy) = text.split_once("; ").unwrap_or((&text, "write one of unmanaged, adopted, converged"));
        let value = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
        fault(MODE, value, what, remedy)
    })?;
    if written == Mode::Unmanaged {
        return Ok(Config::Unmanaged);
    }
    let command_line = environment.command_line();
    let (mode, bad) = written.lowered_by(&command_line);
    if let Some(bad) = bad {
        lines.push(Line::warning(format!("mesh.mode={bad} on the command line is not a mode; it changes nothing")));
    }
    if mode == Mode::Unmanaged {
        return Ok(Config::Unmanaged);
    }
    let node = node(environment)?;
    let state = match source(environment, "/etc/mesh/state.toml")? {
        Some(source) => State::parse(source)?,
        None => State::default(),
    };
    let modules = match environment.scope() {
        Scope::System => modules(environment, &node, &state)?,
        // Modules are PID 1's; a user's generator opens no manifest.
        Scope::User(_) => Vec::new(),
    };
    let stand_ins = state.stand_ins.into_iter().map(|s| (s.scope, s.unit)).collect();
    Ok(Config::Managed(Box::new(Managed { mode, node, modules, stand_ins })))
}

/// `node.toml` and its drop-ins, merged.
fn node(environment: &Environment) -> Result<Node, Diagnostics> {
    let mut sources = Vec::new();
    for layer in LAYERS {
        if let Some(main) = source(environment, &format!("{layer}/node.toml"))? {
            sources.push(main);
            break;
        }
    }
    let mut drop_ins: BTreeMap<String, &str> = BTreeMap::new();
    for layer in LAYERS {
        for name in names(environment, &format!("{layer}/node.toml.d"))? {
            drop_ins.entry(name).or_insert(layer);
        }
    }
    for (name, layer) in drop_ins {
        sources.extend(source(environment, &format!("{layer}/node.toml.d/{name}"))?);
    }
    // An empty file, or a link to /dev/null, masks those of its name in the layers below.
    sources.retain(|s| !s.text.is_empty());
    if sources.is_empty() {
        let what = "there is no node.toml, but the mode file says that this is a node of the mesh";
        return Err(fault(
            "/etc/mesh/node.toml",
            String::new(),
            what,
            "write one, see mesh init, or remove /etc/mesh/mode",
        ));
    }
    node::read(&merge(sources)?)
}

/// The assigned modules' manifests, all valid together; of them those that run here.
fn modules(environment: &Environment, node: &Node, state: &State) -> Result<Vec<(Manifest, String)>, Diagnostics> {
    let mut faults = Vec::new();
    let mut manifests = Vec::with_capacity(node.modules.len());
    let mut files: BTreeMap<ModuleName, String> = BTreeMap::new();
    let layers: Vec<(&str, OwnedFd)> =
        LAYERS.iter().filter_map(|l| Some((*l, catalogue_folder(environment, l)?))).collect();
    for name in &node.modules {
        let Some(source) = manifest_source(&layers, name).transpose() else { continue };
        let manifest = source.and_then(|source| {
            files.insert(name.clone(), source.file.clone());
            manifest::read(name.clone(), source)
        });
        match manifest {
            Ok(manifest) => manifests.push(manifest),
            Err(Diagnostics(more)) => faults.extend(more),
        }
    }
    if !faults.is_empty() {
        return Err(Diagnostics(faults));
    }
    let catalogue = Catalogue::new(manifests);
    catalogue::check(node, &catalogue)?;
    let here: BTreeSet<&ModuleName> = state.raised.iter().chain(&state.migrated).collect();
    let running = catalogue.manifests.into_iter().filter(|(name, _)| here.contains(name));
    Ok(running.map(|(name, manifest)| (manifest, files.remove(&name).unwrap_or_default())).collect())
}

fn catalogue_folder(environment: &Environment, layer: &str) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(rustix::fs::CWD, environment.under(layer).join("catalogue"), flags, rustix::fs::Mode::empty()).ok()
}

/// The first of the layers that has the name; an empty file masks it in those below.
fn manifest_source(layers: &[(&str, OwnedFd)], name: &ModuleName) -> Result<Option<Source>, Diagnostics> {
    let file = format!("{name}.toml");
    for (layer, folder) in layers {
        let shown = format!("{layer}/catalogue/{file}");
        if let Some(bytes) = bytes_at(folder.as_fd(), Path::new(&file), &shown)? {
            return if bytes.is_empty() { Ok(None) } else { Source::from_bytes(shown, bytes).map(Some) };
        }
    }
    Ok(None)
}

fn fault(file: &str, value: String, what: &str, remedy: &str) -> Diagnostics {
    let (what, remedy) = (what.to_string(), remedy.to_string());
    Diagnostics(vec![Diagnostic { file: file.into(), line: 1, column: 1, value, what, remedy }])
}

fn exists(environment: &Environment, path: &str) -> bool {
    statat(rustix::fs::CWD, environment.under(path), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn source(environment: &Environment, path: &str) -> Result<Option<Source>, Diagnostics> {
    bytes(environment, path)?.map(|bytes| Source::from_bytes(path, bytes)).transpose()
}

/// A whole file; `None` where there is none. What a link to `/dev/null` leads to reads as an empty file.
fn bytes(environment: &Environment, path: &str) -> Result<Option<Vec<u8>>, Diagnostics> {
    bytes_at(rustix::fs::CWD, &environment.under(path), path)
}

/// The same below a folder; `shown` is the path for people.
fn bytes_at(folder: BorrowedFd<'_>, path: &Path, shown: &str) -> Result<Option<Vec<u8>>, Diagnostics> {
    /// Nothing that the mesh reads at boot is as long.
    const LONGEST: usize = 1 << 24;
    let cannot =
        |e: Errno| fault(shown, String::new(), &format!("it cannot be read: {e}"), "make it a file that all may read");
    // Not blocking: what is expected to be a file may be a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(folder, path, flags, rustix::fs::Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(cannot(e)),
    };
    // A short read is the end of a file: most are read with one call, and their size is not asked for.
    let mut piece = [0; 4096];
    let mut content = Vec::new();
    loop {
        let length = rustix::io::read(&file, &mut piece).map_err(cannot)?;
        content.extend_from_slice(&piece[..length]);
        if length < piece.len() {
            return Ok(Some(content));
        }
        if content.len() > LONGEST {
            let what = format!("it is longer than {LONGEST} bytes");
            return Err(fault(shown, String::new(), &what, "keep large contents in templates"));
        }
    }
}

/// The names in a drop-in folder; none where there is no folder.
fn names(environment: &Environment, path: &str) -> Result<Vec<String>, Diagnostics> {
    let cannot = |e: std::io::Error| {
        fault(path, String::new(), &format!("it cannot be read: {e}"), "make it a folder that all may read")
    };
    let folder = match std::fs::read_dir(environment.under(path)) {
        Ok(folder) => folder,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(cannot(e)),
    };
    let mut names = Vec::new();
    for entry in folder {
        // A name that is not UTF-8 is no name of a drop-in.
        if let Ok(name) = entry.map_err(cannot)?.file_name().into_string() {
            if name.ends_with(".toml") && !name.starts_with('.') {
                names.push(name);
            }
        }
    }
    Ok(names)
}
