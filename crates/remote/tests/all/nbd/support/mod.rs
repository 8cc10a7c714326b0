//! A server whose replies a test decides, and what tests share.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memory::{IoBuf, IoBytes};
use reactor::Reactor;
use remote::nbd::{NbdStorage, Options, Server};
use storage::{Hints, Storage};

/// Flags that a test's export has unless it says otherwise: HAS_FLAGS, FLUSH, TRIM, WRITE_ZEROES.
pub const FLAGS: u16 = 1 | 1 << 2 | 1 << 5 | 1 << 6;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const STATUS: u16 = 7;

/// A connection in transmission, in the structured dialect.
pub struct Line {
    stream: UnixStream,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub number: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
    pub data: Vec<u8>,
}

fn number<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Line {
    /// Shakes hands: an export of `size` bytes, with `base:allocation` as context 1.
    pub fn shake_hands(mut stream: UnixStream, size: u64, flags: u16) -> io::Result<Self> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x01")?;
        number::<4>(&mut stream)?;
        loop {
            let [.., a, b, c, d] = number::<12>(&mut stream)?;
            let option = u32::from_be_bytes([a, b, c, d]);
            let len = u32::from_be_bytes(number(&mut stream)?);
            stream.read_exact(&mut vec![0; len as usize])?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                bytes.extend(option.to_be_bytes());
                bytes.extend(kind.to_be_bytes());
                bytes.extend((data.len() as u32).to_be_bytes());
                bytes.extend(data);
                stream.write_all(&bytes)
            };
            match option {
                8 => reply(1, b"")?,
                10 => {
                    reply(4, b"\0\0\0\x01base:allocation")?;
                    reply(1, b"")?;
                }
                7 => {
                    let mut info = vec![0, 0];
                    info.extend(size.to_be_bytes());
                    info.extend(flags.to_be_bytes());
                    reply(3, &info)?;
                    reply(1, b"")?;
                    return Ok(Self { stream });
                }
                _ => reply(1 << 31 | 1, b"")?,
            }
        }
    }

    /// The next request; None when the client is gone.
    pub fn asked(&mut self) -> Option<Request> {
        let head = number::<28>(&mut self.stream).ok()?;
        let field = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().unwrap());
        let number = u16::from_be_bytes([head[6], head[7]]);
        let len = u32::from_be_bytes(head[24..28].try_into().unwrap());
        let mut data = vec![0; if number == WRITE { len as usize } else { 0 }];
        self.stream.read_exact(&mut data).ok()?;
        Some(Request { number, cookie: field(8), offset: field(16), len, data })
    }

    /// Sends bytes as they are. A client that is gone has its reasons.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends a chunk.
    pub fn chunk(&mut self, cookie: u64, kind: u16, done: bool, payload: &[u8]) {
        self.send(&chunk(cookie, kind, done, payload));
    }

    /// Sends a reply without payload.
    pub fn done(&mut self, cookie: u64) {
        self.send(&simple(cookie, 0));
    }

    /// Sends what a read asked for.
    pub fn data(&mut self, asked: &Request, bytes: &[u8]) {
        self.chunk(asked.cookie, 1, true, &placed(asked.offset, bytes));
    }
}

pub fn simple(cookie: u64, error: u32) -> Vec<u8> {
    let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

pub fn chunk(cookie: u64, kind: u16, done: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend(u16::from(done).to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Bytes behind their offset.
pub fn placed(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], bytes].concat()
}

/// A directory with a socket in it.
pub struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// Serves one connection after the other; `serve` has the number of each.
    pub fn serve(&self, serve: impl Fn(usize, UnixStream) + Send + 'static) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            for (at, stream) in listener.incoming().enumerate() {
                serve(at, stream.unwrap());
            }
        });
    }

    /// The export, to be written.
    pub fn options(&self) -> Options {
        options(&self.socket())
    }
}

pub fn options(socket: &Path) -> Options {
    Options {
        name: "disk".to_owned(),
        server: Server::Unix(socket.to_owned()),
        export: String::new(),
        bitmap: None,
        tls: None,
        writable: true,
        no_flush: false,
        reconnect_delay: Duration::ZERO,
        open_timeout: Duration::from_secs(10),
        remote_timeout: None,
    }
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    Reactor::new(reactor::Backend::Ring).unwrap().run(future)
}

pub async fn open(options: Options) -> NbdStorage {
    NbdStorage::open(options).await.unwrap()
}

/// What is read, into a buffer that held something else.
pub async fn read(storage: &dyn Storage, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut dirty = IoBuf::uninit(len);
    dirty.fill(0xee);
    let (result, buf) = storage.read(offset, dirty, Hints::NONE).await;
    assert_eq!(buf.len(), len);
    result.map(|()| buf.to_vec())
}

pub async fn write(storage: &dyn Storage, offset: u64, bytes: &[u8]) -> io::Result<()> {
    storage.write(offset, IoBytes::copy_from(bytes).into(), Hints::NONE).await
}
