//! Where one message ends and the next begins.
//!
//! QMP has no frames: a message is a JSON object, and ends where its braces do. Messages may follow each
//! other with or without white space. As QEMU does, texts in single quotes are understood: people type
//! them into a shell. They leave here in double quotes.

/// Finds messages in a stream of bytes.
#[derive(Debug)]
pub struct Framer {
    message: Vec<u8>,
    depth: usize,
    state: State,
    bytes_max: usize,
    depth_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between two messages.
    Between,
    /// In the rest of a line that makes no sense.
    Skipping,
    /// In a message, outside of a text.
    Inside,
    /// In a text that ends at this quote.
    Text { quote: u8 },
    /// Behind a backslash.
    Escape { quote: u8 },
}

/// What a stretch of bytes came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A whole message: an object as far as its braces go.
    Message(Vec<u8>),
    /// Something that is none; the stream goes on behind it.
    Garbage(&'static str),
    /// Too much of something: nothing sensible can follow.
    TooMuch(String),
}

impl Framer {
    /// One that takes messages of at most `bytes_max` bytes and `depth_max` nested objects and lists.
    pub fn new(bytes_max: usize, depth_max: usize) -> Self {
        Self { message: Vec::new(), depth: 0, state: State::Between, bytes_max, depth_max }
    }

    /// A message has begun and not ended.
    pub fn is_midway(&self) -> bool {
        matches!(self.state, State::Inside | State::Text { .. } | State::Escape { .. })
    }

