//! What leaves for a client: one JSON object a line.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Value, json};

use crate::text::shown_json;
use crate::{Answer, QmpError};

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
pub fn reply(outcome: Result<Answer, QmpError>, id: Option<Value>) -> Vec<u8> {
    let mut line = Vec::new();
    match outcome {
        Ok(Answer::Value(value)) => {
            line.extend_from_slice(b"{\"return\": ");
            write_json(&mut line, &value);
        }
        Ok(Answer::List(list)) => {
            line.extend_from_slice(b"{\"return\": ");
            list.write(&mut line);
        }
        Err(QmpError { class, desc, .. }) => {
            line.extend_from_slice(b"{\"error\": ");
            let desc = memory::secret::without_credentials(&desc);
            write_json(&mut line, &json!({ "class": class.name(), "desc": desc }));
        }
    }
    if let Some(id) = id {
        line.extend_from_slice(b", \"id\": ");
        write_json(&mut line, &id);
    }
    line.extend_from_slice(b"}\r\n");
    line
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
    let mut line = Vec::new();
    write_json(&mut line, value);
    line.extend_from_slice(b"\r\n");
    line
}

/// Appends `value`.
pub(crate) fn write_json(into: &mut Vec<u8>, value: &impl Serialize) {
    let begin = into.len();
    // Writing to memory does not fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut *into, Spaced));
    let is_plain = |byte: &u8| *byte < 0x7f;
    if !into[begin..].iter().all(is_plain) {
        let text = into.split_off(begin);
        into.extend_from_slice(shown_json(&String::from_utf8_lossy(&text)).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::List;

    #[test]
    fn lines_are_as_clients_know_them() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(
            text(greeting(&json!({"package": "x"}))),
            "{\"QMP\": {\"version\": {\"package\": \"x\"}, \"capabilities\": []}}\r\n"
        );
        assert_eq!(
            text(reply(Ok(json!({}).into()), Some(json!("a")))),
            "{\"return\": {}, \"id\": \"a\"}\r\n"
        );
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
    fn a_list_that_was_written_as_it_grew_is_the_same_list() {
        for elements in [json!([]), json!([{ "a": "\u{9b}\u{202e}é" }]), json!([1, [2], "b"])] {
            let mut list = List::default();
            elements.as_array().unwrap().iter().for_each(|element| list.push(element));
            assert_eq!(Answer::List(list.clone()).into_value(), elements);
            let id = Some(json!({ "x": 1 }));
            assert_eq!(reply(Ok(Answer::List(list)), id.clone()), reply(Ok(elements.into()), id));
        }
    }

    #[test]
    fn indented_objects_are_the_same_objects() {
        let line = reply(Ok(json!({ "a": [1] }).into()), None);
        assert_eq!(Form::Lines.of(line.clone()), line);
        let text = String::from_utf8(Form::Indented.of(line)).unwrap();
        assert_eq!(text, "{\n    \"return\": {\n        \"a\": [\n            1\n        ]\n    }\n}\r\n");
    }
}
