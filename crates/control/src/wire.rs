//! What leaves for a client: one JSON object a line.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value, json};

use crate::QmpError;
use crate::text::shown_json;

/// How what leaves for a client is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Each object is one line.
    #[default]
    Lines,
    /// Each member is one line, for people to read.
    Indented,
}

impl Form {
    /// `line`, in this form.
    pub(crate) fn of(self, line: Vec<u8>) -> Vec<u8> {
        if self == Self::Lines {
            return line;
        }
        let Ok(value) = serde_json::from_slice::<Value>(&line) else { return line };
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = value
            .serialize(&mut Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    ")));
        let mut bytes = shown_json(&String::from_utf8_lossy(&text)).into_owned().into_bytes();
        bytes.extend_from_slice(b"\r\n");
        bytes
    }
}

/// The first line: who speaks. `version` is what `query-version` returns.
pub fn greeting(version: &Value) -> Vec<u8> {
    line(&json!({ "QMP": { "version": version, "capabilities": [] } }))
}

/// The outcome of a command, under the id it came with.
pub fn reply(outcome: Result<Value, QmpError>, id: Option<Value>) -> Vec<u8> {
    let (key, value) = match outcome {
        Ok(value) => ("return", value),
        Err(QmpError { class, desc, .. }) => {
            ("error", json!({ "class": class.name(), "desc": secret::without_credentials(&desc) }))
        }
    };
    let mut object = Map::new();
    object.insert(key.to_owned(), value);
    object.extend(id.map(|id| ("id".to_owned(), id)));
    line(&Value::Object(object))
}

/// Something that happened at `now`.
pub fn event(name: &str, data: &Value, now: SystemTime) -> Vec<u8> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let timestamp = json!({ "seconds": since.as_secs(), "microseconds": since.subsec_micros() });
    let mut object = json!({ "timestamp": timestamp, "event": name });
    if data.as_object().is_some_and(|data| !data.is_empty()) {
        object["data"] = data.clone();
    }
    line(&object)
}

/// A space behind commas and colons, as QEMU's monitor writes them: scripts look for `"return": {}`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

fn line(value: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut text, Spaced));
    let mut bytes = shown_json(&String::from_utf8_lossy(&text)).into_owned().into_bytes();
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_clients_know_them() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(
            text(greeting(&json!({"package": "x"}))),
            "{\"QMP\": {\"version\": {\"package\": \"x\"}, \"capabilities\": []}}\r\n"
        );
        assert_eq!(text(reply(Ok(json!({})), Some(json!("a")))), "{\"return\": {}, \"id\": \"a\"}\r\n");
        assert_eq!(
            text(reply(Err(QmpError::no_device("d")), None)),
            "{\"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"there is no device or node \\\"d\\\"\"}}\r\n"
        );
        let now = UNIX_EPOCH + Duration::new(5, 7_000);
        assert_eq!(
            text(event("SHUTDOWN", &json!({"guest": false}), now)),
            "{\"timestamp\": {\"seconds\": 5, \"microseconds\": 7}, \"event\": \"SHUTDOWN\", \"data\": {\"guest\": false}}\r\n"
        );
    }

    #[test]
    fn indented_objects_are_the_same_objects() {
        let line = reply(Ok(json!({ "a": [1] })), None);
        assert_eq!(Form::Lines.of(line.clone()), line);
        let text = String::from_utf8(Form::Indented.of(line)).unwrap();
        assert_eq!(text, "{\n    \"return\": {\n        \"a\": [\n            1\n        ]\n    }\n}\r\n");
    }
}
