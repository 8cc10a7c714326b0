//! `cowhand completion`: a script that completes cowhand's command line in a shell.

use std::io::Write;
use std::process::ExitCode;

use clap_complete::{Shell, generate};

use crate::cli;
use crate::failure::Failure;

/// Arguments of `cowhand completion`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cowhand completion bash > /etc/bash_completion.d/cowhand
  cowhand completion zsh > \"${fpath[1]}/_cowhand\"
  cowhand completion fish > ~/.config/fish/completions/cowhand.fish")]
pub struct Args {
    /// The shell that will read the script
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut cli::command(), "cowhand", &mut script);
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
