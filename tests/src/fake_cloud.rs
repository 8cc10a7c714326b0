//! A cloud at a port of this machine: a store of objects in memory, and the services that give credentials for it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::run::Run;

mod credentials;
mod objects;

/// Whose interface it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// S3.
    Amazon,
    /// The XML interface of Google Cloud Storage.
    Google,
    /// Blobs of the account `me`.
    Azure,
}

/// A cloud. Its threads end with the test.
#[derive(Debug)]
pub struct FakeCloud {
    cloud: Cloud,
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// By bucket and key.
    objects: BTreeMap<String, Object>,
    /// Parts of uploads, by upload and number.
    parts: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    versions: u64,
    /// When credentials were given, each with the next number.
    given: Vec<Instant>,
    /// How long credentials are good that are given.
    lifetime_s: u64,
    /// First lines of what came, and with which credentials.
    requests: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Vec<u8>,
    version: u64,
    mark: Option<String>,
}

/// A request.
#[derive(Debug)]
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    /// Names in lower case.
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// An answer: status, fields, body.
type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl FakeCloud {
    /// An empty store. Credentials that are given end after `lifetime_s`.
    pub fn start(cloud: Cloud, lifetime_s: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(Mutex::new(State { lifetime_s, ..State::default() }));
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                // A client that is gone has its reasons.
                std::thread::spawn(move || drop(serve(cloud, stream, &state)));
            }
        });
        Self { cloud, port, state }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The variables by which its store is found, and credentials are fetched that end.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let url = self.url();
        match self.cloud {
            Cloud::Amazon => vec![
                ("AWS_ENDPOINT_URL", url.clone()),
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{url}/container")),
            ],
            Cloud::Google => vec![
                ("STORAGE_EMULATOR_HOST", url),
                ("GCE_METADATA_HOST", format!("127.0.0.1:{}", self.port)),
            ],
            Cloud::Azure => vec![
                ("AZURE_STORAGE_SERVICE_ENDPOINT", format!("{url}/me")),
                ("AZURE_IMDS_ENDPOINT", format!("{url}/metadata/identity/oauth2/token")),
            ],
        }
    }

    /// `run` with this as its cloud.
    pub fn below(&self, run: Run) -> Run {
        self.variables()
            .into_iter()
            .fold(run.env("HOME", "/nonexistent"), |run, (name, value)| run.env(name, value))
    }

    /// First lines of the requests that came since the last call, each with the credentials that it was signed with.
    pub fn requests(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.locked().requests)
    }

    /// Names of the objects, as `BUCKET/KEY`.
    pub fn objects(&self) -> Vec<String> {
        self.locked().objects.keys().cloned().collect()
    }

    /// The bytes of an object.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.locked().objects.get(name).map(|object| object.bytes.clone())
    }

    /// Changes the bytes of an object without a word.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.locked().objects.get_mut(name).expect("an object").bytes);
    }

    /// Removes an object.
    pub fn remove(&self, name: &str) {
        self.locked().objects.remove(name).expect("an object");
    }

    /// Parts that were sent and belong to no object.
    pub fn parts(&self) -> usize {
        self.locked().parts.values().map(BTreeMap::len).sum()
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics")
    }
}

/// One request; the connection ends with its answer.
fn serve(cloud: Cloud, mut stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let Some(request) = receive(&mut stream)? else { return Ok(()) };
    let (status, mut fields, body) = {
        let mut state = state.lock().expect("no thread panics");
        match credentials::answer(&mut state, &request) {
            Some(answer) => answer,
            None => objects::answer(cloud, &mut state, &request),
        }
    };
    if !fields.iter().any(|(name, _)| *name == "Content-Length") {
        fields.push(("Content-Length", body.len().to_string()));
    }
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!(
        "HTTP/1.1 {status} X\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: close\r\n{fields}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    match request.method.as_str() {
        "HEAD" => Ok(()),
        _ => stream.write_all(&body),
    }
}

fn receive(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            count => bytes.extend(&piece[..count]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let method = first.next().unwrap_or_default().to_owned();
    let target = first.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let fields: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let query = query.split('&').filter(|pair| !pair.is_empty());
    let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (plain(name), plain(value))).collect();
    let length = fields.get("content-length").map_or(0, |length| length.parse().unwrap_or(0));
    let mut body = bytes.split_off(end);
    while body.len() < length {
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            count => body.extend(&piece[..count]),
        }
    }
    Ok(Some(Request { method, path: plain(path), query, fields, body }))
}

/// Without `%XX`.
fn plain(escaped: &str) -> String {
    let mut parts = escaped.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).expect("an escape"));
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).expect("a name in UTF-8")
}
