//! The book's page of QMP's commands and events, of which docs/reference/qmp-schema.md is the beginning: what the schema says.

use control::{Argument, CommandSpec, Kind, Variant};

use super::commands::{COMMANDS, EVENTS};
use super::node_schema::BLOCKDEV;

const INTRODUCTION: &str = "\
# QMP: commands, arguments, events

**Question it answers:** which arguments does each command take, of which types, and which may be left out?

Made from the schema that commands are checked against, by `cowhand manual --markdown=qmp`; a running server describes
the same with `query-qmp-schema`. What commands do is in [qmp.md](qmp.md), what options of a drive do in
[options.md](options.md).

A dotted name is a member of an object, `[]` an element of a list. A number is whole and not negative. A *node* is the
object that `blockdev-add` takes.
";

/// The page.
pub fn markdown() -> String {
    let (plain, others): (Vec<_>, Vec<_>) = COMMANDS.iter().partition(|command| takes_nothing(command));
    let mut text = INTRODUCTION.to_owned();
    text += "\n## Commands without arguments\n\n";
    let names: Vec<String> = plain.iter().map(|command| format!("`{}`", command.name)).collect();
    text += &format!("{}\n\n## Commands with arguments\n", names.join(", "));
    for command in others {
        text += &section(command.name, "argument", &command.arguments);
    }
    text += "\n## Events\n";
    for event in EVENTS {
        text += &section(event.name, "member", &event.data);
    }
    text
}

fn takes_nothing(command: &CommandSpec) -> bool {
    matches!(command.arguments, Kind::Object([]))
}

fn section(name: &str, what: &str, kind: &Kind) -> String {
    let mut tables = Tables::default();
    tables.add(0, kind, "");
    let shown = tables.0.iter().filter(|table| !table.rows.is_empty());
    let shown: Vec<String> = shown.map(|table| table.text(what)).collect();
    format!("\n### {name}\n\n{}", shown.join("\n"))
}

/// A row for each member that `condition` brings.
#[derive(Default)]
struct Table {
    /// Values of the members that decide; empty where none does.
    condition: String,
    rows: String,
}

impl Table {
    fn text(&self, what: &str) -> String {
        let condition = match self.condition.as_str() {
            "" => String::new(),
            condition => format!("With {condition}:\n\n"),
        };
        format!("{condition}| {what} | type | |\n|---|---|---|\n{}", self.rows)
    }
}

/// The tables of an object: the first of what it has in any case, then one for each value of a member that decides.
#[derive(Default)]
struct Tables(Vec<Table>);

impl Tables {
    /// Adds the members of `kind`, if it has any, to the table `at`.
    fn add(&mut self, at: usize, kind: &Kind, prefix: &str) {
        match kind {
            Kind::Object(members) => self.add_members(at, members, prefix),
            Kind::Union { tag, common, variants } => self.add_union(at, (tag, common, variants), prefix),
            Kind::List(of) => self.add_below(at, of, &format!("{}[].", prefix.trim_end_matches('.'))),
            Kind::Either(kinds) => kinds.iter().for_each(|kind| self.add_below(at, kind, prefix)),
            Kind::Ref(kind) => self.add(at, kind, prefix),
            Kind::Text | Kind::Choice(_) | Kind::Switch | Kind::Whole(_) | Kind::Null | Kind::Any => {}
        }
    }

    /// As [`Tables::add`]; the members of a node stand at `blockdev-add`.
    fn add_below(&mut self, at: usize, kind: &'static Kind, prefix: &str) {
        match kind {
            Kind::Ref(kind) => self.add_below(at, kind, prefix),
            kind if is_node(kind) => {}
            kind => self.add(at, kind, prefix),
        }
    }

