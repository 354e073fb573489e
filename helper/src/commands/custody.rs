//! The verb `custody`: what was found, and what of it is still as it was. Read-only; contents are shown only by `diff`,
//! to the operator who asked, and never in JSON.

use super::Context;
use crate::adapters::custody_store::{Difference, Store};
use crate::cli::{Custody, CustodyVerb};
use crate::show::{json, text};
use mesh_model::custody::{Aspect, FoundPath, Record, What, escape};
use mesh_model::failure::{Failure, Kind};
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Runs `mesh custody`.
pub fn run(ctx: &Context, args: &Custody) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            Kind::NoPermission,
            "mesh custody needs root: what it holds is as secret as the files",
        )
        .remedy("run it as root, for example: sudo mesh custody list")
        .into());
    }
    let store = Store::open(&ctx.layout);
    match &args.verb {
        None | Some(CustodyVerb::List) => list(ctx, &store),
        Some(CustodyVerb::Show { path }) => show(ctx, &store, &found(path)?),
        Some(CustodyVerb::Diff { path: Some(path) }) => diff(ctx, &store, &[found(path)?]),
        Some(CustodyVerb::Diff { path: None }) => {
            let all: Vec<FoundPath> = store.list()?.into_iter().filter_map(|v| Some(v.first()?.path.clone())).collect();
            diff(ctx, &store, &all)
        }
    }
}

fn found(path: &Path) -> anyhow::Result<FoundPath> {
    FoundPath::new(path.as_os_str().as_bytes()).map_err(|what| Failure::new(Kind::Usage, what).into())
}

fn not_here(path: &FoundPath) -> anyhow::Error {
    Failure::new(Kind::Failed, "it is not in custody")
        .at(path.to_string())
        .remedy("mesh custody list shows what is")
        .into()
}

/// What is there now against the first sight, in one word; a look that is refused says why.
fn state(store: &Store, path: &FoundPath) -> String {
    match store.compare_now(path) {
        Ok(Some(d)) => word(&d.since_first).to_owned(),
        Ok(None) => "not in custody".into(),
        Err(e) => format!("unknown: {e:#}"),
    }
}

fn word(aspects: &[Aspect]) -> &'static str {
    match aspects {
        [] => "unchanged",
        [Aspect::Written] => "written again, same content",
        [Aspect::Gone] => "gone",
        [Aspect::Appeared] => "appeared",
        _ => "edited",
    }
}

fn list(ctx: &Context, store: &Store) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut table = text::table(&["path", "type", "versions", "first seen", "now"]);
    for versions in store.list()? {
        let Some(first) = versions.first() else { continue };
        let now = state(store, &first.path);
        let seen = time(first.seen_us);
        let kind = first.sight.what.word();
        table.add_row([first.path.to_string(), kind.into(), versions.len().to_string(), seen.clone(), now.clone()]);
        rows.push(json!({
            "path": first.path, "type": kind, "versions": versions.len(), "first_seen": seen, "now": now,
            "sha256": first.sight.sha256(),
        }));
    }
    if ctx.json {
        return document(ctx, "list", json!({ "paths": rows }));
    }
    match rows.is_empty() {
        true => text::err("nothing is in custody"),
        false => text::out(&table.to_string()),
    }
}

fn show(ctx: &Context, store: &Store, path: &FoundPath) -> anyhow::Result<()> {
    let versions = store.versions(path)?;
    if versions.is_empty() {
        return Err(not_here(path));
    }
    let now = state(store, path);
    if ctx.json {
        return document(ctx, "show", json!({ "path": path, "versions": versions, "now": now }));
    }
    text::out(&format!("{path}: {now}"))?;
    versions.iter().try_for_each(|record| text::out(&describe(record)))
}

