//! A client's side of the talk: handshake first, then commands that were checked.

use serde_json::{Value, json};

use crate::framer::{Frame, Framer};
use crate::introspection::introspection;
use crate::limits::{DEPTH_MAX, MESSAGE_BYTES_MAX};
use crate::message::{Command, Refused};
use crate::schema::{CommandSpec, EventSpec, Kind, optional};
use crate::{QmpError, wire};

/// What to do next for a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: more bytes are needed.
    Need,
    /// Send this.
    Reply(Vec<u8>),
    /// Do this, and send what comes of it.
    Execute(Command),
    /// Send this, and hang up.
    Close(Vec<u8>),
}

/// One client.
#[derive(Debug)]
pub struct Session {
    framer: Framer,
    commands: &'static [CommandSpec],
    events: &'static [EventSpec],
    negotiated: bool,
}

/// Ends the handshake. We offer nothing that could be enabled.
static CAPABILITIES: CommandSpec = CommandSpec {
    name: "qmp_capabilities",
    arguments: Kind::Object(&[optional("enable", Kind::List(&Kind::Choice(&["oob"])))]),
};

/// Answered here: they only concern the protocol.
static QUERY_COMMANDS: CommandSpec = CommandSpec { name: "query-commands", arguments: Kind::Object(&[]) };
static QUERY_SCHEMA: CommandSpec = CommandSpec { name: "query-qmp-schema", arguments: Kind::Object(&[]) };

/// What every session has.
static OWN: [&CommandSpec; 3] = [&CAPABILITIES, &QUERY_COMMANDS, &QUERY_SCHEMA];

impl Session {
    /// A client that was greeted, and may use `commands` and hears of `events` once it has negotiated.
    pub fn new(commands: &'static [CommandSpec], events: &'static [EventSpec]) -> Self {
        Self { framer: Framer::new(MESSAGE_BYTES_MAX, DEPTH_MAX), commands, events, negotiated: false }
    }

    /// Whether the handshake is over.
    pub fn is_negotiated(&self) -> bool {
        self.negotiated
    }

    /// A message has begun and not ended.
    pub fn is_midway(&self) -> bool {
        self.framer.is_midway()
    }

    /// Takes bytes as far as the next step needs them: how many, and the step.
    pub fn step(&mut self, bytes: &[u8]) -> (usize, Step) {
        let (taken, frame) = self.framer.feed(bytes);
        let step = match frame {
            None => Step::Need,
            Some(Frame::Garbage(why)) => Step::Reply(wire::reply(Err(QmpError::generic(why)), None)),
            Some(Frame::TooMuch(why)) => Step::Close(wire::reply(Err(QmpError::generic(why)), None)),
            Some(Frame::Message(message)) => self.message(&message),
        };
        (taken, step)
    }

    fn message(&mut self, message: &[u8]) -> Step {
        match Command::parse(message) {
            Ok(command) => match self.decide(&command) {
                Ok(None) => Step::Execute(command),
                Ok(Some(value)) => Step::Reply(wire::reply(Ok(value.into()), command.id)),
                Err(error) => Step::Reply(wire::reply(Err(error), command.id)),
            },
            Err(Refused { error, id }) => Step::Reply(wire::reply(Err(error), id)),
        }
    }

    /// What the protocol itself answers, if it does.
    fn decide(&mut self, command: &Command) -> Result<Option<Value>, QmpError> {
        let name = command.name.as_str();
        match (self.negotiated, name == CAPABILITIES.name) {
            (false, true) => self.negotiate(command).map(Some),
            (false, false) => Err(QmpError::not_found(format!(
                "command {name} is not possible before capabilities are negotiated; begin with qmp_capabilities"
            ))),
            (true, true) => Err(QmpError::not_found(
                "capabilities are negotiated already; there is nothing left to agree on",
            )),
            (true, false) if name == QUERY_COMMANDS.name => {
                QUERY_COMMANDS.check(&command.arguments)?;
                Ok(Some(self.names()))
            }
            (true, false) if name == QUERY_SCHEMA.name => {
                QUERY_SCHEMA.check(&command.arguments)?;
                Ok(Some(introspection(self.all(), self.events)))
            }
            (true, false) => match self.commands.iter().find(|spec| spec.name == name) {
                Some(spec) => spec.check(&command.arguments).map(|()| None),
                None => Err(QmpError::not_found(format!("there is no command {name}"))),
            },
        }
    }

