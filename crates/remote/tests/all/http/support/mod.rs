//! A server whose answers a test decides, and what tests share.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use memory::IoBuf;
use reactor::Reactor;
use remote::http::{Error, Fixed, HttpStorage, Options};
use storage::{Hints, Storage};
use wire::http::Url;

/// Bytes of the file that tests serve.
pub const SIZE: u64 = 8 << 20;

/// What the file has at `offset`: no two ranges of it are the same.
pub fn content(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at ^ (at >> 8) ^ (at >> 16).wrapping_mul(31)) as u8).collect()
}

/// A request for a range.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which one it is of the server's, from 0 on.
    pub number: usize,
    pub path: String,
    pub first: u64,
    pub last: u64,
    /// Names in lower case.
    pub fields: Vec<(String, String)>,
}

impl Request {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// What a server answers that does it right.
    pub fn part(&self) -> Reply {
        self.part_of(SIZE, "\"1\"")
    }

    pub fn part_of(&self, size: u64, etag: &str) -> Reply {
        let last = self.last.min(size - 1);
        let body = content(self.first, (last - self.first + 1) as usize);
        let (first, len) = (self.first, body.len());
        Reply::new(
            "206 Partial Content",
            &format!(
                "Content-Range: bytes {first}-{last}/{size}\r\nETag: {etag}\r\nContent-Length: {len}\r\n"
            ),
            &body,
        )
    }
}

/// What is done with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These bytes; the connection stays.
    Bytes(Vec<u8>),
    /// These bytes, so slowly, and the connection ends.
    Slowly(Vec<u8>, Duration),
    /// These bytes, and the connection ends.
    Cut(Vec<u8>),
    /// Nothing, and the connection stays.
    Silence,
}

impl Reply {
    pub fn new(status: &str, fields: &str, body: &[u8]) -> Self {
        Self::Bytes([format!("HTTP/1.1 {status}\r\n{fields}\r\n").as_bytes(), body].concat())
    }

    pub fn status(status: &str) -> Self {
        Self::new(status, "Content-Length: 0\r\n", b"")
    }

    /// Only the first `len` bytes of the body.
    pub fn cut_after(self, len: usize) -> Self {
        let Self::Bytes(bytes) = self else { return self };
        let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        Self::Cut(bytes[..body + len].to_vec())
    }
}

/// A server at a port of its own.
pub struct Server {
    pub port: u16,
    connections: Arc<AtomicUsize>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (answer, connections) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let (requests, counted) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::Relaxed);
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                // A client that is gone has its reasons.
                std::thread::spawn(move || drop(serve(&stream.unwrap(), &*answer, &requests)));
            }
        });
        Self { port, connections }
    }

    /// Connections that were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/disk", self.port)
    }
}

fn serve(stream: &TcpStream, answer: &dyn Fn(&Request) -> Reply, requests: &AtomicUsize) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let mut output = stream;
    while let Some(first_line) = lines.next() {
        let path = first_line?.split(' ').nth(1).unwrap().to_owned();
        let mut fields = Vec::new();
        for line in lines.by_ref() {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else { break };
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut asked =
            Request { number: requests.fetch_add(1, Ordering::Relaxed), path, first: 0, last: 0, fields };
        let (first, last) = asked.field("range").unwrap()["bytes=".len()..].split_once('-').unwrap();
        (asked.first, asked.last) = (first.parse().unwrap(), last.parse().unwrap());
        match answer(&asked) {
            Reply::Bytes(bytes) => output.write_all(&bytes)?,
            Reply::Slowly(bytes, pause) => {
                for byte in bytes {
                    output.write_all(&[byte])?;
                    std::thread::sleep(pause);
                }
                return Ok(());
            }
            Reply::Cut(bytes) => {
                output.write_all(&bytes)?;
                return stream.shutdown(Shutdown::Both);
            }
            Reply::Silence => {}
        }
    }
    Ok(())
}

pub fn options(url: &str) -> Options {
    Options {
        proxy_login: None,
        name: "disk".to_owned(),
        url: Url::parse(url).unwrap(),
        tls: None,
        authorize: Arc::new(Fixed::default()),
        timeout: Duration::from_secs(1),
        open_timeout: Some(Duration::from_secs(20)),
        remote_timeout: Some(Duration::from_secs(20)),
        readahead: 0,
        writable: false,
    }
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    Reactor::new(reactor::Backend::Ring).unwrap().run(future)
}

pub async fn open(url: &str) -> Result<HttpStorage, Error> {
    HttpStorage::open(options(url)).await
}

/// What is read, into a buffer that held something else.
pub async fn read(storage: &dyn Storage, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut dirty = IoBuf::uninit(len);
    dirty.fill(0xee);
    let (result, buf) = storage.read(offset, dirty, Hints::NONE).await;
    assert_eq!(buf.len(), len);
    result.map(|()| buf.to_vec())
}
