//! Arguments that were checked, taken out by name.

use serde_json::{Map, Value};

use crate::QmpError;

/// The arguments of a command, or of an object among them.
///
/// The schema has said which are there and of what kind; what it requires is still an error here, so that a handler and
/// its schema cannot drift apart unnoticed.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a>(pub &'a Map<String, Value>);

impl<'a> Arguments<'a> {
    /// A text that must be there.
    pub fn text(&self, name: &str) -> Result<&'a str, QmpError> {
        self.maybe_text(name).ok_or_else(|| QmpError::generic(format!("argument '{name}' is missing")))
    }

    /// A text that may be there.
    pub fn maybe_text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).and_then(Value::as_str)
    }

    /// A number that must be there.
    pub fn whole(&self, name: &str) -> Result<u64, QmpError> {
        self.maybe_whole(name).ok_or_else(|| QmpError::generic(format!("argument '{name}' is missing")))
    }

    /// A number that may be there.
    pub fn maybe_whole(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    /// Whether a switch is on; one that is not there is off.
    pub fn is_on(&self, name: &str) -> bool {
        self.maybe_switch(name) == Some(true)
    }

    /// A switch that may be there.
    pub fn maybe_switch(&self, name: &str) -> Option<bool> {
        self.0.get(name).and_then(Value::as_bool)
    }

    /// An object that may be there.
    pub fn maybe_object(&self, name: &str) -> Option<Arguments<'a>> {
        self.0.get(name).and_then(Value::as_object).map(Arguments)
    }

    /// The items of a list; none if it is not there.
    pub fn list(&self, name: &str) -> &'a [Value] {
        self.0.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Whether it was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