/// One version in words.
fn describe(record: &Record) -> String {
    let mut out = format!(
        "\nversion {}, seen {} ({}): {}",
        record.version,
        time(record.seen_us),
        record.reason.word(),
        record.sight.what.word()
    );
    match &record.sight.what {
        What::File { size, sha256, sparse } => {
            let holes = if *sparse { ", with holes" } else { "" };
            out.push_str(&format!("\n  content   {size} bytes{holes}, sha256 {sha256}"));
        }
        What::Link { target } => out.push_str(&format!("\n  target    {target}")),
        What::Absent | What::Directory | What::Fifo | What::Socket | What::Device => {}
    }
    if let Some(meta) = &record.sight.meta {
        out.push_str(&format!("\n  owner     {}:{}, mode {:04o}", meta.uid, meta.gid, meta.mode));
        out.push_str(&format!("\n  written   {}", time((meta.mtime_ns / 1000).max(0).unsigned_abs())));
        out.push_str(&format!("\n  inode     {} (links {})", meta.ino, meta.nlink));
        for (name, value) in &meta.xattrs {
            out.push_str(&format!("\n  attribute {name} = 0x{value}"));
        }
        for (bit, flag) in [(0x10, "immutable"), (0x20, "append-only")] {
            if meta.flags.unwrap_or(0) & bit != 0 {
                out.push_str(&format!("\n  flag      {flag}"));
            }
        }
    }
    out
}

fn diff(ctx: &Context, store: &Store, paths: &[FoundPath]) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut same = 0_usize;
    for path in paths {
        let difference = store.compare_now(path)?.ok_or_else(|| not_here(path))?;
        if ctx.json {
            rows.push(json!({
                "path": path,
                "now": word(&difference.since_first),
                "since_first": difference.since_first,
                "since_last": difference.since_last,
                "sha256_first": difference.first.sight.sha256(),
                "sha256_now": difference.now.sight.sha256(),
            }));
        } else if difference.since_first.is_empty() {
            same += 1;
        } else {
            let words = difference.since_first.iter().map(|a| a.word()).collect::<Vec<_>>().join(", ");
            text::out(&format!("{path}: {} ({words})", word(&difference.since_first)))?;
            let before = store.content(&difference.first)?;
            let changes = contents(path, before.as_deref(), &difference);
            if !changes.is_empty() {
                text::out(changes.trim_end())?;
            }
        }
    }
    if ctx.json {
        return document(ctx, "diff", json!({ "paths": rows }));
    }
    // Silence would not say whether anything was looked at.
    match (paths, same) {
        ([], _) => text::err("nothing is in custody"),
        ([path], 1) => text::out(&format!("{path}: unchanged")),
        (_, 0) => Ok(()),
        (all, same) => text::err(&format!("{same} of {} paths unchanged", all.len())),
    }
}

/// The lines that changed, escaped where they could fool a terminal; binary content is only said to be so.
fn contents(path: &FoundPath, before: Option<&[u8]>, difference: &Difference) -> String {
    let now = difference.now.content.as_deref();
    if before == now {
        return String::new();
    }
    let text = |bytes: Option<&[u8]>| match bytes {
        None => Some(String::new()),
        Some(b) if b.contains(&0) => None,
        Some(b) => String::from_utf8(b.to_vec()).ok(),
    };
    match (text(before), text(now)) {
        (Some(before), Some(now)) => {
            let changes = similar::TextDiff::from_lines(&before, &now);
            let unified =
                changes.unified_diff().header(&format!("{path} (found)"), &format!("{path} (now)")).to_string();
            unified.chars().map(printable).collect()
        }
        _ => "  binary content differs".into(),
    }
}

/// Control characters but tab and newline, as [`escape`] writes them.
fn printable(c: char) -> String {
    match c {
        '\n' | '\t' | '\\' => c.to_string(),
        c => escape(c.to_string().as_bytes()),
    }
}

fn document(ctx: &Context, view: &str, mut body: Value) -> anyhow::Result<()> {
    body["view"] = view.into();
    text::out(&serde_json::to_string_pretty(&json::document("custody", &ctx.head(), &body)?)?)
}

fn time(us: u64) -> String {
    let time = i64::try_from(us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    time.map_or_else(|| format!("{us} µs"), |t| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
