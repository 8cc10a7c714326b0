//! A range in which two disks may differ, in JSON.

use checkpoints::{Part, Says};
use serde_json::{Value, json};

const ALL: [Says; 4] = [Says::Data, Says::Zero, Says::Shared, Says::Nothing];

/// What [`json_of`] gives, in a list.
pub const PART_JSON: &str = "\
A list of ranges, of each:
  start                   offset on the disk
  length                  bytes
  a, b                    text: what A and B say of it, data, zero, shared (it is from below) or
                          nothing";

/// As listings and cowhand-diff show it.
pub fn json_of(part: &Part) -> Value {
    let Part { start, length, says: [one, other] } = part;
    json!({ "start": start, "length": length, "a": one.name(), "b": other.name() })
}

/// What [`json_of`] shows.
pub fn of_json(value: &Value) -> Option<Part> {
    let says = |side: &str| {
        let name = value[side].as_str()?;
        ALL.into_iter().find(|says| says.name() == name)
    };
    Some(Part {
        start: value["start"].as_u64()?,
        length: value["length"].as_u64()?,
        says: [says("a")?, says("b")?],
    })
}
