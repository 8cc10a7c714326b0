//! All commands as one document: the book's page of the tools, of which docs/reference/tools.md is the beginning.

use super::{examples, notes, takes_drive, words};
use crate::drive::DRIVE_HELP;

const INTRODUCTION: &str = "\
# The tools

**Question it answers:** which commands are there, which options do they take, and with which exit codes do they end?

Made from the command line's own definitions by `cowhand manual --markdown`; `cowhand manual DIR` writes the same as
manual pages, and `cowhand COMMAND --help` prints it. The examples are run by a test; `...` stands for lines that are
left out. What differs from QEMU's tools is in [compat.md](compat.md); options of a drive are in
[options.md](options.md).
";

/// The document. Each tool stands under a heading of its own.
pub fn document(tools: &[clap::Command]) -> String {
    let mut text = INTRODUCTION.to_owned();
    let commands = || tools.iter().skip(1);
    text += "\n| command | |\n|---|---|\n";
    for tool in commands() {
        let about = tool.get_about().map_or_else(String::new, ToString::to_string);
        text += &format!("| [{}](#{}) | {} |\n", words(tool), words(tool).replace(' ', "-"), cell(&about));
    }
    text += "\n## What a drive is\n\n";
    text += &indented(DRIVE_HELP);
    commands().for_each(|tool| text += &section(tool));
    text
}

fn section(tool: &clap::Command) -> String {
    let mut text = format!("\n## {}\n\n", words(tool));
    let about = tool.get_long_about().or(tool.get_about()).map_or_else(String::new, ToString::to_string);
    text += &format!("{}\n\n", about.trim().replace('<', "\\<"));
    let usage = tool.clone().render_usage().to_string();
    text += &indented(usage.trim_start_matches("Usage:").trim());
    if let Some(example) = examples::of(words(tool)) {
        text += &format!("\nAn example:\n\n{}", indented(example));
    }
    let notes = notes(tool);
    if !notes.is_empty() {
        text += &format!("\n{}", indented(&notes));
    }
    if takes_drive(tool) {
        text += "\nDRIVE: [what a drive is](#what-a-drive-is).\n";
    }
    text + &options(tool)
}

fn options(tool: &clap::Command) -> String {
    let shown = |argument: &&clap::Arg| {
        !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
    };
    let mut arguments: Vec<_> = tool.get_arguments().filter(shown).collect();
    // As `--help` has them: positional ones first.
    arguments.sort_by_key(|argument| (!argument.is_positional(), argument.get_display_order()));
    let rows: Vec<String> = arguments.into_iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n| argument | says |\n|---|---|\n{}", rows.concat()),
    }
}

fn row(argument: &clap::Arg) -> String {
    let mut help =
        argument.get_long_help().or(argument.get_help()).map_or_else(String::new, ToString::to_string);
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect();
    if argument.get_action().takes_values()
        && !argument.is_hide_possible_values_set()
        && values.len() > 1
        && values != ["true", "false"]
    {
        help += &format!(": {}", values.join(", "));
    }
    let default: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !default.is_empty() && argument.get_action().takes_values() && !argument.is_hide_default_value_set() {
        help += &format!(" [default: {}]", default.join(", "));
    }
    format!("| {} | {} |\n", names(argument), cell(&help))
}

/// `-f FORMAT`, `--force-share`, `DRIVE`.
fn names(argument: &clap::Arg) -> String {
    let value =
        argument.get_value_names().map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
    let value = value
        .filter(|_| argument.get_action().takes_values())
        .map_or_else(String::new, |names| names.join(" "));
    if argument.is_positional() {
        return format!("`{}`", value.replace('|', "\\|"));
    }
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let mut names: Vec<String> = short.into_iter().chain(long).collect();
    if let Some(last) = names.last_mut().filter(|_| !value.is_empty()) {
        *last += &format!(" {value}");
    }
    names.iter().map(|name| format!("`{}`", name.replace('|', "\\|"))).collect::<Vec<_>>().join(", ")
}

/// Text in a table.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|").replace('<', "\\<")
}

/// Lines as they were typed or printed.
fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect()
}
