//! `cowhand serve --drive-options`: what the table of drive options says, for people, for programs and as the book's page of them, of which docs/reference/options.md is the beginning.

use std::io::{self, Write};

use clap::ValueEnum;
use graph::options::{Changes, Group, Kind, Spec, table};
use serde::Serialize;
use tool::output::write_json;

/// What the list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Text for people
    Human,
    /// JSON
    Json,
    /// Markdown: tables of the book
    Markdown,
}

/// What the list is, and the keys of `Described`.
pub const LONG_HELP: &str = "\
List the options of a drive: what each takes and does, its default, and what changes it while the disk is open

json is a list of objects: name, of (the kind of options), type, default, help and toml (what it is in a file) are text; values is a list of text; \
min, max and multiple-of are whole numbers, alias, changed-by and qmp (its name there) text, each of them null where there is none.";

/// An option, for programs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Described {
    name: String,
    alias: Option<String>,
    of: &'static str,
    r#type: &'static str,
    values: Vec<&'static str>,
    min: Option<u64>,
    max: Option<u64>,
    multiple_of: Option<u64>,
    default: &'static str,
    help: &'static str,
    changed_by: Option<&'static str>,
    qmp: Option<&'static str>,
    toml: &'static str,
}

impl Described {
    fn of(spec: &Spec) -> Self {
        let (values, min, max, multiple_of) = match spec.kind {
            Kind::Switch => (vec!["on", "off"], None, None, None),
            Kind::Size { multiple_of, max } => (Vec::new(), Some(0), Some(max), Some(multiple_of)),
            Kind::Whole { min, max } => (Vec::new(), Some(min), Some(max), None),
            _ => (spec.kind.choices(), None, None, None),
        };
        Self {
            name: spec.full_name(),
            alias: spec.full_alias(),
            of: spec.group.title(),
            r#type: type_name(spec.kind),
            values,
            min,
            max,
            multiple_of,
            default: spec.default_words(),
            help: spec.help,
            changed_by: spec.changed_by(),
            qmp: spec.qmp_name(),
            toml: toml_form(spec.kind),
        }
    }
}

fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch => "switch",
        Kind::Choice(_) | Kind::Format | Kind::Storage => "choice",
        Kind::Size { .. } => "size",
        Kind::Whole { .. } => "number",
        Kind::Text { .. } => "text",
        Kind::Path => "path",
        Kind::File => "file",
        Kind::Image => "image",
        Kind::List => "list",
    }
}

/// What it is in a configuration file and in `json:`.
fn toml_form(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch => "boolean, or a text",
        Kind::Size { .. } => "integer, or a text with a suffix",
        Kind::Whole { .. } => "integer",
        Kind::Choice(_) | Kind::Format | Kind::Storage | Kind::Text { .. } | Kind::Path => "text",
        Kind::File => "text, or a table",
        Kind::Image => "table",
        Kind::List => "array of tables",
    }
}

/// Writes the list.
pub fn list(format: ListFormat, out: &mut dyn Write) -> io::Result<()> {
    match format {
        ListFormat::Human => out.write_all(human().as_bytes()),
        ListFormat::Json => write_json(out, &table::all().map(Described::of).collect::<Vec<_>>()),
        ListFormat::Markdown => out.write_all(markdown().as_bytes()),
    }
}

fn of_group(group: Group) -> impl Iterator<Item = &'static Spec> {
    table::all().filter(move |spec| spec.group == group)
}

fn human() -> String {
    let mut text = String::new();
    for group in table::groups() {
        text += &format!("Options of {}:\n", group.title());
        for spec in of_group(group) {
            let changed =
                spec.changed_by().map_or_else(String::new, |command| format!("; changed by {command}"));
            let alias = spec.full_alias().map_or_else(String::new, |alias| format!("; also {alias}"));
            let default = spec.default_words();
            text += &format!("  {}\n      {}\n      default: {default}", spec.usage(), spec.help);
            text += &format!("; takes: {}{alias}{changed}\n", spec.takes());
        }
        text.push('\n');
    }
    text + "What no command changes stays as it is while the disk is open. data-file.OPTION and header.OPTION are as file.OPTION.\n"
}

const INTRODUCTION: &str = "\
# Options of a drive

**Question it answers:** which options does a drive take, with which defaults, and which change while it is open?

Made from the program's own table by `cowhand serve --drive-options=markdown`; `cowhand serve --drive-options` prints
the same, and `--drive-options=json` for programs. Names, values and defaults are QEMU's; [compat.md](compat.md) says
what differs.

A DRIVE has them as `name=value,name=value`, dotted names reach into its parts (`backing.l2-cache-size=1M`). In
`json:{...}`, and in a `[[drive]]` of a configuration file (TOML), a switch is `true` or `false`, a number a number and
everything else a text; a size may be either. Parts are objects there, or dotted names. blockdev-add has the names of
the column QMP, where a dotted name is a member of an object.

What no command changes stays as it is while the disk is open, and a change of it is refused by name. `cowhand reopen`
and `x-blockdev-set` change whatever `blockdev-reopen` does.
";

fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in table::groups() {
        text += &format!("\n## Options of {}\n\n", group.title());
        text += "| option | says | takes | default | changed by | QMP |\n|---|---|---|---|---|---|\n";
        for spec in of_group(group) {
            let code = |text: &str| format!("`{text}`");
            let alias = spec.full_alias().map_or_else(String::new, |alias| format!(", {}", code(&alias)));
            let changed = match (spec.changes, spec.changed_by()) {
                (Changes::AsItsParts, _) => "as its parts".to_owned(),
                (_, command) => command.map_or_else(|| "nothing".to_owned(), code),
            };
            let qmp = spec.qmp_name().map_or_else(|| "no".to_owned(), code);
            let (takes, default) = (spec.takes(), spec.default_words());
            let name = code(&spec.full_name());
            text += &format!("| {name}{alias} | {} | {takes} | {default} | {changed} | {qmp} |\n", spec.help);
        }
    }
    text + "\nAn image that keeps its data in a file of its own has the file's options as `data-file.OPTION` too, and a LUKS disk with a header \
         in a file of its own has them as `header.OPTION`.\n"
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_options_begins_as_the_list_does() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/options.md");
        let found = std::fs::read_to_string(&path).unwrap();
        let (begins, _) = found.split_once("\n<!-- what follows is made by the program").unwrap();
        assert!(!begins.is_empty() && markdown().starts_with(begins));
    }

    #[test]
    fn the_long_help_names_each_key_of_the_json() {
        let value = serde_json::to_value(table::all().map(Described::of).collect::<Vec<_>>()).unwrap();
        let keys = value.as_array().unwrap().iter().flat_map(|option| option.as_object().unwrap().keys());
        let words: Vec<&str> = LONG_HELP.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
        keys.for_each(|key| assert!(words.contains(&key.as_str()), "{key}"));
    }

    #[test]
    fn every_list_names_each_option() {
        let mut json = Vec::new();
        list(ListFormat::Json, &mut json).unwrap();
        let listed: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
        assert_eq!(listed.len(), table::all().count());
        for (spec, listed) in table::all().zip(&listed) {
            let name = spec.full_name();
            assert_eq!(listed["name"], *name);
            assert!(human().contains(&format!("  {}\n", spec.usage())), "{name}");
            assert!(markdown().contains(&format!("| `{name}`")), "{name}");
        }
    }
}
