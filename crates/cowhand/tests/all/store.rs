//! An object store in memory, at a port of 127.0.0.1: objects are put, on conditions, looked at, read, listed and deleted, one request a connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// Objects by bucket and key, each with the number of the request that made it: its ETag.
#[derive(Default)]
struct Objects {
    made: BTreeMap<String, (u64, Vec<u8>)>,
    requests: u64,
}

/// A store. Its thread ends with the process.
pub struct Store {
    port: u16,
    objects: Arc<Mutex<Objects>>,
}

impl Store {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, objects) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Objects>>::default());
        let shared = Arc::clone(&objects);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let objects = Arc::clone(&shared);
                // A client that goes away is no concern of the store.
                std::thread::spawn(move || drop(answer(stream, &objects)));
            }
        });
        Self { port, objects }
    }

    /// Has the programs that `command` starts use it, as a user with credentials.
    pub fn below<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port));
        command.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "hush")
    }

    /// Names of the objects that are there: `BUCKET/KEY`.
    #[allow(clippy::allow_attributes, dead_code, reason = "programs that include this file")]
    pub fn keys(&self) -> Vec<String> {
        lock(&self.objects).made.keys().cloned().collect()
    }
}

fn lock(objects: &Mutex<Objects>) -> std::sync::MutexGuard<'_, Objects> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(mut stream: TcpStream, objects: &Mutex<Objects>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut fields = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = fields.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (status, mut head, body) = done(&mut lock(objects), (&method, &target), &fields, body);
    let length = body.len();
    head.push_str(&format!("Content-Length: {length}\r\nConnection: close\r\n\r\n"));
    stream.write_all(format!("HTTP/1.1 {status} -\r\n{head}").as_bytes())?;
    stream.write_all(if method == "HEAD" { b"" } else { &body })
}

/// Carries out a request: status, fields and body of the answer.
fn done(
    objects: &mut Objects,
    (method, target): (&str, &str),
    fields: &BTreeMap<String, String>,
    body: Vec<u8>,
) -> (u16, String, Vec<u8>) {
    objects.requests += 1;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = unescaped(path.trim_start_matches('/'));
    let none = || (String::new(), Vec::new());
    let etag = objects.made.get(&key).map(|(number, _)| format!("\"{number}\""));
    let (status, (head, body)) = match method {
        "GET" if query.contains("list-type=2") => (200, (String::new(), list(objects, &key, query))),
        "GET" | "HEAD" => match objects.made.get(&key) {
            Some((number, bytes)) => (200, (format!("ETag: \"{number}\"\r\n"), bytes.clone())),
            None => (404, none()),
        },
        "PUT" if fields.contains_key("if-none-match") && etag.is_some() => (412, none()),
        "PUT" if fields.get("if-match").is_some_and(|wanted| Some(wanted) != etag.as_ref()) => (412, none()),
        "PUT" => {
            objects.made.insert(key, (objects.requests, body));
            (200, (format!("ETag: \"{}\"\r\n", objects.requests), Vec::new()))
        }
        "DELETE" => {
            objects.made.remove(&key);
            (204, none())
        }
        _ => (501, none()),
    };
    (status, head, body)
}

fn list(objects: &Objects, bucket: &str, query: &str) -> Vec<u8> {
    let of = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)).map(unescaped);
    let (prefix, is_flat) = (of("prefix=").unwrap_or_default(), of("delimiter=").is_some());
    let begin = format!("{}/{prefix}", bucket.trim_end_matches('/'));
    let inside =
        objects.made.iter().filter_map(|(key, (_, bytes))| Some((key, key.strip_prefix(&begin)?, bytes)));
    let listed = inside.filter(|(_, rest, _)| !is_flat || !rest.contains('/')).map(|(key, _, bytes)| {
        let key = key.split_once('/').map_or("", |(_, key)| key);
        format!("<Contents><Key>{key}</Key><Size>{}</Size></Contents>", bytes.len())
    });
    let listed: String = listed.collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>").into_bytes()
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        bytes.extend(u8::from_str_radix(code, 16));
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
