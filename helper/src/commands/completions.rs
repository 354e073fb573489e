//! The verb `completions`: a script for one shell, made from the command line's own definition.

use crate::cli::{Cli, Completions, Shell};
use crate::commands::Context;
use crate::show::text;
use clap::CommandFactory as _;

/// Runs `completions`.
pub fn run(_ctx: &Context, args: &Completions) -> anyhow::Result<()> {
    text::out(script(args.shell)?.trim_end())
}

/// The script for `shell`.
pub fn script(shell: Shell) -> anyhow::Result<String> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mesh", &mut out);
    Ok(String::from_utf8(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_is_shown_is_completed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell).unwrap();
            for verb in Cli::command().get_subcommands().filter(|v| !v.is_hide_set()) {
                assert!(script.contains(verb.get_name()), "{shell:?}: {}", verb.get_name());
            }
        }
    }
}
