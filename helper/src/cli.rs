//! The command line: definitions only; what an option means stands here, and the man page is held to it by a test.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Takes over a Linux machine that is in use, without its services noticing.
#[derive(Debug, Parser)]
#[command(name = "mesh", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// Work on the files under DIR instead of the running machine (status, custody, log, cat-config).
    #[arg(long, global = true, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub root: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show what is on this machine: who listens, which firewall, which control runs. Read-only.
    Probe,
    /// Write a commented /etc/mesh/node.toml from what probe found; never over an existing one. Changes something.
    Init(Init),
    /// Show the node at a glance: mode, control, openings, custody. Read-only, readable by anybody.
    Status,
    /// Adopt this machine: custody, openings, control stopped, mode recorded. Changes something.
    Adopt(Adopt),
    /// Undo the adoption: openings closed, control started again, everything as it was found. Changes something.
    Release(Change),
    /// Show what is in custody; the list of all where no command is given. Read-only.
    Custody(Custody),
    /// Show what the mesh keeps open and the rules that do it; or assert it. Read-only unless --assert.
    Openings(Openings),
    /// Show the audit trail in words. Read-only.
    Log(Log),
    /// Show configuration files and what was merged from where. Read-only.
    CatConfig(CatConfig),
    /// Print a completion script. Read-only.
    Completions(Completions),
    /// Finish or undo what a crash or a power cut left in the middle. Changes something.
    Recover(Change),
    /// Replace the found firewall by the derived one. Refused by this release.
    Flip,
    /// Say why a mode, node or manifest file is invalid, and fail. Run by mesh-mode-invalid.service.
    #[command(hide = true)]
    CheckConfig,
    /// Talk to one user's manager as that user; request on stdin, answer on stdout.
    #[command(hide = true)]
    UserManager,
}

/// Options of `init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Print what would be written, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// The node's name; the host name where not given.
    #[arg(long)]
    pub name: Option<String>,
}

/// Options of a verb that changes something.
#[derive(Debug, Args)]
pub struct Change {
    /// Print the plan that would be applied, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `adopt`.
#[derive(Debug, Args)]
pub struct Adopt {
    /// What changes and what does not.
    #[command(flatten)]
    pub change: Change,
    /// On a control-node, adopt without opening or checking the foundation's ports.
    #[arg(long)]
    pub without_foundation: bool,
}

/// `custody` and its own verbs.
#[derive(Debug, Args)]
pub struct Custody {
    /// What to do with the store; list where not given.
    #[command(subcommand)]
    pub verb: Option<CustodyVerb>,
}

/// What can be asked of custody.
#[derive(Debug, Subcommand)]
pub enum CustodyVerb {
    /// List every path in custody with its versions.
    List,
    /// Show the record of one path: type, owner, mode, times, xattrs, hash.
    Show {
        /// The path.
        path: PathBuf,
    },
    /// Show what changed on disk since the first sight of a path (or of all).
    Diff {
        /// The path; all in custody where not given.
        path: Option<PathBuf>,
    },
}

/// Options of `openings`.
#[derive(Debug, Args)]
pub struct Openings {
    /// Put missing openings back, as mesh-firewall.service and mesh-watch.service do. Changes something.
    #[arg(long)]
    pub assert: bool,
    /// With --assert: print the plan that would be applied, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `log`.
#[derive(Debug, Args)]
pub struct Log {
    /// Only the last N records.
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<usize>,
}

/// Options of `cat-config`.
#[derive(Debug, Args)]
pub struct CatConfig {
    /// `node` or the name of a module; everything where not given.
    pub what: Option<String>,
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// For which shell.
    pub shell: Shell,
}

/// The shells that completions are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Into /usr/share/bash-completion/completions/mesh
    Bash,
    /// Into a folder of $fpath, as _mesh
    Zsh,
    /// Into ~/.config/fish/completions/mesh.fish
    Fish,
}
