//! Encrypted connections, with clients that others wrote.

use crate::support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::thread::JoinHandle;

use door_nbd::{Server, ServerOptions, TlsPolicy};
use export::{Export, Exports, Loops, Shutdown};
use net::tls::ServerFiles;
use reactor::net::Listener;
use support::memory_export::MemoryExport;
use support::{peer, peer_succeeds};

const SIZE: u64 = 32 << 20;

fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/tls")
}

fn files(client_ca: bool) -> ServerFiles {
    let at = certificates();
    ServerFiles {
        certificate: at.join("server-cert.pem"),
        key: at.join("server-key.pem"),
        client_ca: client_ca.then(|| at.join("ca.pem")),
        terms: net::tls::Terms::default(),
    }
}

/// A server on loopback.
struct TlsServer {
    port: u16,
    disk: Arc<MemoryExport>,
    shutdown: Shutdown,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    /// Credentials as clients want them: files of fixed names in one directory.
    credentials: tempfile::TempDir,
}

impl TlsServer {
    fn start(tls: TlsPolicy, client: &str) -> Self {
        let credentials = tempfile::tempdir().expect("a scratch directory");
        for (from, to) in [
            ("ca.pem".to_owned(), "ca-cert.pem"),
            (format!("{client}-cert.pem"), "client-cert.pem"),
            (format!("{client}-key.pem"), "client-key.pem"),
        ] {
            std::fs::copy(certificates().join(from), credentials.path().join(to)).expect("a certificate");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let listener = Listener::from_tcp(listener).expect("a listener");
        let (exports, disk) = (Exports::new(), Arc::new(MemoryExport::new(SIZE)));
        exports.add("disk", "", Arc::clone(&disk) as Arc<dyn Export>).expect("the first export");
        let shutdown = Shutdown::new();
        let options = ServerOptions { tls, ..ServerOptions::default() };
        let loops = Loops::new(2, shutdown.clone());
        Server::new(exports, options, &loops).listen(&listener);
        let thread = std::thread::spawn(move || loops.run(reactor::Backend::Ring));
        Self { port, disk, shutdown, thread: Some(thread), credentials }
    }

    fn uri(&self) -> String {
        let credentials = self.credentials.path().display();
        format!("nbds://localhost:{}/disk?tls-certificates={credentials}", self.port)
    }

    fn plain_uri(&self) -> String {
        format!("nbd://localhost:{}/disk", self.port)
    }

    fn nbdinfo(&self, uri: &str) -> Output {
        peer("nbdinfo", &[uri])
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("no panic").expect("event loops");
            }
        }
    }
}

fn required(client_ca: bool) -> TlsPolicy {
    TlsPolicy::Required(files(client_ca).config().expect("certificates of this test"))
}

#[test]
fn a_disk_is_carried_whole_through_tls() {
    let server = TlsServer::start(required(true), "client");
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (source, target) = (scratch.path().join("source"), scratch.path().join("target"));
    let image: Vec<u8> = (0..SIZE).map(|at| (at.wrapping_mul(131) >> 5) as u8).collect();
    std::fs::write(&source, &image).expect("space");
    peer_succeeds("nbdcopy", &[source.to_str().expect("a path"), &server.uri()]);
    assert!(server.disk.peek(0, SIZE as usize) == image);
    peer_succeeds("nbdcopy", &[&server.uri(), target.to_str().expect("a path")]);
    assert!(std::fs::read(&target).expect("a copy") == image);
}

#[test]
fn qemu_speaks_tls_with_us() {
    let server = TlsServer::start(required(true), "client");
    let credentials = server.credentials.path().display();
    // QEMU 10 wants certificates that encrypt keys, which elliptic curves do not.
    let object = format!("tls-creds-x509,id=tls,endpoint=client,sanity-check=off,dir={credentials}");
    let drive = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls", server.port);
    let commands = ["-c", "write -P 9 0 4M", "-c", "read -P 9 0 4M", "-c", "flush"];
    let arguments = [&["--object", &object, "--image-opts", &drive][..], &commands].concat();
    let output = peer_succeeds("qemu-io", &arguments);
    assert!(!output.contains("failed"), "{output}");
}

#[test]
fn where_tls_is_required_a_plain_client_learns_nothing() {
    let server = TlsServer::start(required(false), "client");
    let refused = server.nbdinfo(&server.plain_uri());
    assert!(!refused.status.success());
    assert!(!String::from_utf8_lossy(&refused.stdout).contains("33554432"));
    assert!(server.nbdinfo(&server.uri()).status.success());
}

#[test]
fn where_tls_is_allowed_both_kinds_of_clients_are_served() {
    let config = files(false).config().expect("certificates of this test");
    let server = TlsServer::start(TlsPolicy::Allowed(config), "client");
    let encrypted = server.nbdinfo(&server.uri());
    assert!(String::from_utf8_lossy(&encrypted.stdout).contains("newstyle-fixed with TLS"), "{encrypted:?}");
    let plain = server.nbdinfo(&server.plain_uri());
    assert!(String::from_utf8_lossy(&plain.stdout).contains("newstyle-fixed without TLS"), "{plain:?}");
}

#[test]
fn a_client_without_the_right_certificate_is_turned_away() {
    let server = TlsServer::start(required(true), "intruder");
    assert!(!server.nbdinfo(&server.uri()).status.success());
    let off = TlsServer::start(TlsPolicy::Off, "client");
    assert!(!off.nbdinfo(&off.uri()).status.success());
    assert!(off.nbdinfo(&off.plain_uri()).status.success());
}

#[test]
fn keys_that_cannot_be_used_are_refused_by_name() {
    let missing = ServerFiles { key: "/nonexistent/key.pem".into(), ..files(false) };
    let error = missing.config().expect_err("there is no such file").to_string();
    assert!(error.starts_with("/nonexistent/key.pem: "), "{error}");
    let not_a_key = ServerFiles { key: certificates().join("server-cert.pem"), ..files(false) };
    let error = not_a_key.config().expect_err("this is no key").to_string();
    assert!(error.contains("server-cert.pem: "), "{error}");
    let other_key = ServerFiles { key: certificates().join("client-key.pem"), ..files(false) };
    assert!(other_key.config().is_err());
}
