//! One message of a client: a command with its arguments.

use serde_json::{Map, Value};

use crate::QmpError;

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its name.
    pub name: String,
    /// By name; checked against the command's schema when a [`crate::Session`] hands it out.
    pub arguments: Map<String, Value>,
    /// What the reply is to carry, whatever it is.
    pub id: Option<Value>,
}

/// A message that is no command, with what can be said of where it came from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused {
    pub(crate) error: QmpError,
    pub(crate) id: Option<Value>,
}

impl Command {
    /// Reads a message.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Refused> {
        let refused = |desc: String, id| Refused { error: QmpError::generic(desc), id };
        let mut object: Map<String, Value> = serde_json::from_slice(message)
            .map_err(|error| refused(format!("the message is not JSON: {error}"), None))?;
        let id = object.remove("id");
        if object.contains_key("exec-oob") {
            let desc = "\"exec-oob\": there is no execution out of band here; use \"execute\"";
            return Err(refused(desc.to_owned(), id));
        }
        let name = match object.remove("execute") {
            Some(Value::String(name)) => name,
            Some(_) => return Err(refused("\"execute\" must be a text, a command's name".to_owned(), id)),
            None => return Err(refused("\"execute\" is missing: it names the command".to_owned(), id)),
        };
        let arguments = match object.remove("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(refused("\"arguments\" must be an object".to_owned(), id)),
        };
        match object.keys().next() {
            None => Ok(Self { name, arguments, id }),
            Some(unknown) => {
                let known = "a message has execute, arguments and id";
                Err(refused(format!("{unknown:?} is unknown in a message; {known}"), id))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_has_a_name_and_may_have_arguments_and_an_id_of_any_kind() {
        let found = Command::parse(br#"{"execute":"x","arguments":{"a":1},"id":[1,null]}"#).unwrap();
        assert_eq!((found.name.as_str(), &found.arguments["a"]), ("x", &json!(1)));
        assert_eq!(found.id, Some(json!([1, null])));
        assert!(Command::parse(br#"{"execute":"x"}"#).unwrap().id.is_none());
    }

    #[test]
    fn what_is_wrong_is_said_under_the_id_it_came_with() {
        let table: [(&[u8], &str); 6] = [
            (br#"{"id":7}"#, "missing"),
            (br#"{"execute":1,"id":7}"#, "text"),
            (br#"{"execute":"x","arguments":[],"id":7}"#, "object"),
            (br#"{"execute":"x","argument":{},"id":7}"#, "\"argument\" is unknown"),
            (br#"{"exec-oob":"x","id":7}"#, "out of band"),
            (br#"{"execute":"x","id":7,}"#, "not JSON"),
        ];
        for (message, expected) in table {
            let refused = Command::parse(message).unwrap_err();
            assert!(refused.error.desc.contains(expected), "{refused:?}");
            let id = (expected != "not JSON").then(|| json!(7));
            assert_eq!(refused.id, id);
        }
        assert!(Command::parse(b"{\"execute\":\"\xff\"}").is_err());
    }
}
