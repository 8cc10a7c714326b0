//! A QMP client of our own, written down a second time.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

/// How long a server may be silent before that is an error.
const SILENCE: Duration = Duration::from_secs(120);

/// A connection to a control socket.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    /// What came while something else was waited for.
    events: VecDeque<Value>,
    next_id: u64,
    arrived: Instant,
}

impl Qmp {
    /// Connects and negotiates.
    pub fn connect(socket: &Path) -> Self {
        Self::over(UnixStream::connect(socket).expect("somebody listens"))
    }

    /// Negotiates over a connection.
    pub fn over(stream: UnixStream) -> Self {
        let mut client = Self::greeted_over(stream);
        let answer = client.ask("qmp_capabilities", json!({}));
        assert_eq!(answer, Ok(json!({})), "the handshake");
        client
    }

    /// Connects, and takes the greeting.
    pub fn greeted(socket: &Path) -> Self {
        Self::greeted_over(UnixStream::connect(socket).expect("somebody listens"))
    }

    fn greeted_over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(SILENCE)).expect("a timeout");
        let (reader, events) = (BufReader::new(stream), VecDeque::new());
        let mut client = Self { reader, events, next_id: 1, arrived: Instant::now() };
        let greeting = client.line().expect("a greeting");
        assert!(greeting["QMP"]["version"]["qemu"]["major"].is_u64(), "{greeting}");
        client
    }

    /// One command: what it returns, or the class and the words of its error.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, (String, String)> {
        let id = self.next_id;
        self.next_id += 1;
        let message = json!({ "execute": command, "arguments": arguments, "id": id });
        self.send(message.to_string().as_bytes()).expect("it listens");
        loop {
            let mut line = self.line().expect("an answer");
            if line.get("event").is_some() {
                self.events.push_back(line);
                continue;
            }
            assert_eq!(line["id"], id, "an answer to something else: {line}");
            let error = &line["error"];
            if error.is_object() {
                let text = |name: &str| error[name].as_str().expect("a text").to_owned();
                return Err((text("class"), text("desc")));
            }
            return Ok(line["return"].take());
        }
    }

    /// The same with descriptors that go along with its bytes.
    pub fn ask_with(
        &mut self,
        fds: &[BorrowedFd<'_>],
        command: &str,
        arguments: Value,
    ) -> Result<Value, (String, String)> {
        // A space before a message means nothing; the descriptors come with it.
        self.send_with(fds, b" ");
        self.ask(command, arguments)
    }

    /// Sends bytes with descriptors.
    pub fn send_with(&mut self, fds: &[BorrowedFd<'_>], bytes: &[u8]) {
        let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(fds).size()];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is room for them");
        let sent = sendmsg(self.reader.get_ref(), &[IoSlice::new(bytes)], &mut control, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// One command that must succeed.
    pub fn ok(&mut self, command: &str, arguments: Value) -> Value {
        self.ask(command, arguments.clone())
            .unwrap_or_else(|error| panic!("{command} {arguments}: {error:?}"))
    }

    /// One command that must fail; gives the words.
    pub fn refused(&mut self, command: &str, arguments: Value) -> String {
        self.ask(command, arguments.clone()).expect_err(&format!("{command} {arguments} should fail")).1
    }

    /// Waits for an event.
    pub fn event(&mut self, name: &str) -> Value {
        self.event_where(name, |_| true)
    }

    /// Waits for the event whose data say this; those of others stay for who waits for them next.
    pub fn event_of(&mut self, name: &str, key: &str, value: &str) -> Value {
        self.event_where(name, |data| data[key] == value)
    }

    /// Waits for an event with such data; the others stay.
    pub fn event_where(&mut self, name: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let is_it = |event: &Value| event["event"] == name && is_it(&event["data"]);
        if let Some(index) = self.events.iter().position(is_it) {
            return self.events.remove(index).expect("it was there");
        }
        loop {
            let line = self.line().expect("an event");
            assert!(line.get("event").is_some(), "an answer that nobody asked for: {line}");
            if is_it(&line) {
                return line;
            }
            self.events.push_back(line);
        }
    }

    /// How many events of that name came while others were waited for.
    pub fn events_left(&self, name: &str) -> usize {
        self.events.iter().filter(|event| event["event"] == name).count()
    }

    /// When the last line had arrived, before it was read as JSON.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// The next line; an error at the end.
    pub fn line(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        let bytes = self.reader.read_line(&mut line)?;
        self.arrived = Instant::now();
        match bytes {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))),
        }
    }
}
