//! Which of several files of one name is in force: the pure part of the UAPI configuration files specification.
//!
//! The folders are `/etc/mesh`, `/run/mesh`, `/usr/lib/mesh`, in that order of precedence. A file overrides those of
//! the same name further down; an empty file or a link to `/dev/null` masks them. Drop-ins of all folders are sorted
//! by file name, whatever folder each comes from, and are in force even where the main file is masked.

use std::collections::BTreeMap;

/// The folders as shown to people, highest precedence first.
pub const DIRS: [&str; 3] = ["/etc/mesh", "/run/mesh", "/usr/lib/mesh"];

/// The main file's name.
pub const NODE: &str = "node.toml";

/// The folder of drop-ins, in each of [`DIRS`].
pub const NODE_DROPINS: &str = "node.toml.d";

/// The folder of manifests, in each of [`DIRS`].
pub const CATALOGUE: &str = "catalogue";

/// One file of a folder's listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Its name without the folder.
    pub name: String,
    /// Whether it is empty, or a link to `/dev/null`.
    pub masks: bool,
}

/// A file name and the folder whose file of that name is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The name without the folder.
    pub name: String,
    /// Index into [`DIRS`].
    pub dir: usize,
    /// Whether what is in force is that there is none.
    pub masked: bool,
    /// The folders further down whose file of the same name is out of force.
    pub overrides: Vec<usize>,
}

/// What is in force of these listings (one a folder, highest precedence first), sorted by file name in the order that
/// drop-ins are applied. Hidden files and files that do not end in `.toml` are none of ours.
pub fn choose(listings: &[Vec<Listed>]) -> Vec<Chosen> {
    let mut chosen: BTreeMap<&str, Chosen> = BTreeMap::new();
    for (dir, files) in listings.iter().enumerate() {
        for file in files {
            let ours =
                file.name.strip_suffix(".toml").is_some_and(|stem| !stem.is_empty()) && !file.name.starts_with('.');
            if !ours {
                continue;
            }
            chosen.entry(&file.name).and_modify(|c| c.overrides.push(dir)).or_insert_with(|| Chosen {
                name: file.name.clone(),
                dir,
                masked: file.masks,
                overrides: Vec::new(),
            });
        }
    }
    chosen.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_override_and_sort_across_folders() {
        let list = |names: &[&str]| {
            names.iter().map(|n| Listed { name: n.trim_start_matches('!').into(), masks: n.starts_with('!') }).collect()
        };
        let got = choose(&[
            list(&["50-b.toml", "!20-mask.toml", "README", ".toml", ".x.toml"]),
            list(&["10-run.toml", "50-b.toml"]),
            list(&["20-mask.toml", "50-b.toml", "40-a.toml", "60-c.toml~"]),
        ]);
        let short: Vec<(&str, usize, bool, &[usize])> =
            got.iter().map(|c| (c.name.as_str(), c.dir, c.masked, c.overrides.as_slice())).collect();
        assert_eq!(
            short,
            [
                ("10-run.toml", 1, false, &[][..]),
                ("20-mask.toml", 0, true, &[2][..]),
                ("40-a.toml", 2, false, &[][..]),
                ("50-b.toml", 0, false, &[1, 2][..]),
            ]
        );
    }
}
