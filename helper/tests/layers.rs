//! The arrows of the layers: what each part of the helper may use, and what the pure crates may not touch.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};

/// Part of the helper → the parts that it may use. `commands` ties everything.
const ARROWS: [(&str, &[&str]); 9] = [
    ("layout", &[]),
    ("failure", &[]),
    ("cli", &[]),
    ("adapters", &["adapters", "layout"]),
    ("plan", &["plan"]),
    ("probe", &["probe", "adapters", "layout", "plan", "failure", "apply::openings", "apply::found_path"]),
    ("record", &["record", "adapters", "layout"]),
    ("show", &["show"]),
    ("apply", &["apply", "adapters", "layout", "plan", "probe", "record", "show::progress", "failure"]),
];

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            out.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    out
}

/// The code of a file without its tests and comments: what ships.
fn shipped(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_string();
    text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn data_flows_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (part, may) in ARROWS {
        let (file, dir) = (src.join(format!("{part}.rs")), src.join(part));
        let files = if file.is_file() { vec![file] } else { sources(&dir) };
        for file in files {
            for (n, line) in shipped(&file).lines().enumerate() {
                for used in line.split("crate::").skip(1) {
                    seen += 1;
                    let used: String = used.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
                    let allowed = may.iter().any(|m| used == *m || used.starts_with(&format!("{m}::")));
                    if !allowed {
                        wrong.push(format!("{}:{}: {part} uses {used}", file.display(), n + 1));
                    }
                }
            }
        }
    }
    assert!(seen > 40, "only {seen} uses were found: the test reads the wrong files");
    assert!(wrong.is_empty(), "arrows that are not in the list:\n{}", wrong.join("\n"));
}

#[test]
fn pure_crates_do_no_io() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for krate in ["model", "firewall"] {
        let root = here.join(krate).join("src");
        let lib = fs::read_to_string(root.join("lib.rs")).unwrap();
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{krate} does not forbid unsafe code");
        for file in sources(&root) {
            let text = shipped(&file);
            for word in [
                "std::fs",
                "std::net::Tcp",
                "std::net::Udp",
                "std::process",
                "std::env",
                "std::io",
                "std::os",
                "println!",
                "rustix",
                "nix::",
            ] {
                assert!(!text.contains(word), "{}: {word} in a pure crate", file.display());
            }
        }
    }
}

#[test]
fn the_crates_depend_downwards_only() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deps = |toml: PathBuf| {
        let text = fs::read_to_string(toml).unwrap();
        let text = text.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap().to_string();
        text.lines()
            .filter(|l| l.starts_with("mesh"))
            .map(|l| l.split(['.', ' ']).next().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert!(deps(here.join("model/Cargo.toml")).is_empty());
    assert_eq!(deps(here.join("firewall/Cargo.toml")), ["mesh-model"]);
    assert_eq!(deps(here.join("../generators/Cargo.toml")), ["mesh-model"]);
}
