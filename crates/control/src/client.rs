//! The other side, for the command line: one question at a time, blocking.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::framer::{Frame, Framer};
use crate::limits::{DEPTH_MAX, REPLY_BYTES_MAX};

/// How long a server may be silent: longer than any command that people give by hand.
const SILENCE: Duration = Duration::from_secs(60);

/// A connection to a control socket.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    framer: Framer,
    /// Received and not looked at.
    bytes: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server says no.
    #[error("{desc}")]
    Refused {
        /// Its class on the wire.
        class: String,
        /// In words.
        desc: String,
    },
    /// The connection is no more, or never was.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Who answers does not speak QMP.
    #[error("what listens there does not speak QMP: {0}")]
    Foreign(String),
}

impl Client {
    /// Connects and negotiates.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let framer = Framer::new(REPLY_BYTES_MAX, DEPTH_MAX);
        let mut client = Self { stream, framer, bytes: Vec::new() };
        let mut greeting = client.receive()?;
        if let Some(error) = greeting.remove("error") {
            return Err(refused(&error));
        }
        if !greeting.contains_key("QMP") {
            return Err(ClientError::Foreign("no greeting".to_owned()));
        }
        client.execute("qmp_capabilities", json!({}))?;
        Ok(client)
    }

    /// Gives a command and waits for what comes of it. Events that come before are passed over.
    pub fn execute(&mut self, name: &str, arguments: Value) -> Result<Value, ClientError> {
        let message = json!({ "execute": name, "arguments": arguments });
        self.stream.write_all(format!("{message}\n").as_bytes())?;
        loop {
            let mut reply = self.receive()?;
            if let Some(value) = reply.remove("return") {
                return Ok(value);
            }
            if let Some(error) = reply.remove("error") {
                return Err(refused(&error));
            }
        }
    }

    fn receive(&mut self) -> Result<Map<String, Value>, ClientError> {
        let foreign = |why: &dyn std::fmt::Display| ClientError::Foreign(why.to_string());
        loop {
            let (taken, frame) = self.framer.feed(&self.bytes);
            self.bytes.drain(..taken);
            match frame {
                Some(Frame::Message(message)) => {
                    return serde_json::from_slice(&message).map_err(|error| foreign(&error));
                }
                Some(Frame::Garbage(why)) => return Err(foreign(&why)),
                Some(Frame::TooMuch(why)) => return Err(foreign(&why)),
                None => {}
            }
            let mut piece = [0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn refused(error: &Value) -> ClientError {
    let text = |name: &str| error[name].as_str().unwrap_or("(not said)").to_owned();
    ClientError::Refused { class: text("class"), desc: text("desc") }
}