    fn negotiate(&mut self, command: &Command) -> Result<Value, QmpError> {
        CAPABILITIES.check(&command.arguments)?;
        let enable = command.arguments.get("enable").and_then(Value::as_array);
        if enable.is_some_and(|enable| !enable.is_empty()) {
            return Err(QmpError::generic("argument 'enable': the capability oob was not offered"));
        }
        self.negotiated = true;
        Ok(json!({}))
    }

    fn all(&self) -> impl Iterator<Item = &'static CommandSpec> + use<> {
        self.commands.iter().chain(OWN)
    }

    fn names(&self) -> Value {
        let mut names: Vec<_> = self.all().map(|spec| spec.name).collect();
        names.sort_unstable();
        names.into_iter().map(|name| json!({ "name": name })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COMMANDS: [CommandSpec; 1] =
        [CommandSpec { name: "quit", arguments: Kind::Object(&[optional("force", Kind::Switch)]) }];

    /// Everything that is sent, and the names of what is executed.
    fn talk(stream: &[u8]) -> String {
        let (mut session, mut rest, mut said) = (Session::new(&COMMANDS, &[]), stream, String::new());
        loop {
            let (taken, step) = session.step(rest);
            rest = &rest[taken..];
            match step {
                Step::Need => return said,
                Step::Reply(bytes) => said.push_str(std::str::from_utf8(&bytes).unwrap()),
                Step::Execute(command) => said.push_str(&format!("!{}\r\n", command.name)),
                Step::Close(bytes) => return said + std::str::from_utf8(&bytes).unwrap() + "closed",
            }
        }
    }

    #[test]
    fn nothing_is_possible_before_the_handshake_and_the_handshake_only_once() {
        let said = talk(
            br#"{"execute":"quit"}{"execute":"qmp_capabilities","id":1}{"execute":"quit"}
                {"execute":"qmp_capabilities"}"#,
        );
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[0].contains("CommandNotFound") && lines[0].contains("negotiated"), "{said}");
        assert_eq!(lines[1..3], [r#"{"return": {}, "id": 1}"#, "!quit"]);
        assert!(lines[3].contains("CommandNotFound"), "{said}");
    }

    #[test]
    fn what_was_not_offered_cannot_be_enabled() {
        let said =
            talk(br#"{"execute":"qmp_capabilities","arguments":{"enable":["oob"]}}{"execute":"quit"}"#);
        assert!(said.contains("not offered") && said.contains("CommandNotFound"), "{said}");
        assert!(talk(br#"{"execute":"qmp_capabilities","arguments":{"enable":[]}}"#).contains("return"));
    }

    #[test]
    fn a_command_is_executed_only_with_arguments_that_it_has() {
        let said = talk(
            br#"{"execute":"qmp_capabilities"}{"execute":"quit","arguments":{"force":1}}
                {"execute":"nonsense"}{"execute":"query-commands"}"#,
        );
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[1].contains("argument 'force' is a number; it must be true or false"), "{said}");
        assert!(lines[2].contains("CommandNotFound") && lines[2].contains("nonsense"), "{said}");
        assert_eq!(
            lines[3],
            r#"{"return": [{"name": "qmp_capabilities"}, {"name": "query-commands"}, {"name": "query-qmp-schema"}, {"name": "quit"}]}"#
        );
    }

    #[test]
    fn a_message_without_end_closes_the_connection_at_its_bound() {
        let mut stream = b"{\"execute\":\"".to_vec();
        stream.resize(MESSAGE_BYTES_MAX + 100, b'x');
        assert!(talk(&stream).ends_with("closed"));
        assert!(talk(&b"{\"a\":".repeat(DEPTH_MAX + 1)).ends_with("closed"));
    }
}
