//! A command of the control socket has both a schema and an arm that does it.

use std::collections::BTreeSet;

use super::tree::Tree;

const SCHEMA: &str = "crates/monitor/src/qmp/schema.rs";
const ARMS: &str = "crates/monitor/src/qmp.rs";

/// Commands that `control` itself does, for every handler.
const SESSIONS: [&str; 4] = ["qmp_capabilities", "query-commands", "query-qmp-schema", "query-version"];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let (described, done) = (described(tree.text(SCHEMA)), done(tree.text(ARMS)));
    if described.is_empty() || done.is_empty() {
        return vec![format!("{SCHEMA} or {ARMS}: no commands were found there")];
    }
    let known = |name: &&&str| !SESSIONS.contains(name);
    let without_arm = described.difference(&done).filter(known);
    let without_schema = done.difference(&described).filter(known);
    let arm = without_arm.map(|name| format!("{SCHEMA}: {name} has no arm in {ARMS}"));
    let schema = without_schema.map(|name| format!("{ARMS}: {name} has no schema in {SCHEMA}"));
    arm.chain(schema).collect()
}

/// Names in the table of commands.
fn described(schema: &str) -> BTreeSet<&str> {
    let table = schema.split("static COMMANDS").nth(1).unwrap_or_default();
    let table = table.split("\n];").next().unwrap_or_default();
    let entries = ["command!(", "CommandSpec {"].into_iter().flat_map(|entry| table.split(entry).skip(1));
    entries.filter_map(|entry| entry.split('"').nth(1)).collect()
}

/// Names that an arm of a match begins with.
fn done(arms: &str) -> BTreeSet<&str> {
    let lines = arms.lines().map(str::trim).filter(|line| line.starts_with('"'));
    let patterns = lines.filter_map(|line| line.split_once(" =>")).map(|(pattern, _)| pattern);
    patterns.flat_map(|pattern| pattern.split('"').skip(1).step_by(2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "pub static COMMANDS: &[CommandSpec] = &[\n    command!(\"quit\"),\n    \
                         CommandSpec { name: \"stop\", arguments: \"y\" },\n];\n";

    #[test]
    fn schema_and_arms_name_the_same_commands() {
        let both = "match name {\n    \"quit\" | \"stop\" => go(),\n}\n";
        assert_eq!(complaints(&Tree::of(&[(SCHEMA, TABLE), (ARMS, both)])), [""; 0]);
        let other = "    \"quit\" => go(),\n    \"cont\" => go(),\n";
        let found = complaints(&Tree::of(&[(SCHEMA, TABLE), (ARMS, other)]));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_table_that_moved_away_is_noticed() {
        assert_eq!(complaints(&Tree::of(&[(SCHEMA, "")])).len(), 1);
    }
}
