//! qom-list-types, qom-list-properties, qom-list-get: the kinds of objects that object-add makes, and what those that are there hold.

use control::{Arguments, Kind, QmpError, Variant};
use serde_json::{Map, Value, json};

use super::object_schema::OBJECT;
use super::objects;
use crate::inventory::Inventory;

/// What every object is, and what everything is that a user makes.
const PARENTS: [&str; 2] = ["object", "user-creatable"];

fn variants() -> &'static [Variant] {
    match &OBJECT {
        Kind::Union { variants, .. } => variants,
        _ => &[],
    }
}

/// The kinds, or those that are of the kind `implements`. None of them is abstract.
pub fn types(arguments: Arguments<'_>) -> Value {
    let implements = arguments.maybe_text("implements");
    let is_asked = |tag: &str| implements.is_none_or(|name| name == tag || PARENTS.contains(&name));
    let all = variants().iter().filter(|variant| is_asked(variant.tag));
    all.map(|variant| json!({ "name": variant.tag, "parent": "object" })).collect()
}

/// The properties of a kind.
///
/// # Errors
/// When there is none of that name.
pub fn properties(arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let name = arguments.text("typename")?;
    let found = variants().iter().find(|variant| variant.tag == name);
    let found =
        found.ok_or_else(|| QmpError::generic(format!("there is no type {name:?} (qom-list-types)")))?;
    let members = found.members.iter();
    Ok(members.map(|member| json!({ "name": member.name, "type": type_name(&member.kind) })).collect())
}

fn type_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Switch => "bool",
        Kind::Whole(_) => "int",
        Kind::List(_) => "list",
        Kind::Object(_) | Kind::Union { .. } => "struct",
        Kind::Ref(kind) => type_name(kind),
        Kind::Text | Kind::Choice(_) | Kind::Null | Kind::Either(_) | Kind::Any => "string",
    }
}

/// The properties of some objects, with what they hold where that is shown.
///
/// # Errors
/// When one of the objects is not there.
pub fn values(inventory: &Inventory, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let of = |path: &Value| {
        let path = path.as_str().unwrap_or_default();
        let listed = objects::list(inventory, Arguments(&object(&[("path", path)])))?;
        let property = |found: &Value| {
            let mut found = found.clone();
            let name = found["name"].as_str().unwrap_or_default().to_owned();
            let asked = object(&[("path", path), ("property", &name)]);
            if let Ok(value) = objects::get(inventory, Arguments(&asked)) {
                found["value"] = value;
            }
            found
        };
        let properties: Value = listed.as_array().into_iter().flatten().map(property).collect();
        Ok(json!({ "properties": properties }))
    };
    arguments.list("paths").iter().map(of).collect()
}

fn object(members: &[(&str, &str)]) -> Map<String, Value> {
    members.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
}
