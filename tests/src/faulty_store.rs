//! A store behind a way on which requests and answers are lost.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::run::Run;

/// How long a request may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// It does not arrive: this status is the answer.
    Status(u16),
    /// Half of it does not arrive, then the connection ends.
    Reset,
    /// It arrives and is carried out; its answer does not come back.
    LostAnswer,
    /// It arrives, and nothing comes back for as long as the client waits.
    Silence,
}

/// A fault, and whose: the first request whose first line contains this text has it, once.
pub type Planned = (&'static str, StoreFault);

/// The way to a store, at a port of its own. Its threads end with the test.
#[derive(Debug)]
pub struct FaultyStore {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Port of the store.
    store: u16,
    planned: Mutex<Vec<Planned>>,
    /// First lines of what came.
    requests: Mutex<Vec<String>>,
    /// Bytes of answers that went back.
    answered: AtomicU64,
}

impl FaultyStore {
    /// The way to the store at this port.
    pub fn start(store: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (planned, requests, answered) = (Mutex::default(), Mutex::default(), AtomicU64::default());
        let shared = Arc::new(Shared { store, planned, requests, answered });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // A client that is gone has its reasons.
                std::thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Self { port, shared }
    }

    /// `HOST:PORT` of the store.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `run` with this as its store, and a user's credentials: `hush` and `quiet` are to be seen nowhere.
    pub fn below(&self, run: Run) -> Run {
        run.env("AWS_ENDPOINT_URL", format!("http://{}", self.address()))
            .env("AWS_ACCESS_KEY_ID", "A")
            .env("AWS_SECRET_ACCESS_KEY", "hush")
            .env("AWS_SESSION_TOKEN", "quiet")
    }

    /// These faults happen, once each.
    pub fn plan(&self, faults: &[Planned]) {
        *self.shared.planned.lock().expect("no thread panics") = faults.to_vec();
    }

    /// Faults that have not happened yet.
    pub fn left(&self) -> Vec<Planned> {
        self.shared.planned.lock().expect("no thread panics").clone()
    }

    /// Waits until a request has come whose first line contains `mark`, and forgets those before it.
    pub fn wait_for(&self, mark: &str) {
        let until = Instant::now() + COMES_WITHIN;
        let mut seen = Vec::new();
        while !seen.iter().any(|line: &String| line.contains(mark)) {
            assert!(Instant::now() < until, "no {mark} in {seen:?}");
            std::thread::sleep(Duration::from_millis(10));
            seen.extend(self.requests());
        }
    }

    /// Bytes of the store's answers since the last call, with their heads.
    pub fn answered_bytes(&self) -> u64 {
        self.shared.answered.swap(0, Ordering::Relaxed)
    }

    /// First lines of the requests that came since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.requests.lock().expect("no thread panics"))
    }
}

impl Shared {
    /// One request; the connection ends with its answer.
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut request = Vec::new();
        let end = loop {
            if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                count => request.extend(&piece[..count]),
            }
        };
        let head = String::from_utf8_lossy(&request[..end]).into_owned();
        let first = head.lines().next().unwrap_or_default().to_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let whole = end + length.map_or(0, |length| length.parse().unwrap_or(0));
        let fault = {
            let mut planned = self.planned.lock().expect("no thread panics");
            let at = planned.iter().position(|(text, _)| first.contains(text));
            at.map(|at| planned.remove(at).1)
        };
        self.requests.lock().expect("no thread panics").push(first);
        let wanted = if fault == Some(StoreFault::Reset) { whole / 2 } else { whole };
        let mut piece = vec![0; 64 << 10];
        while request.len() < wanted {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                count => request.extend(&piece[..count]),
            }
        }
        match fault {
            Some(StoreFault::Reset) => return Ok(()),
            Some(StoreFault::Status(status)) => {
                let answer =
                    format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                return stream.write_all(answer.as_bytes());
            }
            Some(StoreFault::Silence) => {
                // The client has no more to say: this ends when it goes.
                return stream.read(&mut piece).map(drop);
            }
            Some(StoreFault::LostAnswer) | None => {}
        }
        let mut store = TcpStream::connect(("127.0.0.1", self.store))?;
        let line_end = head.find("\r\n").unwrap_or_default() + 2;
        store.write_all(&request[..line_end])?;
        store.write_all(b"Connection: close\r\n")?;
        store.write_all(&request[line_end..])?;
        let mut answer = Vec::new();
        store.read_to_end(&mut answer)?;
        if fault == Some(StoreFault::LostAnswer) {
            return Ok(());
        }
        self.answered.fetch_add(answer.len() as u64, Ordering::Relaxed);
        stream.write_all(&answer)
    }
}
