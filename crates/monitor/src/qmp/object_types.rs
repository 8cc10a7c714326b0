//! qom-list-types, qom-list-properties, qom-list-get: the kinds of objects that object-add makes, and what those that are there hold.

use control::{Kind, QmpError, Tagged, arguments};
use serde_json::{Value, json};

use super::objects::{self, Kinds};
use crate::inventory::Inventory;

/// What every object is, and what everything is that a user makes.
const PARENTS: [&str; 2] = ["object", "user-creatable"];

arguments! {
    /// Kinds that are of a kind.
    pub struct Types { implements: Option<String>, "abstract": Option<bool> }

    /// A kind.
    pub struct Properties { typename: String }

    /// Some objects.
    pub struct Values { paths: Vec<String> }
}

/// The kinds, or those that are of the kind `implements`. None of them is abstract.
pub fn types(Types { implements }: &Types) -> Value {
    let is_asked =
        |tag: &str| implements.as_deref().is_none_or(|name| name == tag || PARENTS.contains(&name));
    let all = Kinds::VARIANTS.iter().filter(|variant| is_asked(variant.tag));
    all.map(|variant| json!({ "name": variant.tag, "parent": "object" })).collect()
}

/// The properties of a kind.
///
/// # Errors
/// When there is none of that name.
pub fn properties(Properties { typename: name }: &Properties) -> Result<Value, QmpError> {
    let found = Kinds::VARIANTS.iter().find(|variant| variant.tag == name);
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
pub fn values(inventory: &Inventory, Values { paths }: &Values) -> Result<Value, QmpError> {
    let of = |path: &String| {
        let listed = objects::list(inventory, path)?;
        let property = |found: &Value| {
            let mut found = found.clone();
            let name = found["name"].as_str().unwrap_or_default();
            if let Ok(value) = objects::get(inventory, path, name) {
                found["value"] = value;
            }
            found
        };
        let properties: Value = listed.as_array().into_iter().flatten().map(property).collect();
        Ok(json!({ "properties": properties }))
    };
    paths.iter().map(of).collect()
}
