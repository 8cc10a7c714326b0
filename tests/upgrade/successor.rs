//! A process that takes over only so far: it speaks the protocol of docs/internals/upgrade.md by itself.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// One end of the conversation. Descriptors that come along are closed by the kernel: nothing takes them.
#[derive(Debug)]
pub struct Successor(UnixStream);

impl Successor {
    /// Connects.
    pub fn connect(next: &Path) -> Self {
        let stream = UnixStream::connect(next).expect("a daemon that listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        Self(stream)
    }

    /// Connects and asks, in version 1, with an unknown member.
    pub fn ask(next: &Path) -> Self {
        let mut own = Self::connect(next);
        own.say(&json!({ "take-over": { "versions": [1, 2], "of-a-later-version": true } }));
        own
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Value) {
        self.bytes(message.to_string().as_bytes());
    }

    /// Sends anything.
    pub fn bytes(&mut self, text: &[u8]) {
        let lengths = [text.len() as u32, 0].map(u32::to_le_bytes).concat();
        self.0.write_all(&[&lengths[..], text].concat()).expect("the daemon reads");
    }

    /// The next message; `None` when the daemon has hung up.
    pub fn next(&mut self) -> Option<Value> {
        let mut head = [0; 8];
        self.0.read_exact(&mut head).ok()?;
        let len = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize;
        let (mut text, mut data) = (vec![0; len(0)], vec![0; len(4)]);
        self.0.read_exact(&mut text).ok()?;
        self.0.read_exact(&mut data).ok()?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Reads until the daemon has said all that it has to say; how many messages that were.
    pub fn read_to_end(&mut self) -> usize {
        let mut count = 0;
        while let Some(message) = self.next() {
            assert!(message.get("refused").is_none(), "{message}");
            if message.get("end").is_some() {
                return count;
            }
            count += 1;
        }
        panic!("the daemon hangs up")
    }
}
