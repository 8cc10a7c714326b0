//! Questions to a broker and its answers, as bytes of one message each.
//!
//! A question: how long it may take in milliseconds (4 bytes, big-endian), the port (2), the host; for a unix socket port 0 and its path; for
//! an abstract one port 0, a zero and how it is shown. An answer: what it is (1 byte), the system's
//! number of the error or 0 (4), words.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::dial::address::{Address, HOST_BYTES_MAX};
use crate::dial::target::Target;

/// A question has so many bytes at most, and more are read, so that a longer one is seen.
pub(crate) const ASK_BYTES_MAX: usize = 6 + HOST_BYTES_MAX + 1;
/// Bytes of words at most.
const WORDS_BYTES_MAX: usize = 400;
/// An answer has so many bytes at most.
pub(crate) const ANSWER_BYTES_MAX: usize = 5 + WORDS_BYTES_MAX;

/// A connection that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) target: Target,
    pub(crate) within: Duration,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The socket comes along.
    Connected,
    /// Too many are being made.
    Busy,
    /// The address is none of those that may be reached.
    Forbidden,
    /// No server is there: the system's number (0: it has none) and words.
    Failed { number: i32, words: String },
}

impl Ask {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let millis = u32::try_from(self.within.as_millis()).unwrap_or(u32::MAX);
        let (port, place) = match &self.target {
            Target::Tcp(address) => (address.port(), address.host().as_bytes().to_vec()),
            Target::Unix(path) => (0, path.as_os_str().as_bytes().to_vec()),
            Target::Abstract(name) => (0, format!("\0{name}").into_bytes()),
        };
        [&millis.to_be_bytes()[..], &port.to_be_bytes(), &place].concat()
    }

    /// `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (millis, rest) = bytes.split_first_chunk()?;
        let (port, place) = rest.split_first_chunk()?;
        let target = match u16::from_be_bytes(*port) {
            0 => match place.split_first()? {
                (b'/', _) => Target::Unix(OsStr::from_bytes(place).into()),
                (0, name) => Target::Abstract(std::str::from_utf8(name).ok()?.parse().ok()?),
                _ => return None,
            },
            port => Target::Tcp(Address::new(std::str::from_utf8(place).ok()?, port).ok()?),
        };
        Some(Self { target, within: Duration::from_millis(u32::from_be_bytes(*millis).into()) })
    }
}

impl Answer {
    /// Of an attempt that failed.
    pub(crate) fn failed(error: &io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(0);
        let words = if number == 0 { error.to_string() } else { String::new() };
        Self::Failed { number, words }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, number, words) = match self {
            Self::Connected => (0, 0, ""),
            Self::Busy => (1, 0, ""),
            Self::Forbidden => (2, 0, ""),
            Self::Failed { number, words } => (3, *number, words.as_str()),
        };
        let words = words.as_bytes();
        let words = words.get(..WORDS_BYTES_MAX).unwrap_or(words);
        [&[kind][..], &number.to_be_bytes(), words].concat()
    }

    /// `None` if it is none. Words are text in one line, whatever was sent.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let (number, words) = rest.split_first_chunk()?;
        let words = String::from_utf8_lossy(words).chars().filter(|char| !char.is_control()).collect();
        match kind {
            0 => Some(Self::Connected),
            1 => Some(Self::Busy),
            2 => Some(Self::Forbidden),
            3 => Some(Self::Failed { number: i32::from_be_bytes(*number), words }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::target::AbstractName;

    #[test]
    fn what_was_sent_is_what_is_received() {
        let name = Target::Abstract(AbstractName::new("s", false).unwrap());
        let host = Target::Tcp(Address::new("::1", 10809).unwrap());
        for target in [host, Target::Unix("/run/s".into()), name] {
            let ask = Ask { target, within: Duration::from_millis(1_500) };
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        let failed = Answer::Failed { number: 0, words: "no such name".to_owned() };
        for answer in [Answer::Connected, Answer::Busy, Answer::Forbidden, failed] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_none() {
        for bytes in
            [&b""[..], b"\0\0\0\x01", b"\0\0\0\x01\0\x50", b"\0\0\0\x01\0\0h", b"\0\0\0\x01\0\x50a b"]
        {
            assert_eq!(Ask::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Ask::decode(&[b'h'; ASK_BYTES_MAX]), None);
        for bytes in [&b""[..], b"\0", b"\x09\0\0\0\0"] {
            assert_eq!(Answer::decode(bytes), None, "{bytes:?}");
        }
        let lines = Answer::decode(b"\x03\0\0\0\0a\nb").unwrap();
        assert_eq!(lines, Answer::Failed { number: 0, words: "ab".to_owned() });
    }
}