    /// Takes bytes up to the end of one frame: how many, and the frame; all of them if none ended.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Option<Frame>) {
        let mut taken = 0;
        while let Some((&byte, rest)) = bytes.get(taken..).and_then(<[u8]>::split_first) {
            taken += 1;
            if let Some(frame) = self.take(byte) {
                return (taken, Some(frame));
            }
            // One byte too many is found to be that by the next step.
            let room = self.bytes_max.saturating_sub(self.message.len());
            let plain = self.plain(&rest[..rest.len().min(room)]);
            self.message.extend_from_slice(plain);
            taken += plain.len();
        }
        (taken, None)
    }

    /// The first of `bytes`, as far as they are part of the message and nothing else: most of an answer.
    fn plain<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let end = match self.state {
            State::Inside => bytes.iter().position(|byte| b"{}[]\"'".contains(byte)),
            State::Text { .. } => bytes.iter().position(|byte| *byte < b' ' || b"\\\"'".contains(byte)),
            State::Between | State::Skipping | State::Escape { .. } => Some(0),
        };
        &bytes[..end.unwrap_or(bytes.len())]
    }

    fn take(&mut self, byte: u8) -> Option<Frame> {
        match self.state {
            State::Between => return self.begin(byte),
            State::Skipping => {
                if byte == b'\n' {
                    self.state = State::Between;
                }
                return None;
            }
            State::Inside => return self.structure(byte),
            State::Text { .. } if byte < b' ' => {
                self.give_up(byte);
                return Some(Frame::Garbage("a text holds a control character, or does not end on its line"));
            }
            State::Text { quote } => self.text(byte, quote),
            State::Escape { quote } => {
                // JSON knows no \' .
                if byte == b'\'' {
                    self.message.pop();
                }
                self.message.push(byte);
                self.state = State::Text { quote };
            }
        }
        self.bounded()
    }

    fn begin(&mut self, byte: u8) -> Option<Frame> {
        match byte {
            b'{' => {
                self.message.push(byte);
                (self.depth, self.state) = (1, State::Inside);
                None
            }
            b' ' | b'\t' | b'\r' | b'\n' => None,
            _ => {
                self.give_up(byte);
                Some(Frame::Garbage("a message is a JSON object and begins with {"))
            }
        }
    }

    fn structure(&mut self, byte: u8) -> Option<Frame> {
        self.message.push(if byte == b'\'' { b'"' } else { byte });
        match byte {
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth > self.depth_max {
                    return Some(Frame::TooMuch(format!(
                        "a message is nested more than {} deep",
                        self.depth_max
                    )));
                }
            }
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.state = State::Between;
                    return Some(Frame::Message(std::mem::take(&mut self.message)));
                }
            }
            b'"' | b'\'' => self.state = State::Text { quote: byte },
            _ => {}
        }
        self.bounded()
    }

    fn text(&mut self, byte: u8, quote: u8) {
        match byte {
            b'\\' => {
                self.message.push(byte);
                self.state = State::Escape { quote };
            }
            _ if byte == quote => {
                self.message.push(b'"');
                self.state = State::Inside;
            }
            b'"' => self.message.extend_from_slice(b"\\\""),
            _ => self.message.push(byte),
        }
    }

    fn bounded(&self) -> Option<Frame> {
        (self.message.len() > self.bytes_max)
            .then(|| Frame::TooMuch(format!("a message is longer than {} bytes", self.bytes_max)))
    }

    /// Forgets what was begun, up to the end of the line.
    fn give_up(&mut self, byte: u8) {
        self.message = Vec::new();
        self.depth = 0;
        self.state = if byte == b'\n' { State::Between } else { State::Skipping };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(mut bytes: &[u8], piece: usize) -> Vec<Frame> {
        let mut framer = Framer::new(64, 4);
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (taken, frame) = framer.feed(&bytes[..piece.min(bytes.len())]);
            let over = matches!(frame, Some(Frame::TooMuch(_)));
            frames.extend(frame);
            if over {
                break;
            }
            bytes = &bytes[taken..];
        }
        frames
    }

    fn message(text: &str) -> Frame {
        Frame::Message(text.as_bytes().to_vec())
    }

    #[test]
    fn messages_need_nothing_between_them_and_may_come_in_pieces() {
        let stream = b"{\"a\":1}{\"b\":[{}]}\r\n  {\"c\":\"}\\\"{\"}";
        let expected = [message("{\"a\":1}"), message("{\"b\":[{}]}"), message("{\"c\":\"}\\\"{\"}")];
        for piece in [1, 2, 3, 7, 100] {
            assert_eq!(frames(stream, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn texts_in_single_quotes_are_understood() {
        assert_eq!(frames(br#"{'a':'say "x" and \'y\''}"#, 1), [message(r#"{"a":"say \"x\" and 'y'"}"#)]);
        assert_eq!(frames(br#"{"a":"it's \' \\"}"#, 9), [message(r#"{"a":"it's ' \\"}"#)]);
    }

    #[test]
    fn a_line_that_makes_no_sense_does_not_spoil_the_next() {
        let found = frames(b"hello {\"x\":1}\n{\"a\":1}\n", 5);
        assert!(matches!(found[..], [Frame::Garbage(_), Frame::Message(_)]), "{found:?}");
        let found = frames(b"{\"a\":\"half\n{\"a\":1}", 5);
        assert!(matches!(found[..], [Frame::Garbage(_), Frame::Message(_)]), "{found:?}");
        let found = frames(b"\xff\xfe\n{}", 5);
        assert!(matches!(found[..], [Frame::Garbage(_), Frame::Message(_)]), "{found:?}");
    }

    #[test]
    fn what_is_too_long_or_too_deep_ends_the_stream() {
        let long = format!("{{\"a\":\"{}", "x".repeat(1000));
        assert!(matches!(frames(long.as_bytes(), 1000)[..], [Frame::TooMuch(_)]));
        let wide = format!("{{\"a\":{}", " ".repeat(1000));
        assert!(matches!(frames(wide.as_bytes(), 1000)[..], [Frame::TooMuch(_)]));
        let quotes = format!("{{'a':'{}", "\"".repeat(1000));
        assert!(matches!(frames(quotes.as_bytes(), 1000)[..], [Frame::TooMuch(_)]));
        assert!(matches!(frames(b"{[{[{[", 1)[..], [Frame::TooMuch(_)]));
        assert!(matches!(frames(b"{[{[]}]}", 1)[..], [Frame::Message(_)]));
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_makes_no_difference(bytes in prop::collection::vec(
            prop::sample::select(b"{}[]\"'\\a: \n\xff".to_vec()), 0..200), piece in 1_usize..20
        ) {
            prop_assert_eq!(frames(&bytes, piece), frames(&bytes, 1000));
        }
    }
}
