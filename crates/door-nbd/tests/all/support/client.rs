//! A blocking client that does exactly what it is asked.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use wire::nbd::client::{ExportRequest, Handshake, Negotiated, Step};
use wire::nbd::{
    Chunk, CommandFlags, Decoded, Descriptor, Dialect, ErrorCode, ReplyHead, RequestHeader, command_number,
    decode_chunk, decode_reply,
};

/// A test that waits longer has found a server that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client {
    pub socket: UnixStream,
    pub agreed: Negotiated,
    received: Vec<u8>,
}

/// One whole reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub result: Result<(), ErrorCode>,
    pub data: Vec<u8>,
    /// Bytes of `data` that came as holes.
    pub hole_bytes: u64,
    /// Context and extents, as they came.
    pub status: Vec<(u32, Vec<Descriptor>)>,
}

pub fn connect_raw(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("a server that listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Reads until the server closes the connection, orderly or not.
pub fn read_to_end(mut stream: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the server does not close"),
        _ => bytes,
    }
}

impl Client {
    pub fn connect(socket: &Path, dialect: Dialect, contexts: &[&str]) -> Self {
        let contexts = contexts.iter().map(|context| (*context).to_owned()).collect();
        let wanted = ExportRequest { export: "disk".into(), tls: false, dialect, contexts };
        Self::negotiate(socket, wanted).expect("the server to agree")
    }

    pub fn negotiate(
        socket: &Path,
        wanted: ExportRequest,
    ) -> Result<Self, wire::nbd::client::HandshakeError> {
        let mut socket = connect_raw(socket);
        let mut handshake = Handshake::new(wanted);
        let (mut received, mut out) = (Vec::new(), Vec::new());
        loop {
            let (taken, step) = handshake.step(&received, &mut out)?;
            received.drain(..taken);
            socket.write_all(&out).expect("a server that reads");
            out.clear();
            match step {
                Step::Again => {}
                Step::Need(_) => receive(&mut socket, &mut received),
                Step::StartTls => panic!("TLS was not asked for"),
                Step::Ready(agreed) => return Ok(Self { socket, agreed, received }),
            }
        }
    }

    pub fn header(number: u16, flags: CommandFlags, cookie: u64, (offset, len): (u64, u64)) -> RequestHeader {
        RequestHeader { flags, number, cookie, offset, len }
    }

    pub fn send(&mut self, header: RequestHeader, payload: &[u8]) {
        let mut bytes = header.encode(self.agreed.dialect).to_vec();
        bytes.extend(payload);
        self.socket.write_all(&bytes).expect("a server that reads");
    }

    pub fn send_read(&mut self, cookie: u64, offset: u64, len: u64) {
        self.send(Self::header(command_number::READ, CommandFlags::NONE, cookie, (offset, len)), &[]);
    }

    pub fn send_write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        let flags = match self.agreed.dialect {
            Dialect::Extended => CommandFlags::PAYLOAD_LEN,
            Dialect::Simple | Dialect::Structured => CommandFlags::NONE,
        };
        self.send(Self::header(command_number::WRITE, flags, cookie, (offset, data.len() as u64)), data);
    }

    /// The next reply; `data_bytes` are what a read of this cookie would bring in the simple dialect.
    pub fn reply(&mut self, data_bytes: usize) -> Reply {
        let mut whole: Option<Reply> = None;
        loop {
            let head = self.head();
            let (cookie, kind, done, payload_bytes) = match head {
                ReplyHead::Simple { cookie, result } => {
                    let bytes = if result.is_ok() { data_bytes } else { 0 };
                    return Reply { cookie, result, data: self.take(bytes), hole_bytes: 0, status: vec![] };
                }
                ReplyHead::Chunk { cookie, kind, done, payload_bytes, .. } => {
                    (cookie, kind, done, payload_bytes)
                }
            };
            let payload = self.take(payload_bytes as usize);
            let empty = || Reply { cookie, result: Ok(()), data: vec![], hole_bytes: 0, status: vec![] };
            let reply = whole.get_or_insert_with(empty);
            assert_eq!(reply.cookie, cookie);
            match decode_chunk(kind, &payload).expect("a chunk that can be read") {
                Chunk::None => {}
                Chunk::Data { bytes, .. } => reply.data.extend(bytes),
                Chunk::Hole { len, .. } => {
                    reply.hole_bytes += u64::from(len);
                    reply.data.resize(reply.data.len() + len as usize, 0);
                }
                Chunk::BlockStatus { context, descriptors } => {
                    reply.status.push((context, descriptors.iter().collect()));
                }
                Chunk::Error { code, .. } => reply.result = Err(code),
            }
            if let (true, Some(reply)) = (done, whole.take_if(|_| done)) {
                return reply;
            }
        }
    }

    pub fn call(&mut self, header: RequestHeader, payload: &[u8]) -> Result<Reply, ErrorCode> {
        let data_bytes = if header.number == command_number::READ { header.len as usize } else { 0 };
        self.send(header, payload);
        let reply = self.reply(data_bytes);
        assert_eq!(reply.cookie, header.cookie);
        reply.result.map(|()| reply)
    }

    fn head(&mut self) -> ReplyHead {
        loop {
            match decode_reply(self.agreed.dialect, &self.received).expect("a reply") {
                Decoded::Need(_) => receive(&mut self.socket, &mut self.received),
                Decoded::Head { bytes, head } => {
                    self.received.drain(..bytes);
                    return head;
                }
            }
        }
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            receive(&mut self.socket, &mut self.received);
        }
        self.received.drain(..count).collect()
    }
}

fn receive(socket: &mut UnixStream, received: &mut Vec<u8>) {
    let mut bytes = vec![0; 64 << 10];
    let count = socket.read(&mut bytes).expect("a server that answers in time");
    assert!(count > 0, "the server has closed the connection");
    received.extend(&bytes[..count]);
}
