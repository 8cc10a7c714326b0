//! `key=value,...` as QEMU's servers take it, to the arguments of a command of the control socket. Of several equal keys the last counts.

use control::{Argument, Kind};
use graph::drive::split_text;
use graph::size::parse_size;
use serde_json::{Map, Value};
use tool::failure::Failure;

/// Parts of one key: as many as a drive may have.
const KEY_PARTS_MAX: usize = 64;

/// Reads the value of `option`: a JSON object, or pairs with dotted keys. A first part without a key belongs to `implied`.
///
/// # Errors
/// When it is neither, or a key is also the beginning of another one.
pub fn parse(option: &str, text: &str, implied: &str) -> Result<Map<String, Value>, Failure> {
    read(option, text, (implied, false))
}

/// As [`parse`]; a key without a value is on, with `no` before it off.
///
/// # Errors
/// As [`parse`].
pub fn parse_with_switches(option: &str, text: &str, implied: &str) -> Result<Map<String, Value>, Failure> {
    read(option, text, (implied, true))
}

fn read(
    option: &str,
    text: &str,
    (implied, has_switches): (&str, bool),
) -> Result<Map<String, Value>, Failure> {
    let refused = |why: String| Failure::new(format!("{option} {text}: {why}"));
    if text.starts_with('{') {
        return serde_json::from_str(text)
            .map_err(|error| Failure::because(format!("{option}: no JSON object"), &error));
    }
    let mut object = Map::new();
    for (index, part) in split_text(text).enumerate() {
        let (key, value) = match part.split_once('=') {
            Some(pair) => pair,
            None if index == 0 && !implied.is_empty() => (implied, part.as_str()),
            None if has_switches => match part.strip_prefix("no") {
                Some(name) => (name, "off"),
                None => (part.as_str(), "on"),
            },
            None => return Err(refused(format!("{part:?} has no value"))),
        };
        let parts: Vec<_> = key.split('.').collect();
        if parts.len() > KEY_PARTS_MAX || parts.iter().any(|part| part.is_empty()) {
            return Err(refused(format!("{key:?} is no key")));
        }
        put(&mut object, &parts, value).ok_or_else(|| refused(format!("{key} has a value and members")))?;
    }
    Ok(object)
}

/// `None` if there is something else under that key.
fn put(object: &mut Map<String, Value>, parts: &[&str], value: &str) -> Option<()> {
    let (first, rest) = parts.split_first()?;
    if rest.is_empty() {
        let old = object.insert((*first).to_owned(), Value::String(value.to_owned()));
        return (!old.is_some_and(|old| old.is_object())).then_some(());
    }
    let inner = object.entry(*first).or_insert_with(|| Value::Object(Map::new()));
    put(inner.as_object_mut()?, rest, value)
}

/// Texts of the command line as what `kind` takes. What does not fit stays a text, and is refused where it is checked.
pub fn typed(kind: &Kind, value: Value) -> Value {
    match (kind, value) {
        (Kind::Ref(kind), value) => typed(kind, value),
        (Kind::Switch, Value::String(text)) => match text.as_str() {
            "on" | "yes" | "true" | "y" => Value::Bool(true),
            "off" | "no" | "false" | "n" => Value::Bool(false),
            _ => Value::String(text),
        },
        (Kind::Whole(_), Value::String(text)) => parse_size(&text).map_or(Value::String(text), Value::from),
        (Kind::List(kind), Value::Object(items)) if is_list(&items) => {
            items.into_iter().map(|(_, item)| typed(kind, item)).collect()
        }
        (Kind::List(kind), Value::Array(items)) => items.into_iter().map(|item| typed(kind, item)).collect(),
        (Kind::Object(members), Value::Object(object)) => typed_members(&[members], object),
        (Kind::Union { tag, common, variants }, Value::Object(object)) => {
            let chosen =
                variants.iter().find(|variant| object.get(*tag).is_some_and(|found| found == variant.tag));
            typed_members(&[common, chosen.map_or(&[], |variant| variant.members)], object)
        }
        (Kind::Either(kinds), value) => {
            let whole = kinds.iter().find(|kind| value.is_object() && is_object(kind));
            whole.map_or(value.clone(), |kind| typed(kind, value))
        }
        (_, value) => value,
    }
}

