//! The verb `init`: a commented `node.toml` from what probe found, never over an existing one.

use crate::cli;
use crate::commands::Context;
use crate::layout::Layout;
use crate::show::json::{self, Head};
use crate::show::text;
use anyhow::Context as _;
use mesh_model::document::{Source, merge};
use mesh_model::failure::{Failure, Kind};
use mesh_model::init_template::{InitFacts, render};
use mesh_model::layers::{DIRS, NODE};
use mesh_model::mode::Mode;
use mesh_model::node;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

/// The body of `mesh.init/1`.
#[derive(Debug, Serialize)]
struct Body<'a> {
    path: &'a str,
    /// Whether it was written; not with `--dry-run`.
    written: bool,
    content: &'a str,
}

/// Where it is written.
const PATH: &str = "/etc/mesh/node.toml";

/// Looks at the machine and writes down what was found.
pub fn run(ctx: &Context, args: &cli::Init) -> anyhow::Result<()> {
    ctx.need_machine_and_root("init")?;
    run_with(ctx, args, crate::probe::init::facts(&ctx.layout)?)
}

/// Writes `node.toml` from `facts`, or shows what would be written.
pub fn run_with(ctx: &Context, args: &cli::Init, mut facts: InitFacts) -> anyhow::Result<()> {
    if let Some(name) = &args.name {
        if mesh_model::init_template::node_name(name) != *name {
            return Err(Failure::new(Kind::Usage, format!("{name:?} is not a node name"))
                .remedy("use a-z, 0-9 and -, in parts divided by dots")
                .into());
        }
        facts.host_name.clone_from(name);
    }
    refuse_existing(&ctx.layout)?;
    let content = render(&facts);
    // What is written must be what every other verb can read.
    let doc = merge(vec![Source { file: PATH.into(), text: content.clone() }])?;
    let node = node::read(&doc)?;
    if !args.dry_run {
        write(&ctx.layout, &content)?;
    }
    if ctx.json {
        let head = Head { node: node.name, mode: Mode::Unmanaged.word().into() };
        let body = Body { path: PATH, written: !args.dry_run, content: &content };
        return text::out(&serde_json::to_string_pretty(&json::document("init", &head, &body)?)?);
    }
    if args.dry_run {
        return text::out(content.trim_end());
    }
    text::out(&format!(
        "{PATH} written. Read and edit it, then:\n  mesh cat-config          checks it\n  mesh adopt --dry-run     shows what would be done"
    ))
}

/// Refuses where any folder has a `node.toml`, even an empty one: somebody put it there.
fn refuse_existing(layout: &Layout) -> Result<(), Failure> {
    for dir in DIRS {
        if std::fs::symlink_metadata(layout.under(dir).join(NODE)).is_ok() {
            let path = format!("{dir}/{NODE}");
            return Err(Failure::refused(format!("{path} exists"))
                .at(path.as_str())
                .remedy("edit it, or move it away and run mesh init again; mesh cat-config shows it"));
        }
    }
    Ok(())
}

/// Creates the file whole and durable, and only if nothing has its name.
fn write(layout: &Layout, content: &str) -> anyhow::Result<()> {
    let folder = layout.etc();
    let refused = |e: std::io::Error, path: &std::path::Path| match e.kind() {
        ErrorKind::PermissionDenied => anyhow::Error::new(
            Failure::new(Kind::NoPermission, format!("cannot write {PATH}"))
                .at(PATH)
                .remedy("run it as root, or with --dry-run"),
        ),
        ErrorKind::AlreadyExists => anyhow::Error::new(Failure::refused(format!("{PATH} exists")).at(PATH)),
        _ => anyhow::Error::new(e).context(format!("writing {}", path.display())),
    };
    // Readable by all, whatever the umask: the user generator reads it as the user (DESIGN §3).
    if !folder.is_dir() {
        std::fs::create_dir_all(&folder).map_err(|e| refused(e, &folder))?;
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let path = folder.join(NODE);
    // A name of its own and a link that fails if the target exists: nobody ever reads half of it.
    let staged = folder.join(format!(".{NODE}.{}", std::process::id()));
    let result = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&staged)
            .map_err(|e| refused(e, &staged))?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| refused(e, &staged))?;
        std::fs::hard_link(&staged, &path).map_err(|e| refused(e, &path))
    })();
    match std::fs::remove_file(&staged) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            result?;
            return Err(e).with_context(|| format!("removing {}", staged.display()));
        }
        _ => result?,
    }
    File::open(&folder).and_then(|d| d.sync_all()).with_context(|| format!("syncing {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(root: &std::path::Path) -> Context {
        Context { layout: Layout::new(root), json: false }
    }

    fn args() -> cli::Init {
        cli::Init { dry_run: false, name: Some("alpha".into()) }
    }

    #[test]
    fn it_writes_once_and_never_over_anything() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let ctx = context(dir.path());
        run_with(&ctx, &cli::Init { dry_run: true, name: None }, InitFacts::default()).unwrap();
        assert!(!ctx.layout.etc().exists());
        run_with(&ctx, &args(), InitFacts::default()).unwrap();
        let path = ctx.layout.etc().join(NODE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(crate::adapters::config::load(&ctx.layout).unwrap().unwrap().node.name, "alpha");
        let before = std::fs::read(&path).unwrap();
        let e = run_with(&ctx, &args(), InitFacts::default()).unwrap_err();
        assert_eq!(e.downcast_ref::<Failure>().unwrap().kind.exit_code(), 3);
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(std::fs::read_dir(ctx.layout.etc()).unwrap().count(), 1);
        // The last line of defence, where one appears between the look and the write.
        let e = write(&ctx.layout, "x").unwrap_err();
        assert_eq!(e.downcast_ref::<Failure>().unwrap().kind.exit_code(), 3);
        assert_eq!(std::fs::read_dir(ctx.layout.etc()).unwrap().count(), 1);
    }

    #[test]
    fn a_masked_or_shipped_node_file_counts_as_one() {
        for path in ["etc/mesh/node.toml", "usr/lib/mesh/node.toml", "run/mesh/node.toml"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink("/dev/null", &path).unwrap();
            let e = run_with(&context(dir.path()), &args(), InitFacts::default()).unwrap_err();
            assert_eq!(e.downcast_ref::<Failure>().unwrap().kind.exit_code(), 3);
        }
    }
}
