//! What is shipped is valid: the example and every manifest of the catalogue, also all of them on one node.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mesh_model::catalogue::{Catalogue, check};
use mesh_model::document::{Source, merge};
use mesh_model::manifest::{self, ModuleName};
use mesh_model::node;
use std::path::{Path, PathBuf};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn source(path: &Path) -> Source {
    Source { file: path.display().to_string(), text: std::fs::read_to_string(path).unwrap() }
}

fn catalogue() -> Catalogue {
    let mut manifests = Vec::new();
    for entry in std::fs::read_dir(packaging().join("catalogue")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let name = ModuleName::new(path.file_stem().unwrap().to_str().unwrap()).unwrap();
            manifests.push(manifest::read(name, source(&path)).unwrap_or_else(|e| panic!("{e}")));
        }
    }
    Catalogue::new(manifests)
}

#[test]
fn the_example_is_valid() {
    let doc = merge(vec![source(&packaging().join("examples/node.toml"))]).unwrap_or_else(|e| panic!("{e}"));
    let node = node::read(&doc).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(node.name, "alpha");
    assert_eq!(node.predecessor.control().count(), 4);
    check(&node, &catalogue()).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn all_shipped_modules_fit_on_one_node() {
    let catalogue = catalogue();
    let names: Vec<String> = catalogue.known.iter().map(|n| format!("{:?}", n.as_str())).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    let text = format!(
        "schema = 1\nname = \"a\"\nrole = \"control\"\nmodules = [{}]\n[overlay]\naddress = \"10.88.0.1/16\"\n",
        names.join(", ")
    );
    let doc = merge(vec![Source { file: "node.toml".into(), text }]).unwrap();
    let node = node::read(&doc).unwrap();
    check(&node, &catalogue).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn every_template_is_shipped_beside_its_manifest() {
    let mut seen = 0;
    for manifest in catalogue().manifests.values() {
        for file in &manifest.files {
            if let mesh_model::manifest::FileContent::Template(name) = &file.content {
                let path = packaging().join("catalogue").join(name);
                assert!(path.is_file(), "{}: {}", manifest.name, path.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 6, "{seen}");
}