fn typed_members(known: &[&[Argument]], object: Map<String, Value>) -> Value {
    let kind = |name: &str| {
        known.iter().copied().flatten().find(|member| member.name == name).map(|member| member.kind)
    };
    let member = |(name, value): (String, Value)| {
        let value = match kind(&name) {
            Some(kind) => typed(&kind, value),
            None => value,
        };
        (name, value)
    };
    Value::Object(object.into_iter().map(member).collect())
}

/// `0=a,1=b`: names are the places of a list.
fn is_list(items: &Map<String, Value>) -> bool {
    items.keys().enumerate().all(|(place, name)| *name == place.to_string())
}

fn is_object(kind: &Kind) -> bool {
    match kind {
        Kind::Ref(kind) => is_object(kind),
        Kind::Object(_) | Kind::Union { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use monitor::qmp::commands::COMMANDS;
    use monitor::qmp::node_schema::BLOCKDEV;
    use serde_json::json;

    use super::*;

    fn arguments(command: &str, text: &str, implied: &str) -> Value {
        let spec = COMMANDS.iter().find(|spec| spec.name == command).unwrap();
        let object = parse("--x", text, implied).unwrap();
        let value = typed(&spec.arguments, Value::Object(object));
        spec.check(value.as_object().unwrap()).unwrap();
        value
    }

    #[test]
    fn pairs_become_what_the_schema_takes() {
        let node = arguments(
            "blockdev-add",
            "qcow2,node-name=n,read-only=on,l2-cache-size=1M,cache.direct=off,file.driver=file,file.filename=a,,b",
            "driver",
        );
        let expected = json!({
            "driver": "qcow2", "node-name": "n", "read-only": true, "l2-cache-size": 1_048_576,
            "cache": { "direct": false }, "file": { "driver": "file", "filename": "a,b" },
        });
        assert_eq!(node, expected);
        let export =
            arguments("block-export-add", "nbd,id=e,node-name=n,writable=on,bitmaps.0=a,bitmaps.1=b", "type");
        assert_eq!(export["bitmaps"], json!(["a", "b"]));
        assert_eq!(
            arguments("object-add", "throttle-group,id=g,limits.iops-total=100", "qom-type")["limits"]["iops-total"],
            100
        );
    }

    #[test]
    fn json_is_taken_as_it_is() {
        let text = r#"{"driver":"qcow2","node-name":"n","file":"f","read-only":true}"#;
        let object = parse("--blockdev", text, "driver").unwrap();
        assert_eq!(typed(&BLOCKDEV, Value::Object(object)), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn what_is_no_pair_is_refused_and_the_last_of_equal_keys_counts() {
        let refused = |text: &str| parse("--blockdev", text, "driver").unwrap_err().to_string();
        assert_eq!(refused("file,x"), "--blockdev file,x: \"x\" has no value");
        let parsed = parse("--blockdev", "file,a=1,a=2,b.c=3,b.c=4,driver=raw", "driver").unwrap();
        assert_eq!(Value::Object(parsed), json!({ "driver": "raw", "a": "2", "b": { "c": "4" } }));
        assert_eq!(refused("file,a=1,a.b=2"), "--blockdev file,a=1,a.b=2: a.b has a value and members");
        assert_eq!(refused("file,a.b=1,a=2"), "--blockdev file,a.b=1,a=2: a has a value and members");
        assert_eq!(refused("file,a..b=2"), "--blockdev file,a..b=2: \"a..b\" is no key");
        assert!(refused("{\"a\":").contains("no JSON object"));
    }
}
