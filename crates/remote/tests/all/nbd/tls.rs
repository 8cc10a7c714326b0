//! Encrypted connections to servers that others wrote, and to those that would rather not.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use net::tls::{ClientFiles, ClientTls};
use remote::nbd::{NbdStorage, Options, Server};
use storage::Storage;

use crate::nbd::support::{Line, Place, open, options, read, run, write};

const SIZE: u64 = 8 << 20;

fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../door-nbd/tests/all/tls")
}

/// qemu-nbd with TLS at a port of its own; clients must have a certificate.
struct QemuNbd {
    child: Child,
    port: u16,
    place: Place,
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl QemuNbd {
    fn start() -> Self {
        let place = Place::new();
        for (from, to) in [
            ("ca.pem", "ca-cert.pem"),
            ("server-cert.pem", "server-cert.pem"),
            ("server-key.pem", "server-key.pem"),
        ] {
            std::fs::copy(certificates().join(from), place.path(to)).unwrap();
        }
        std::fs::File::create(place.path("disk")).unwrap().set_len(SIZE).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Self::spawn(&place, port);
        Self { child, port, place }
    }

    fn spawn(place: &Place, port: u16) -> Child {
        let directory = place.path("").display().to_string();
        // Certificates of elliptic curves encrypt no keys, which its check wants of every server.
        let object =
            format!("tls-creds-x509,id=t,endpoint=server,verify-peer=on,sanity-check=off,dir={directory}");
        let mut command = Command::new("qemu-nbd");
        command.args(["-t", "-e", "8", "-f", "raw", "-b", "127.0.0.1", "-p", &port.to_string()]);
        command.args(["--object", &object, "--tls-creds", "t"]).arg(place.path("disk"));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let child =
            child.unwrap_or_else(|error| panic!("cannot run qemu-nbd (needed to test with): {error}"));
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "qemu-nbd does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = Self::spawn(&self.place, self.port);
    }

    fn options(&self, host: &str, tls: Option<ClientTls>) -> Options {
        let server = Server::Tcp { host: host.to_owned(), port: self.port };
        Options { server, tls, open_timeout: Duration::ZERO, ..options(Path::new("")) }
    }
}

/// Believes what `authority` signed, shows the certificate of `who`, and expects a server called `name`.
fn client(authority: Option<&str>, who: Option<&str>, name: &str) -> ClientTls {
    let at = |file: &str| certificates().join(file);
    let files = ClientFiles {
        authority: authority.map(at),
        identity: who.map(|who| (at(&format!("{who}-cert.pem")), at(&format!("{who}-key.pem")))),
        terms: net::tls::Terms::default(),
    };
    ClientTls::new(&files.read().unwrap(), name).unwrap()
}

fn refused(options: Options) -> String {
    run(async { NbdStorage::open(options).await.unwrap_err().to_string() })
}

#[test]
fn a_disk_is_read_and_written_through_tls() {
    let server = QemuNbd::start();
    let tls = client(Some("ca.pem"), Some("client"), "localhost");
    let options = server.options("localhost", Some(tls));
    run(async {
        let storage = open(options).await;
        let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 7) as u8 | 1).collect();
        write(&storage, 4096, &data).await.unwrap();
        let (one, other) = futures_util::future::join(
            write(&storage, 4 << 20, &[5; 65_536]),
            read(&storage, 4096, data.len()),
        )
        .await;
        one.unwrap();
        assert!(other.unwrap() == data);
        storage.flush().await.unwrap();
        assert_eq!(read(&storage, 4 << 20, 65_536).await.unwrap(), [5; 65_536]);
    });
    let disk = std::fs::read(server.place.path("disk")).unwrap();
    assert_eq!(disk[4 << 20..][..65_536], [5; 65_536]);
}

/// A machine on the way that shows a certificate of its own, or a good one of another server, got the disk.
#[test]
fn a_server_with_another_name_or_authority_is_an_error_and_so_is_a_client_without_a_certificate() {
    let server = QemuNbd::start();
    let opened = |tls: ClientTls| refused(server.options("localhost", Some(tls)));
    let said = opened(client(Some("ca.pem"), Some("client"), "elsewhere.example"));
    assert!(said.contains("TLS: ") && said.contains("certificate not valid for name"), "{said}");
    let said = opened(client(Some("stranger.pem"), Some("client"), "localhost"));
    assert!(said.contains("TLS: ") && said.contains("UnknownIssuer"), "{said}");
    let said = opened(client(Some("ca.pem"), None, "localhost"));
    assert!(!said.is_empty(), "a server that asks for certificates had a client without");
    // No certificate is checked but the key: `verify-peer=off`.
    let tls = client(None, Some("client"), "elsewhere.example");
    run(async { assert_eq!(open(server.options("localhost", Some(tls))).await.length(), SIZE) });
}

#[test]
fn neither_side_goes_on_without_tls() {
    let server = QemuNbd::start();
    let said = refused(server.options("localhost", None));
    assert!(said.contains("TLS") || said.contains("StartTls"), "{said}");
    // A server that has none, and would serve the disk in the clear.
    let plain = Place::new();
    plain.serve(|_, stream| drop(Line::shake_hands(stream, SIZE, crate::nbd::support::FLAGS)));
    let tls = Some(client(Some("ca.pem"), None, "localhost"));
    let said = refused(Options { tls: tls.clone(), open_timeout: Duration::ZERO, ..plain.options() });
    assert!(said.contains("StartTls") || said.contains("TLS"), "{said}");
    // One that agrees to TLS and sends in the clear.
    let liar = Place::new();
    liar.serve(|_, stream| agree_and_go_on(stream));
    let said = refused(Options { tls, open_timeout: Duration::ZERO, ..liar.options() });
    assert!(said.contains("in the clear"), "{said}");
}

/// Agrees to TLS, with more behind it in the same packet.
fn agree_and_go_on(mut stream: UnixStream) {
    use std::io::{Read, Write};
    let mut wanted = [0; 20];
    let mut said = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    stream.write_all(&said).unwrap();
    stream.read_exact(&mut wanted).unwrap();
    said = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    for word in [5_u32, 1, 0] {
        said.extend(word.to_be_bytes());
    }
    said.extend(b"something else");
    let _ = stream.write_all(&said);
    // The client ends it.
    let _ = stream.read(&mut wanted);
}

#[test]
fn a_lost_connection_is_made_again_through_tls() {
    let mut server = QemuNbd::start();
    let tls = client(Some("ca.pem"), Some("client"), "127.0.0.1");
    let options =
        Options { reconnect_delay: Duration::from_secs(30), ..server.options("127.0.0.1", Some(tls)) };
    run(async {
        let storage = open(options).await;
        write(&storage, 0, &[3; 4096]).await.unwrap();
        server.restart();
        assert_eq!(read(&storage, 0, 4096).await.unwrap(), [3; 4096]);
        storage.flush().await.unwrap();
    });
}
