//! A door of the simplest kind: a client writes a line `OFFSET LENGTH` and gets the bytes, or a line that says what is
//! wrong; after a line `where` it gets a line with the name of the loop that it lives on.
#![allow(dead_code, clippy::allow_attributes, reason = "a part of the tests of several crates")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use export::{
    Door, Error, ErrorKind, Exports, Hints, InFlight, Loops, NoPlace, Pace, Place, ReadKind, RequestCount,
    RequestKind, Seat, Served,
};
use futures_util::future::select;
use memory::{IoBuf, IoBytes};
use reactor::net::Stream;

/// A test that waits longer has found a door that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Clients that one export serves.
const CLIENTS_MAX: u32 = 16;

pub struct LineDoor(pub Door);

impl LineDoor {
    pub fn new(loops: &Arc<Loops>, exports: Exports) -> Self {
        Self(Door::new(loops, exports))
    }

    /// A client of the export called `name`, on the loop with the fewest.
    pub fn connect(&self, name: &str) -> Result<Client, NoPlace> {
        let (client, begin) = self.pair(name)?;
        self.0.give(begin);
        Ok(client)
    }

    /// The same on loop number `index`.
    pub fn connect_on(&self, index: usize, name: &str) -> Result<Client, NoPlace> {
        let (client, begin) = self.pair(name)?;
        self.0.give_to(index, begin);
        Ok(client)
    }

    fn pair(&self, name: &str) -> Result<(Client, impl FnOnce(&Seat) -> Served + Send + 'static), NoPlace> {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let place = Place::take(self.0.exports().find(name).expect("an export"), CLIENTS_MAX)?;
        let budget = Arc::clone(self.0.loops().budget());
        let begin = move |seat: &Seat| {
            let stream = Rc::new(Stream::from_fd(ours.into()));
            let pace = seat.pace(place.entry());
            let talk = Talk { stream: Rc::clone(&stream), place, pace, held: InFlight::new(budget) };
            Served { hang_up: stream, work: Box::pin(talk.serve()) }
        };
        theirs.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Ok((Client(BufReader::new(theirs)), begin))
    }
}

/// One client, on its loop.
struct Talk {
    stream: Rc<Stream>,
    place: Place,
    pace: Pace,
    held: Rc<InFlight>,
}

impl Talk {
    /// Until the client goes, is asked to end, or loses the export.
    async fn serve(self) {
        let leaving = self.place.entry().leaving().wait();
        select(pin!(self.answer_all()), pin!(leaving)).await;
    }

    async fn answer_all(&self) {
        let (mut line, mut buf) = (Vec::new(), IoBuf::uninit(4096));
        loop {
            let (received, back) = self.stream.recv(buf).await;
            buf = back;
            let Ok(count @ 1..) = received else { return };
            for &byte in &buf[..count] {
                match byte {
                    b'\n' => self.answer(&std::mem::take(&mut line)).await,
                    byte => line.push(byte),
                }
            }
        }
    }

    async fn answer(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let answer = match text.split_once(' ').map(|(offset, len)| (offset.parse(), len.parse())) {
            None if text == "where" => {
                let thread = std::thread::current();
                IoBytes::copy_from(format!("{}\n", thread.name().unwrap_or_default()).as_bytes())
            }
            Some((Ok(offset), Ok(len))) => match self.read(offset, len).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    error.log();
                    IoBytes::copy_from(format!("{}\n", error.kind().name()).as_bytes())
                }
            },
            _ => IoBytes::copy_from(b"no such line\n"),
        };
        // A failure has no receiver.
        let _ = self.stream.send_all(answer.into()).await;
    }

    async fn read(&self, offset: u64, len: usize) -> Result<IoBytes, Error> {
        let (entry, bytes) = (self.place.entry(), len as u64);
        if offset + bytes > entry.disk().size() {
            entry.counters().refused();
            return Err(ErrorKind::PastEnd.into());
        }
        let _permit = self.held.admit(bytes).await;
        let mut buf = IoBuf::uninit(len);
        buf.truncate(len);
        match entry.disk().try_read(offset, &mut buf, Hints::NONE) {
            Some(kind) => {
                entry.counters().read_inline(1, bytes);
                if kind == ReadKind::Zeroes {
                    buf.fill(0);
                }
                Ok(buf.freeze())
            }
            None => {
                let _counted = RequestCount::new(entry);
                let (result, buf) = entry.disk().read(offset, buf, Hints::NONE, &self.pace).await;
                entry.counters().ended(RequestKind::Read, result.is_ok(), bytes);
                result.map(|_| buf.freeze())
            }
        }
    }
}

/// The client's end.
pub struct Client(BufReader<UnixStream>);

impl Client {
    pub fn ask(&mut self, offset: u64, len: usize) {
        self.0.get_mut().write_all(format!("{offset} {len}\n").as_bytes()).expect("a door that reads");
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("an answer in full");
        bytes
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line
    }

    /// The loop that it lives on.
    pub fn place(&mut self) -> String {
        self.0.get_mut().write_all(b"where\n").expect("a door that reads");
        self.line()
    }

    /// Whether the door has nothing more to say, and has hung up.
    pub fn is_ended(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}
