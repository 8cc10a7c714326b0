//! `cowhand manual`: the manual pages, and pages of the reference, from what the program says of itself.

pub mod examples;
mod markdown;
mod page;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use monitor::metrics::table;
use monitor::qmp::reference;
use tool::failure::Failure;

use crate::drive::DRIVE_HELP;
use crate::exit_codes;

/// Arguments of `cowhand manual`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Write the manual pages: one for cowhand, and one for each command, called cowhand-COMMAND.1.\n\n\
        Older pages of these names are replaced. Packages have them already."
)]
pub struct Args {
    /// Write the pages to this directory, which is made if it is missing
    #[arg(value_name = "DIR", required_unless_present = "markdown")]
    directory: Option<PathBuf>,

    /// Print a page of the reference in Markdown [default: tools, all commands]
    #[arg(long, value_enum, value_name = "PAGE", num_args = 0..=1, require_equals = true, default_missing_value = "tools",
          conflicts_with = "directory")]
    markdown: Option<Page>,
}

/// A page of docs/reference that the program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Page {
    /// All commands
    Tools,
    /// What each command ends with
    ExitCodes,
    /// Figures for Prometheus
    Metrics,
    /// Commands and events of QMP
    Qmp,
}

impl Page {
    fn text(self, tools: &[clap::Command]) -> String {
        match self {
            Self::Tools => markdown::document(tools),
            Self::ExitCodes => exit_codes::markdown(),
            Self::Metrics => table::markdown(),
            Self::Qmp => reference::markdown(),
        }
    }
}

/// Writes those of `cli`, the program's command line.
pub fn run(args: &Args, cli: clap::Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let tools = tools(cli);
    match &args.directory {
        None => out.write_all(args.markdown.unwrap_or(Page::Tools).text(&tools).as_bytes())?,
        Some(directory) => write_pages(directory, &tools)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_pages(directory: &Path, tools: &[clap::Command]) -> Result<(), Failure> {
    let made = std::fs::create_dir_all(directory);
    made.map_err(|error| Failure::because(format!("cannot make {}", directory.display()), &error))?;
    for tool in tools {
        let path = directory.join(format!("{}.1", page_name(tool)));
        let written = page::page(tool).and_then(|page| std::fs::write(&path, page));
        written.map_err(|error| Failure::because(format!("cannot write {}", path.display()), &error))?;
    }
    Ok(())
}

/// The program and every command of it, in the order of `--help`; what has commands of its own stands before them.
fn tools(cli: clap::Command) -> Vec<clap::Command> {
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    let mut tools = Vec::new();
    collect(&cli, &mut tools);
    tools
}

fn collect(tool: &clap::Command, tools: &mut Vec<clap::Command>) {
    tools.push(tool.clone());
    tool.get_subcommands()
        .filter(|command| !command.is_hide_set())
        .for_each(|command| collect(command, tools));
}

/// `cowhand-cache-advise`.
fn page_name(tool: &clap::Command) -> &str {
    tool.get_display_name().unwrap_or(tool.get_name())
}

/// `cowhand cache advise`.
fn words(tool: &clap::Command) -> &str {
    tool.get_bin_name().unwrap_or(tool.get_name())
}

/// What stands under a command's help, without what a DRIVE is.
fn notes(tool: &clap::Command) -> String {
    let help = tool.get_after_long_help().or(tool.get_after_help());
    let text = help.map_or_else(String::new, ToString::to_string);
    text.replace(DRIVE_HELP, "").trim().to_owned()
}

/// Whether a command takes a DRIVE.
fn takes_drive(tool: &clap::Command) -> bool {
    let help = tool.get_after_long_help().or(tool.get_after_help());
    help.is_some_and(|text| text.to_string().contains(DRIVE_HELP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_page_of_tools_begins_as_the_document_does() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/tools.md");
        let found = std::fs::read_to_string(&path).unwrap();
        let (begins, _) = found.split_once("\n<!-- what follows is made by the program").unwrap();
        assert!(!begins.is_empty() && markdown::document(&tools(cli::command())).starts_with(begins));
    }

    #[test]
    fn every_example_belongs_to_a_command() {
        let tools = tools(cli::command());
        for (name, _) in examples::sections() {
            assert!(tools.iter().any(|tool| words(tool) == format!("cowhand {name}")), "{name}");
        }
    }

    #[test]
    fn every_command_has_a_page_with_all_its_options() {
        for tool in tools(cli::command()) {
            let page = String::from_utf8(page::page(&tool).unwrap()).unwrap();
            let shown = tool.get_arguments().filter(|argument| !argument.is_hide_set());
            for option in shown.filter_map(clap::Arg::get_long) {
                let written = option.replace('-', "\\-");
                assert!(page.contains(&written), "{}: {option}", words(&tool));
            }
        }
    }
}
