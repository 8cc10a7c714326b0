//! `json:{..}`: the options as one object.

use super::quotes;
use super::tree::{DriveError, Entry, OptionTree};

pub(super) fn parse(text: &str) -> Result<OptionTree, DriveError> {
    match serde_json::from_str(&quotes::in_double_quotes(text))? {
        serde_json::Value::Object(object) => OptionTree::of_json(object),
        other => Err(DriveError::NotAnObject { found: json_kind(&other) }),
    }
}

pub(super) fn insert_object(
    tree: &mut OptionTree,
    prefix: &str,
    object: serde_json::Map<String, serde_json::Value>,
) -> Result<(), DriveError> {
    use serde_json::Value;
    for (name, value) in object {
        let key = format!("{prefix}{name}");
        let text = match value {
            Value::Object(inner) => {
                insert_object(tree, &format!("{key}."), inner)?;
                continue;
            }
            Value::Null => {
                tree.insert(&key, Entry::Null)?;
                continue;
            }
            Value::Array(list) => {
                insert_list(tree, &key, list)?;
                continue;
            }
            Value::Bool(true) => "on".into(),
            Value::Bool(false) => "off".into(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => text,
        };
        tree.insert(&key, Entry::Value(text.into()))?;
    }
    Ok(())
}

/// A list of objects stands as numbered groups; no option takes another one.
fn insert_list(tree: &mut OptionTree, key: &str, list: Vec<serde_json::Value>) -> Result<(), DriveError> {
    for (number, value) in list.into_iter().enumerate() {
        match value {
            serde_json::Value::Object(inner) => insert_object(tree, &format!("{key}.{number}."), inner)?,
            _ => return Err(DriveError::List { key: key.to_owned() }),
        }
    }
    Ok(())
}

fn json_kind(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a boolean",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "an object",
    }
}
