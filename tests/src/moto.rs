//! moto: an S3-compatible store in memory, at a port of its own. It takes every signature, as long as there is one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::ports::free_port;
use crate::{Run, program, ready};

/// How long it may take to answer: it is much Python.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// What `Authorization` is to be: objects that were made with a signature are not replaced without.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// A store.
#[derive(Debug)]
pub struct Moto {
    child: Child,
    port: u16,
}

/// Where `cargo xtask test` puts it, with an S3 client of AWS's: beside the build.
pub(crate) fn packages() -> PathBuf {
    let build = program::path().parent().and_then(std::path::Path::parent).expect("a build directory");
    build.join("moto")
}

impl Moto {
    /// An empty store.
    pub fn start() -> Self {
        Self::start_of(&packages())
    }

    /// An empty store, of the Python packages in a directory.
    pub fn start_of(packages: &Path) -> Self {
        let port = free_port();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-m", "moto.server", "-p", &port.to_string()]).env("PYTHONPATH", packages);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run python3: {error}"));
        let what = format!("moto (in {})", packages.display());
        ready::until(&what, &mut child, STARTS_WITHIN, || ready::http(port));
        Self { child, port }
    }

    /// What `AWS_ENDPOINT_URL` is to be.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `run` with this as its store, and a user's credentials.
    pub fn below(&self, run: Run) -> Run {
        let run = run.env("AWS_ENDPOINT_URL", self.endpoint());
        run.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "hush")
    }

    /// Its port, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What is there under a path (`/BUCKET/KEY`, or `/BUCKET?uploads` and the like); `None` if nothing is.
    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let host = format!("127.0.0.1:{}", self.port);
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {SIGNED}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it takes it");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        answer.starts_with(b"HTTP/1.1 200").then(|| answer.split_off(end))
    }

    /// The keys of a bucket.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.names(&format!("/{bucket}?list-type=2"), "Key")
    }

    /// Uploads of a bucket that have not ended.
    pub fn pending(&self, bucket: &str) -> Vec<String> {
        self.names(&format!("/{bucket}?uploads"), "UploadId")
    }

    fn names(&self, path: &str, element: &str) -> Vec<String> {
        let list = String::from_utf8(self.get(path).expect("a bucket")).expect("text");
        let start = format!("<{element}>");
        let parts = list.split(&start).skip(1);
        parts.filter_map(|part| part.split_once("</").map(|(name, _)| name.to_owned())).collect()
    }

    /// Writes all objects of a bucket to files below `directory`.
    pub fn save(&self, bucket: &str, directory: &Path) {
        for key in self.keys(bucket) {
            let path = directory.join(&key);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, self.get(&format!("/{bucket}/{key}")).expect("an object")).expect("a file");
        }
    }

    /// Makes a bucket (`/BUCKET`), or an object (`/BUCKET/KEY`, escaped) of these bytes.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.change("PUT", path, bytes, "200");
    }

    /// Deletes an object.
    pub fn delete(&self, path: &str) {
        self.change("DELETE", path, b"", "204");
    }

    fn change(&self, method: &str, path: &str, bytes: &[u8], status: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: {SIGNED}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.port,
            bytes.len()
        );
        stream.write_all(&[head.as_bytes(), bytes].concat()).expect("it takes it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
