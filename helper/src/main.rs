//! `/usr/bin/mesh`: parse, run, exit code.

use clap::Parser;
use clap::error::ErrorKind;
use mesh::cli::{Cli, Verb};
use mesh::commands::{self, Context};
use mesh::layout::Layout;
use mesh::show;
use mesh_model::failure::{Failure, Kind};
use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    // Without this a slip of the pen would look like a machine that was never adopted.
    if !cli.root.is_dir() {
        let failure = Failure::new(Kind::Usage, "--root names no directory").at(cli.root.display().to_string());
        show::failure::print(cli.json, &failure);
        return ExitCode::from(Kind::Usage.exit_code());
    }
    let ctx = Context { layout: Layout::new(cli.root), json: cli.json };
    match run(&ctx, &cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let failure = mesh::failure::of(&e);
            show::failure::print(ctx.json, &failure);
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

fn run(ctx: &Context, verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Probe => commands::probe::run(ctx),
        Verb::Init(args) => commands::init::run(ctx, args),
        Verb::Status => commands::status::run(ctx),
        Verb::Adopt(args) => commands::adopt::run(ctx, args),
        Verb::Release(args) => commands::release::run(ctx, args),
        Verb::Custody(args) => commands::custody::run(ctx, args),
        Verb::Openings(args) => commands::openings::run(ctx, args),
        Verb::Log(args) => commands::log::run(ctx, args),
        Verb::CatConfig(args) => commands::cat_config::run(ctx, args),
        Verb::Completions(args) => commands::completions::run(ctx, args),
        Verb::Recover(args) => commands::recover::run(ctx, args),
        Verb::Flip => {
            Err(Failure::refused("this release cannot flip: it has no preview, and a flip without one is not safe")
                .remedy(format!("the mode stays {}, and nothing was stopped", ctx.head().mode))
                .into())
        }
        Verb::CheckConfig => commands::check_config::run(ctx),
        Verb::UserManager => commands::user_manager::run(),
    }
}

/// What clap has to say: help and version are asked for (0), everything else is a usage failure (2).
fn usage(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match e.print() {
            Ok(()) => ExitCode::SUCCESS,
            // A reader that went away.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(e) => {
                show::failure::print(false, &Failure::new(Kind::Failed, e.to_string()));
                ExitCode::from(Kind::Failed.exit_code())
            }
        };
    }
    let json = std::env::args().any(|a| a == "--json");
    let text = e.render().to_string();
    let what = match e.kind() {
        // What clap has for it is the whole help, or a list with the hidden verbs in it.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "no verb is given; mesh --help lists verbs and options".to_string()
        }
        _ => text.trim_start_matches("error: ").trim_end().to_string(),
    };
    if json {
        show::failure::print(true, &Failure::new(Kind::Usage, what));
    } else {
        show::failure::print(false, &Failure::new(Kind::Usage, what));
    }
    ExitCode::from(Kind::Usage.exit_code())
}
