//! `cowhand completion`: a script that completes cowhand's command line in a shell.

use std::io::Write;
use std::process::ExitCode;

use clap_complete::{Shell, generate};
use tool::failure::Failure;

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

/// Prints the script for `cli`, the program's command line.
pub fn run(args: &Args, mut cli: clap::Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut cli, "cowhand", &mut script);
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
