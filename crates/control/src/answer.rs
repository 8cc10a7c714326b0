//! What a command comes to: a value, or a list that was written as it was found.

use serde::Serialize;
use serde_json::{Value, json};

use crate::wire::write_json;

/// What a command comes to.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A value.
    Value(Value),
    /// A list of some thousand elements, maybe.
    List(List),
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// Nothing but that it was done.
impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Value(json!({}))
    }
}

/// A list, of which no more than one element is there as a value: it may be long, and is text as soon as it grows.
#[derive(Clone, Debug)]
pub struct List {
    /// All but the last bracket.
    json: Vec<u8>,
}

impl Default for List {
    fn default() -> Self {
        Self { json: b"[".to_vec() }
    }
}

impl List {
    /// Puts `element` behind the others.
    pub fn push(&mut self, element: &impl Serialize) {
        if self.json.len() > 1 {
            self.json.extend_from_slice(b", ");
        }
        write_json(&mut self.json, element);
    }

    /// Its elements, as a value.
    pub fn into_value(self) -> Value {
        let json = [&*self.json, b"]"].concat();
        // It was written here.
        serde_json::from_slice(&json).unwrap_or_else(|_| json!([]))
    }

    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.json);
        into.push(b']');
    }
}

impl Answer {
    /// As a value.
    pub fn into_value(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::List(list) => list.into_value(),
        }
    }
}
