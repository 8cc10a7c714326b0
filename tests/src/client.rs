//! An NBD client of our own: simple replies only, many requests in flight if wanted.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};

use crate::wire::{self, Command};

/// How long a server may be silent before that is an error.
const SILENCE: Duration = Duration::from_secs(30);

/// Replies that are taken from the socket at once.
const RECEIVED_BYTES: usize = 64 << 10;

/// One connection to one export.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    size: u64,
    flags: u16,
    next_cookie: u64,
    /// Bytes that the reply to each request carries, if it succeeds.
    in_flight: HashMap<u64, u32>,
    /// What was answered while we were still sending.
    arrived: VecDeque<Reply>,
}

/// What is asked. `data` goes with writes only.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is to be done.
    pub command: Command,
    /// Command flags ([`wire::FUA`], [`wire::NO_HOLE`]).
    pub flags: u16,
    /// First byte of the disk.
    pub offset: u64,
    /// Bytes of the disk.
    pub len: u32,
    /// What is written.
    pub data: &'a [u8],
}

/// What is answered.
#[derive(Debug)]
pub struct Reply {
    /// Which request.
    pub cookie: u64,
    /// 0, or the protocol's error number.
    pub error: u32,
    /// What was read.
    pub data: Vec<u8>,
}

/// Why a request came to nothing.
#[derive(Debug)]
pub enum Failed {
    /// The server says no, with the protocol's error number.
    Refused(u32),
    /// The connection is no more.
    Gone(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl<'a> Request<'a> {
    /// A read.
    pub fn read(offset: u64, len: u32) -> Self {
        Self { command: Command::Read, flags: 0, offset, len, data: &[] }
    }

    /// A write.
    pub fn write(offset: u64, data: &'a [u8]) -> Self {
        let len = u32::try_from(data.len()).expect("a write of less than 4 GiB");
        Self { command: Command::Write, flags: 0, offset, len, data }
    }

    /// A flush.
    pub fn flush() -> Self {
        Self { command: Command::Flush, flags: 0, offset: 0, len: 0, data: &[] }
    }

    /// With a flag more.
    #[must_use]
    pub fn with(self, flag: u16) -> Self {
        Self { flags: self.flags | flag, ..self }
    }
}

impl Client {
    /// Connects to an export. Fails if no server listens, or if the server does not want us.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut client = Self {
            stream: BufReader::with_capacity(RECEIVED_BYTES, stream),
            size: 0,
            flags: 0,
            next_cookie: 1,
            in_flight: HashMap::new(),
            arrived: VecDeque::new(),
        };
        client.greet()?;
        client.go(export)?;
        Ok(client)
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The export's flags.
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// Requests that were not answered yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Sends a request; its reply comes from [`Client::receive`], in any order.
    pub fn send(&mut self, request: &Request<'_>) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut bytes = Vec::with_capacity(28 + request.data.len());
        bytes.extend(wire::REQUEST.to_be_bytes());
        bytes.extend(request.flags.to_be_bytes());
        bytes.extend(request.command.number().to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(request.offset.to_be_bytes());
        bytes.extend(request.len.to_be_bytes());
        bytes.extend(request.data);
        let answered_bytes = if request.command == Command::Read { request.len } else { 0 };
        self.in_flight.insert(cookie, answered_bytes);
        self.send_all(&bytes)?;
        Ok(cookie)
    }

    /// Sends without ceasing to listen: a server may stop reading until its replies are taken.
    fn send_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let silence = Timespec::try_from(SILENCE).expect("a short time");
        while !bytes.is_empty() {
            match send(self.stream.get_ref(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::AGAIN) => {
                    let mut fds = [PollFd::new(self.stream.get_ref(), PollFlags::IN | PollFlags::OUT)];
                    check(poll(&mut fds, Some(&silence))? > 0, "the server neither reads nor answers")?;
                    if !fds[0].revents().contains(PollFlags::OUT) {
                        let reply = self.receive_next()?;
                        self.arrived.push_back(reply);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        match self.arrived.pop_front() {
            Some(reply) => Ok(reply),
            None => self.receive_next(),
        }
    }

    fn receive_next(&mut self) -> io::Result<Reply> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes"));
        check(word(0) == wire::SIMPLE_REPLY, "a reply has the wrong magic")?;
        let bytes = self.in_flight.remove(&cookie);
        check(bytes.is_some(), "a reply answers nothing that was asked")?;
        let bytes = if word(4) == 0 { bytes.unwrap_or(0) } else { 0 };
        let mut data = vec![0; bytes as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Reply { cookie, error: word(4), data })
    }

    /// Sends one request and waits for its reply.
    pub fn ask(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Failed> {
        let cookie = self.send(request)?;
        let reply = self.receive()?;
        check(reply.cookie == cookie, "a reply answers another request")?;
        if reply.error == 0 { Ok(reply.data) } else { Err(Failed::Refused(reply.error)) }
    }

    /// Bytes of the disk.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Failed> {
        self.ask(&Request::read(offset, len))
    }

    /// Every byte of the disk, in reads of 1 MiB.
    pub fn read_all(&mut self) -> Result<Vec<u8>, Failed> {
        const STEP: u64 = 1 << 20;
        let mut disk = Vec::new();
        while (disk.len() as u64) < self.size {
            let offset = disk.len() as u64;
            let len = u32::try_from((self.size - offset).min(STEP)).expect("at most a step");
            disk.extend(self.read(offset, len)?);
        }
        Ok(disk)
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failed> {
        self.ask(&Request::write(offset, data)).map(drop)
    }

    /// Makes what was written durable.
    pub fn flush(&mut self) -> Result<(), Failed> {
        self.ask(&Request::flush()).map(drop)
    }

    /// Gives up a range.
    pub fn trim(&mut self, offset: u64, len: u32) -> Result<(), Failed> {
        self.ask(&Request { command: Command::Trim, flags: 0, offset, len, data: &[] }).map(drop)
    }

    /// Zeroes a range; `flags` may be [`wire::NO_HOLE`].
    pub fn write_zeroes(&mut self, offset: u64, len: u32, flags: u16) -> Result<(), Failed> {
        self.ask(&Request { command: Command::WriteZeroes, flags, offset, len, data: &[] }).map(drop)
    }

    /// Says goodbye. The server closes its end.
    pub fn disconnect(mut self) {
        let goodbye = Request { command: Command::Disconnect, flags: 0, offset: 0, len: 0, data: &[] };
        if self.send(&goodbye).is_ok() {
            let _ = self.stream.read(&mut [0; 1]);
        }
    }

    fn greet(&mut self) -> io::Result<()> {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting)?;
        check(greeting[..16] == wire::GREETING[..], "no newstyle greeting")?;
        self.stream.get_mut().write_all(&wire::CLIENT_FLAGS.to_be_bytes())
    }

    fn go(&mut self, export: &str) -> io::Result<()> {
        let name_bytes = u32::try_from(export.len()).expect("a short name");
        let mut option = Vec::new();
        option.extend(wire::OPTION);
        option.extend(wire::GO.to_be_bytes());
        option.extend((4 + name_bytes + 2).to_be_bytes());
        option.extend(name_bytes.to_be_bytes());
        option.extend(export.as_bytes());
        option.extend(0_u16.to_be_bytes());
        self.stream.get_mut().write_all(&option)?;
        while self.option_reply()? != wire::ACK {}
        Ok(())
    }

    /// One reply to GO; gives its type.
    fn option_reply(&mut self) -> io::Result<u32> {
        let mut head = [0; 20];
        self.stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let magic = u64::from_be_bytes(head[..8].try_into().expect("eight bytes"));
        check(magic == wire::OPTION_REPLY && word(8) == wire::GO, "a reply to another option")?;
        check(word(16) <= 1 << 16, "an option reply of more than 64 KiB")?;
        let mut data = vec![0; word(16) as usize];
        self.stream.read_exact(&mut data)?;
        if word(12) >> 31 != 0 {
            let words = String::from_utf8_lossy(&data).into_owned();
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, words));
        }
        if word(12) == wire::INFO && data.len() >= 12 && data[..2] == [0, 0] {
            self.size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
            self.flags = u16::from_be_bytes(data[10..12].try_into().expect("two bytes"));
        }
        Ok(word(12))
    }
}

fn check(holds: bool, what: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, what)) }
}
