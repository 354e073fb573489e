//! What the generator makes, as a value: files and links in the manager's output folders. Nothing is written here.

use std::collections::BTreeMap;
use std::fmt;

/// Which of the output folders (systemd.generator(7), "Output directories").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Folder {
    /// The third of three: wins over `/etc/systemd/system`, so a link to `/dev/null` in it masks any unit there.
    Early,
    /// The first: between `/etc/systemd/system` and `/usr/lib/systemd/system`.
    Normal,
}

/// One thing in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A unit or drop-in with this text.
    File(String),
    /// A symbolic link with this target.
    Link(String),
}

/// Where units that are shipped lie.
pub const SHIPPED: &str = "/usr/lib/systemd/system";

/// All of it, ordered, so that the same input gives the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnitTree(BTreeMap<(Folder, String), Entry>);

impl UnitTree {
    /// A unit, or a drop-in as `UNIT.d/NAME.conf`.
    pub fn file(&mut self, folder: Folder, path: impl Into<String>, text: String) {
        self.0.insert((folder, path.into()), Entry::File(text));
    }

    /// Masks a unit.
    pub fn mask(&mut self, unit: &str) {
        self.0.insert((Folder::Early, unit.to_string()), Entry::Link("/dev/null".into()));
    }

    /// Makes `target` want a unit of this tree.
    pub fn want(&mut self, target: &str, unit: &str) {
        self.0.insert((Folder::Normal, format!("{target}.wants/{unit}")), Entry::Link(format!("../{unit}")));
    }

    /// Makes `target` want a unit that is shipped.
    pub fn want_shipped(&mut self, target: &str, unit: &str) {
        self.0.insert((Folder::Normal, format!("{target}.wants/{unit}")), Entry::Link(format!("{SHIPPED}/{unit}")));
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything, early folder first, then by path.
    pub fn iter(&self) -> impl Iterator<Item = (Folder, &str, &Entry)> {
        self.0.iter().map(|((folder, path), entry)| (*folder, path.as_str(), entry))
    }
}

/// The form of `--dry-run`: a line with the path, then the text, as podman's generator prints it.
impl fmt::Display for UnitTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (folder, path, entry) in self.iter() {
            let folder = match folder {
                Folder::Early => "early",
                Folder::Normal => "normal",
            };
            match entry {
                Entry::File(text) => write!(f, "---{folder}/{path}---\n{text}\n")?,
                Entry::Link(target) => write!(f, "---{folder}/{path} -> {target}---\n\n")?,
            }
        }
        Ok(())
    }
}
