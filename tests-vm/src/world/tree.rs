//! A file tree as a value, and writing it below a root: a machine's directory before it boots, or the image of one.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File(Vec<u8>),
    /// A copy of a file of this machine (a program).
    Copy(PathBuf),
    /// A symbolic link.
    Link(String),
    /// A directory; parents are made by themselves, owned as what they are made for.
    Dir,
}

/// A thing with its owner and mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub node: Node,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Paths below a root, absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// All of them, parents before what is in them.
    pub entries: BTreeMap<String, Entry>,
    /// Lines that `/etc/passwd`, `/etc/group` and such get at their end, unless they are there.
    pub appended: Vec<(String, String)>,
}

impl Tree {
    /// Puts a root-owned file.
    pub fn file(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.put(path, Node::File(content.into()), 0o644, 0, 0);
    }

    /// Puts a root-owned program.
    pub fn program(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.put(path, Node::File(content.into()), 0o755, 0, 0);
    }

    /// Puts a symbolic link.
    pub fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.put(path, Node::Link(target.into()), 0o777, 0, 0);
    }

    /// Puts anything.
    pub fn put(&mut self, path: impl Into<String>, node: Node, mode: u32, uid: u32, gid: u32) {
        self.entries.insert(path.into(), Entry { node, mode, uid, gid });
    }

    /// Writes everything below `root`, over what is there.
    pub fn write(&self, root: &Path) -> Result<()> {
        for (path, entry) in &self.entries {
            let to = root.join(path.trim_start_matches('/'));
            entry.write(root, &to).with_context(|| format!("writing {} below {}", path, root.display()))?;
        }
        for (path, line) in &self.appended {
            let to = root.join(path.trim_start_matches('/'));
            let mut text = fs::read_to_string(&to).with_context(|| format!("reading {}", to.display()))?;
            if !text.lines().any(|l| l == line) {
                text.push_str(line);
                text.push('\n');
                fs::write(&to, text).with_context(|| format!("writing {}", to.display()))?;
            }
        }
        Ok(())
    }
}

impl Entry {
    fn write(&self, root: &Path, to: &Path) -> Result<()> {
        if let Some(parent) = to.parent() {
            self.make_parents(root, parent)?;
        }
        match &self.node {
            Node::Dir => {
                if !to.is_dir() {
                    fs::create_dir(to)?;
                }
            }
            Node::Link(target) => {
                if to.symlink_metadata().is_ok() {
                    fs::remove_file(to)?;
                }
                return Ok(symlink(target, to)?);
            }
            Node::File(content) => fs::write(to, content)?,
            Node::Copy(from) => {
                fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
            }
        }
        chown(to, Some(self.uid), Some(self.gid))?;
        fs::set_permissions(to, fs::Permissions::from_mode(self.mode))?;
        Ok(())
    }

    /// Missing parents below `root` belong to whom the thing in them belongs.
    fn make_parents(&self, root: &Path, parent: &Path) -> Result<()> {
        if parent == root || parent.is_dir() {
            return Ok(());
        }
        if let Some(above) = parent.parent() {
            self.make_parents(root, above)?;
        }
        fs::create_dir(parent)?;
        chown(parent, Some(self.uid), Some(self.gid))?;
        Ok(())
    }
}
