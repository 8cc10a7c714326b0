//! What `query-qmp-schema` says: every command with the types of its arguments, and every event, as QEMU's own
//! introspection does. Names of types mean nothing: clients follow them.

use std::collections::HashMap;
use std::ptr;

use serde_json::{Value, json};

use crate::schema::{Argument, CommandSpec, EventSpec, Kind, Variant};

/// What JSON itself has, and QEMU's names for it.
const BUILTIN: [(&str, &str); 5] =
    [("str", "string"), ("int", "int"), ("bool", "boolean"), ("null", "null"), ("any", "value")];

/// Everything there is. What commands return is described in prose alone: it is `any`.
pub(crate) fn introspection(
    commands: impl Iterator<Item = &'static CommandSpec>,
    events: &'static [EventSpec],
) -> Value {
    let mut types = Types::default();
    let mut all: Vec<Value> = commands
        .map(|spec| {
            let arguments = types.of(&spec.arguments);
            json!({ "name": spec.name, "meta-type": "command", "arg-type": arguments, "ret-type": "any" })
        })
        .collect();
    all.extend(events.iter().map(|spec| {
        let data = types.of(&spec.data);
        json!({ "name": spec.name, "meta-type": "event", "arg-type": data })
    }));
    all.extend(types.described);
    all.extend(
        BUILTIN.map(|(name, kind)| json!({ "name": name, "meta-type": "builtin", "json-type": kind })),
    );
    Value::Array(all)
}

#[derive(Default)]
struct Types {
    /// By address: kinds may contain themselves.
    names: HashMap<*const Kind, String>,
    described: Vec<Value>,
}

impl Types {
    /// The name of a type, which is described then.
    fn of(&mut self, kind: &'static Kind) -> String {
        match kind {
            Kind::Text => "str".to_owned(),
            Kind::Whole(_) => "int".to_owned(),
            Kind::Switch => "bool".to_owned(),
            Kind::Null => "null".to_owned(),
            Kind::Any => "any".to_owned(),
            Kind::Ref(kind) => self.of(kind),
            Kind::Choice(choices) => self.named(kind, |_| choice(choices)),
            Kind::List(of) => {
                self.named(kind, |types| json!({ "meta-type": "array", "element-type": types.of(of) }))
            }
            Kind::Object(members) => {
                self.named(kind, |types| json!({ "meta-type": "object", "members": types.members(members) }))
            }
            Kind::Either(kinds) => self.named(kind, |types| {
                let members: Vec<Value> =
                    kinds.iter().map(|kind| json!({ "type": types.of(kind) })).collect();
                json!({ "meta-type": "alternate", "members": members })
            }),
            Kind::Union { tag, common, variants } => {
                self.named(kind, |types| types.union(tag, common, variants))
            }
        }
    }

    fn named(&mut self, kind: &'static Kind, describe: impl FnOnce(&mut Self) -> Value) -> String {
        if let Some(name) = self.names.get(&ptr::from_ref(kind)) {
            return name.clone();
        }
        let name = self.names.len().to_string();
        self.names.insert(kind, name.clone());
        let mut described = describe(self);
        described["name"] = json!(name);
        self.described.push(described);
        name
    }

    fn members(&mut self, members: &'static [Argument]) -> Vec<Value> {
        let member = |Argument { name, kind, required }: &'static Argument| match required {
            true => json!({ "name": name, "type": self.of(kind) }),
            // That it may be left out, not what it is then.
            false => json!({ "name": name, "type": self.of(kind), "default": null }),
        };
        members.iter().map(member).collect()
    }

    fn union(&mut self, tag: &str, common: &'static [Argument], variants: &'static [Variant]) -> Value {
        let tags: Vec<&str> = variants.iter().map(|variant| variant.tag).collect();
        let tag_type = self.anonymous(choice(&tags));
        let mut members = self.members(common);
        members.push(json!({ "name": tag, "type": tag_type }));
        let cases: Vec<Value> = variants
            .iter()
            .map(|variant| {
                let members = self.members(variant.members);
                let kind = self.anonymous(json!({ "meta-type": "object", "members": members }));
                json!({ "case": variant.tag, "type": kind })
            })
            .collect();
        json!({ "meta-type": "object", "members": members, "tag": tag, "variants": cases })
    }

    /// The name of a type that is nowhere else.
    fn anonymous(&mut self, mut described: Value) -> String {
        let name = format!("a{}", self.described.len());
        described["name"] = json!(name);
        self.described.push(described);
        name
    }
}

fn choice(choices: &[&str]) -> Value {
    let members: Vec<Value> = choices.iter().map(|name| json!({ "name": name })).collect();
    json!({ "meta-type": "enum", "members": members, "values": choices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{optional, required};

    static NODE: Kind = Kind::Union {
        tag: "driver",
        common: &[optional("node-name", Kind::Text)],
        variants: &[
            Variant { tag: "file", members: &[required("filename", Kind::Text)] },
            Variant { tag: "raw", members: &[required("file", Kind::Either(&[&Kind::Text, &NODE]))] },
        ],
    };

    static COMMANDS: [CommandSpec; 2] = [
        CommandSpec { name: "add", arguments: Kind::Ref(&NODE) },
        CommandSpec { name: "set", arguments: Kind::Object(&[required("nodes", Kind::List(&NODE))]) },
    ];

    static EVENTS: [EventSpec; 1] =
        [EventSpec { name: "GONE", data: Kind::Object(&[required("why", Kind::Choice(&["a", "b"]))]) }];

    fn found<'a>(all: &'a [Value], name: &Value) -> &'a Value {
        all.iter().find(|entry| entry["name"] == *name).unwrap()
    }

    #[test]
    fn a_client_that_follows_the_names_finds_every_argument() {
        let all = introspection(COMMANDS.iter(), &EVENTS);
        let all = all.as_array().unwrap();
        let add = found(all, &json!("add"));
        assert_eq!((&add["meta-type"], &add["ret-type"]), (&json!("command"), &json!("any")));
        let node = found(all, &add["arg-type"]);
        assert_eq!(node["members"][0], json!({ "name": "node-name", "type": "str", "default": null }));
        assert_eq!(found(all, &node["members"][1]["type"])["values"], json!(["file", "raw"]));
        let raw = found(all, &node["variants"][1]["type"]);
        let file = found(all, &raw["members"][0]["type"]);
        assert_eq!(
            file["members"],
            json!([{ "type": "str" }, { "type": add["arg-type"] }]),
            "it contains itself"
        );
        let set = found(all, &found(all, &json!("set"))["arg-type"]);
        let nodes = found(all, &set["members"][0]["type"]);
        assert_eq!((&nodes["meta-type"], &nodes["element-type"]), (&json!("array"), &add["arg-type"]));
        let gone = found(all, &found(all, &json!("GONE"))["arg-type"]);
        assert_eq!(found(all, &gone["members"][0]["type"])["members"][1], json!({ "name": "b" }));
    }

    #[test]
    fn every_name_is_there_once_and_leads_somewhere() {
        let all = introspection(COMMANDS.iter(), &EVENTS);
        let all = all.as_array().unwrap();
        let names: Vec<&str> = all.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
        let text = serde_json::to_string(all).unwrap();
        for part in text.split("type\":\"").skip(1) {
            let name = part.split('"').next().unwrap();
            let is_meta =
                ["command", "event", "object", "enum", "array", "alternate", "builtin"].contains(&name);
            let is_json = BUILTIN.iter().any(|(_, json)| *json == name);
            let times = names.iter().filter(|found| **found == name).count();
            assert!(is_meta || is_json || times == 1, "{name} is there {times} times");
        }
    }
}
