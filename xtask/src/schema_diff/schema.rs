//! What `query-qmp-schema` describes, as paths: commands and events, their members, variants and values.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Entries;

/// Members that describe a node, but for these, are described as those of blockdev-add.
const NODES: [&str; 3] = ["blockdev-add", "blockdev-create.options", "x-blockdev-amend.options"];

/// The tag of what describes a node.
const TAG_OF_NODES: &str = "driver";

/// An action of a transaction takes what the command of its name takes.
const ACTIONS: &str = "transaction.actions[](";

/// Everything that `described` says can be given to a command or comes with an event. A member that must be given is an entry
/// `MEMBER!`, too.
pub fn entries(described: &Value) -> Entries {
    let list = described.as_array().map(Vec::as_slice).unwrap_or_default();
    let schema = Schema(list.iter().map(|entry| (text(entry, "name"), entry)).collect());
    let mut found = Entries::new();
    for (name, entry) in &schema.0 {
        let kind = text(entry, "meta-type");
        if kind == "command" || kind == "event" {
            let named = format!("QMP {kind} {name}");
            found.insert(named.clone());
            schema.follow(text(entry, "arg-type"), &named, name, &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Everything that is described, by name.
struct Schema<'a>(BTreeMap<&'a str, &'a Value>);

impl<'a> Schema<'a> {
    /// Adds all of the type `name` to `found`. It is at `path`, which is `named` behind what it is of; `above` are the types that it is part of.
    fn follow(&self, name: &'a str, path: &str, named: &str, above: &mut Vec<&'a str>, found: &mut Entries) {
        if above.contains(&name) || named.starts_with(ACTIONS) {
            return;
        }
        let Some(entry) = self.0.get(name) else { return };
        above.push(name);
        match text(entry, "meta-type") {
            "array" => {
                let of = text(entry, "element-type");
                self.follow(of, &format!("{path}[]"), &format!("{named}[]"), above, found);
            }
            "alternate" => {
                for one in list(entry, "members") {
                    self.follow(text(one, "type"), path, named, above, found);
                }
            }
            "enum" => found.extend(values(entry).map(|value| format!("{path}={value}"))),
            "object" if text(entry, "tag") != TAG_OF_NODES || NODES.contains(&named) => {
                self.follow_object(entry, path, named, above, found);
            }
            _ => {}
        }
        above.pop();
    }

    fn follow_object(
        &self,
        entry: &'a Value,
        path: &str,
        named: &str,
        above: &mut Vec<&'a str>,
        found: &mut Entries,
    ) {
        let tag = text(entry, "tag");
        for member in list(entry, "members") {
            let (name, kind) = (text(member, "name"), text(member, "type"));
            let (path, named) = (format!("{path}.{name}"), format!("{named}.{name}"));
            found.insert(path.clone());
            if member.get("default").is_none() {
                found.insert(format!("{path}!"));
            }
            // Its values are the variants.
            if name != tag {
                self.follow(kind, &path, &named, above, found);
            }
        }
        for variant in list(entry, "variants") {
            let case = text(variant, "case");
            let (path, named) = (format!("{path}({case})"), format!("{named}({case})"));
            found.insert(path.clone());
            self.follow(text(variant, "type"), &path, &named, above, found);
        }
    }
}

fn text<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(entry: &'a Value, name: &str) -> &'a [Value] {
    entry.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn values(entry: &Value) -> impl Iterator<Item = &str> {
    list(entry, "values").iter().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_variants_and_values_are_paths_and_nodes_below_nodes_are_not_followed() {
        let described = json!([
            { "name": "blockdev-add", "meta-type": "command", "arg-type": "0", "ret-type": "any" },
            { "name": "0", "meta-type": "object", "tag": "driver",
              "members": [{ "name": "driver", "type": "1" }, { "name": "cache", "type": "2", "default": null }],
              "variants": [{ "case": "raw", "type": "3" }] },
            { "name": "1", "meta-type": "enum", "values": ["raw"] },
            { "name": "2", "meta-type": "enum", "values": ["on", "off"] },
            { "name": "3", "meta-type": "object", "members": [{ "name": "file", "type": "4" }] },
            { "name": "4", "meta-type": "alternate", "members": [{ "type": "str" }, { "type": "0" }] },
            { "name": "STOP", "meta-type": "event", "arg-type": "5" },
            { "name": "5", "meta-type": "object", "members": [] },
            { "name": "blockdev-reopen", "meta-type": "command", "arg-type": "6" },
            { "name": "6", "meta-type": "object", "members": [{ "name": "options", "type": "7" }] },
            { "name": "7", "meta-type": "array", "element-type": "0" },
            { "name": "str", "meta-type": "builtin", "json-type": "string" },
        ]);
        let expected = [
            "QMP command blockdev-add",
            "QMP command blockdev-add(raw)",
            "QMP command blockdev-add(raw).file",
            "QMP command blockdev-add(raw).file!",
            "QMP command blockdev-add.cache",
            "QMP command blockdev-add.cache=off",
            "QMP command blockdev-add.cache=on",
            "QMP command blockdev-add.driver",
            "QMP command blockdev-add.driver!",
            "QMP command blockdev-reopen",
            "QMP command blockdev-reopen.options",
            "QMP command blockdev-reopen.options!",
            "QMP event STOP",
        ];
        assert_eq!(entries(&described).into_iter().collect::<Vec<_>>(), expected);
    }
}
