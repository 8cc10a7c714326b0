//! What `query-qmp-schema` describes is what there is. What differs from QEMU's own description, `cargo xtask schema-diff` finds.

use std::collections::BTreeSet;

use black_box::Scratch;
use serde_json::{Value, json};

use super::begin_with_nothing;

#[test]
fn the_schema_names_every_command() {
    let scratch = Scratch::new();
    let (_server, mut client) = begin_with_nothing(&scratch);
    let schema = client.ok("query-qmp-schema", json!({}));
    let names = |value: &Value, is_listed: fn(&Value) -> bool| -> BTreeSet<String> {
        let entries = value.as_array().expect("a list").iter().filter(|entry| is_listed(entry));
        entries.map(|entry| entry["name"].as_str().expect("a name").to_owned()).collect()
    };
    let described = names(&schema, |entry| entry["meta-type"] == "command");
    let commands = client.ok("query-commands", json!({}));
    assert_eq!(described, names(&commands, |_| true));
}