    fn add_union(
        &mut self,
        at: usize,
        (tag, common, variants): (&str, &'static [Argument], &'static [Variant]),
        prefix: &str,
    ) {
        let name = format!("{prefix}{tag}");
        let values: Vec<&str> = variants.iter().map(|variant| variant.tag).collect();
        self.put(at, row(&name, &choice(&values), true));
        self.add_members(at, common, prefix);
        let outer = self.0.get(at).map_or_else(String::new, |table| table.condition.clone());
        let and = if outer.is_empty() { "" } else { " and " };
        // Values that bring the same members share a table.
        for same in variants.chunk_by(|one, next| std::ptr::eq(one.members, next.members)) {
            let values: Vec<&str> = same.iter().map(|variant| variant.tag).collect();
            let condition = format!("{outer}{and}`{name}` {}", choice(&values));
            let new = self.0.len();
            self.0.push(Table { condition, rows: String::new() });
            if let Some(variant) = same.first() {
                self.add_members(new, variant.members, prefix);
            }
        }
    }

    fn add_members(&mut self, at: usize, members: &[Argument], prefix: &str) {
        for Argument { name, kind, required } in members {
            // A part that has such a part again: described once.
            let is_again = prefix.ends_with(&format!("{name}."));
            let name = format!("{prefix}{name}");
            self.put(at, row(&name, &type_of(kind), *required));
            let below = format!("{name}.");
            match kind {
                Kind::Ref(_) if is_again => {}
                Kind::Ref(kind) => self.add_below(at, kind, &below),
                kind => self.add(at, kind, &below),
            }
        }
    }

    fn put(&mut self, at: usize, row: String) {
        if self.0.is_empty() {
            self.0.push(Table::default());
        }
        if let Some(table) = self.0.get_mut(at) {
            table.rows += &row;
        }
    }
}

fn row(name: &str, type_name: &str, is_required: bool) -> String {
    let needed = if is_required { "required" } else { "optional" };
    format!("| `{name}` | {type_name} | {needed} |\n")
}

fn is_node(kind: &'static Kind) -> bool {
    std::ptr::eq(kind, &BLOCKDEV)
}

fn type_of(kind: &Kind) -> String {
    let shared = |kind: &'static Kind| match is_node(kind) {
        true => "[node](#blockdev-add)".to_owned(),
        false => type_of(kind),
    };
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::Choice(choices) => choice(choices),
        Kind::Switch => "bool".to_owned(),
        Kind::Whole(_) => "number".to_owned(),
        Kind::Null => "null".to_owned(),
        Kind::List(of) => format!("list of {}", shared(of)),
        Kind::Object(_) | Kind::Union { .. } => "object".to_owned(),
        Kind::Either(kinds) => {
            let kinds: Vec<String> = kinds.iter().map(|kind| shared(kind)).collect();
            kinds.join(" or ")
        }
        Kind::Ref(kind) => shared(kind),
        Kind::Any => "any".to_owned(),
    }
}

fn choice(values: &[&str]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    values.join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_the_schema_begins_as_the_document_does() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/qmp-schema.md");
        let found = std::fs::read_to_string(&path).unwrap();
        let (begins, _) = found.split_once("\n<!-- what follows is made by the program").unwrap();
        assert!(!begins.is_empty() && markdown().starts_with(begins));
    }

    #[test]
    fn the_page_names_each_command_argument_and_event() {
        let page = markdown();
        for command in COMMANDS {
            let heading = format!("\n### {}\n", command.name);
            assert!(page.contains(&heading) != takes_nothing(command), "{}", command.name);
            assert!(page.contains(&format!("`{}`", command.name)) || page.contains(&heading));
        }
        for event in EVENTS {
            assert!(page.contains(&format!("\n### {}\n", event.name)), "{}", event.name);
        }
        let rows = "\
### block_resize\n\n| argument | type | |\n|---|---|---|\n| `device` | text | optional |\n| `node-name` | text | optional |\n\
| `size` | number | required |\n| `x-shrink` | bool | optional |\n";
        let throttle = "\
With `driver` `throttle`:\n\n| argument | type | |\n|---|---|---|\n| `throttle-group` | text | required |\n\
| `file` | text or [node](#blockdev-add) | required |\n";
        for part in [rows, "| `options` | list of [node](#blockdev-add) | required |\n", throttle] {
            assert!(page.contains(part), "{part}");
        }
    }
}
