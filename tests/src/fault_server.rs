//! An HTTP server of one file that does wrong what a server can do wrong, as often as it is asked.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What can be wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This status, and nothing else.
    Status(u16),
    /// Half of the body, then the end.
    ShortBody,
    /// Bytes beside those that were asked for.
    WrongRange,
    /// The head comes byte by byte.
    Slow,
    /// The connection ends before an answer.
    Reset,
    /// It is at another path, always.
    EndlessRedirect,
    /// It is at this port.
    RedirectTo(u16),
}

/// All of them that need no other server.
pub const FAULTS: [Fault; 11] = [
    Fault::Status(403),
    Fault::Status(404),
    Fault::Status(412),
    Fault::Status(416),
    Fault::Status(429),
    Fault::Status(503),
    Fault::ShortBody,
    Fault::WrongRange,
    Fault::Slow,
    Fault::Reset,
    Fault::EndlessRedirect,
];

/// The server, at a port of its own. Its threads end with the test.
#[derive(Debug)]
pub struct FaultServer {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Vec<u8>,
    /// What is done next, the last first; then all is well.
    faults: Mutex<Vec<Fault>>,
    requests: AtomicUsize,
}

impl FaultServer {
    /// Serves `file` under every path.
    pub fn start(file: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared { file, faults: Mutex::default(), requests: AtomicUsize::default() });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // A client that is gone has its reasons.
                std::thread::spawn(move || drop(shared.serve(&stream)));
            }
        });
        Self { port, shared }
    }

    /// Its port, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The file.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/disk", self.port)
    }

    /// The next requests are answered so, one each.
    pub fn fail(&self, faults: &[Fault]) {
        *self.shared.faults.lock().expect("no thread panics") = faults.iter().rev().copied().collect();
    }

    /// Requests that came.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        while let Some(first_line) = lines.next() {
            first_line?;
            let mut asked = (0, self.file.len() - 1);
            for line in lines.by_ref() {
                let line = line?.to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some((first, last)) =
                    line.strip_prefix("range: bytes=").and_then(|r| r.split_once('-'))
                {
                    asked = (first.parse().unwrap_or(0), last.parse().unwrap_or(0));
                }
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            let fault = self.faults.lock().expect("no thread panics").pop();
            let (head, body) = self.answer(asked, fault);
            match fault {
                Some(Fault::Reset) => return Ok(()),
                Some(Fault::Slow) => {
                    for byte in head.as_bytes() {
                        stream.write_all(&[*byte])?;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                _ => stream.write_all(head.as_bytes())?,
            }
            if fault == Some(Fault::ShortBody) {
                return stream.write_all(&body[..body.len() / 2]);
            }
            stream.write_all(body)?;
        }
        Ok(())
    }

    fn answer(&self, (first, last): (usize, usize), fault: Option<Fault>) -> (String, &[u8]) {
        let empty = |status: &str, fields: &str| {
            (format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n{fields}\r\n"), &self.file[..0])
        };
        match fault {
            Some(Fault::Status(status)) => return empty(&format!("{status} No"), ""),
            Some(Fault::EndlessRedirect) => return empty("302 Found", "Location: /elsewhere\r\n"),
            Some(Fault::RedirectTo(port)) => {
                return empty("302 Found", &format!("Location: http://127.0.0.1:{port}/disk\r\n"));
            }
            _ => {}
        }
        let shift = if fault == Some(Fault::WrongRange) && first >= 512 { 512 } else { 0 };
        let (first, last) = (first - shift, last.min(self.file.len() - 1) - shift);
        let body = &self.file[first..=last];
        let (size, len) = (self.file.len(), body.len());
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nContent-Range: bytes {first}-{last}/{size}\r\nContent-Length: {len}\r\n\r\n"
        );
        (head, body)
    }
}
