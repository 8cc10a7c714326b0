//! nginx: ranges, versions, passwords, TLS, and its death.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use secret::Secret;
use storage::Storage;
use storage_http::{Fixed, HttpStorage, Options};
use tls::{ClientCredentials, ClientFiles};

use crate::support::{SIZE, content, options, read, run};

/// nginx with a file, at two ports of its own: without and with TLS.
struct Nginx {
    child: Child,
    directory: tempfile::TempDir,
    ports: (u16, u16),
}

fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../door-nbd/tests/all/tls")
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Nginx {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = (free_port(), free_port());
        std::fs::write(directory.path().join("disk"), content(0, SIZE as usize)).unwrap();
        std::fs::write(directory.path().join("users"), "user:{PLAIN}hush\n").unwrap();
        std::fs::write(directory.path().join("conf"), configuration(directory.path(), ports)).unwrap();
        let child = Self::spawn(directory.path(), ports.0);
        Self { child, directory, ports }
    }

    fn spawn(directory: &Path, port: u16) -> Child {
        let mut command = Command::new("/usr/sbin/nginx");
        command.arg("-p").arg(directory).arg("-c").arg(directory.join("conf")).arg("-e").arg(directory.join("log"));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run nginx (needed to test with): {error}"));
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || std::fs::read_to_string(directory.join("log"));
            assert!(Instant::now() < until, "nginx does not listen: {:?}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ports.0)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One process, so that killing it ends it.
fn configuration(directory: &Path, (port, tls_port): (u16, u16)) -> String {
    let (here, certificates) = (directory.display(), certificates());
    let certificates = certificates.display();
    format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/log;\n\
         events {{ }}\n\
         http {{\n\
           access_log off; client_body_temp_path {here}/1; proxy_temp_path {here}/2; fastcgi_temp_path {here}/3;\n\
           uwsgi_temp_path {here}/4; scgi_temp_path {here}/5; keepalive_requests 7;\n\
           server {{\n\
             listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl; root {here};\n\
             ssl_certificate {certificates}/server-cert.pem; ssl_certificate_key {certificates}/server-key.pem;\n\
             location /locked/ {{ alias {here}/; auth_basic a; auth_basic_user_file {here}/users; }}\n\
             location /moved {{ return 302 /disk; }}\n\
             location /packed/ {{ alias {here}/; gzip on; gzip_types *; gzip_min_length 1; }}\n\
             location /whole/ {{ alias {here}/; max_ranges 0; }}\n\
           }}\n\
         }}\n"
    )
}

async fn reads_right(storage: &dyn Storage) {
    assert_eq!(storage.length(), SIZE);
    for offset in [0, 1, 65_535, 65_536, 1 << 20, SIZE - 5000] {
        assert_eq!(read(storage, offset, 5000).await.unwrap(), content(offset, 5000), "{offset}");
    }
    assert!(read(storage, 0, SIZE as usize).await.unwrap() == content(0, SIZE as usize));
}

#[test]
fn a_file_of_nginx_reads_as_it_is_also_behind_a_password_and_a_redirect() {
    let nginx = Nginx::start();
    run(async {
        for path in ["/disk", "/moved", "/packed/disk"] {
            reads_right(&HttpStorage::open(options(&nginx.url(path))).await.unwrap()).await;
        }
        let password = Secret::copy_of(b"hush");
        let authorize = Arc::new(Fixed::new(None, Some(("user", &password))));
        let locked = Options { authorize, ..options(&nginx.url("/locked/disk")) };
        reads_right(&HttpStorage::open(locked).await.unwrap()).await;
        for (path, words) in [("/locked/disk", "answers 401"), ("/none", "answers 404"), ("/whole/disk", "no ranges")] {
            let error = HttpStorage::open(options(&nginx.url(path))).await.unwrap_err().to_string();
            assert!(error.contains(words), "{path}: {error}");
        }
    });
}

#[test]
fn a_file_that_nginx_serves_and_somebody_changes_is_an_error() {
    let nginx = Nginx::start();
    run(async {
        let storage = HttpStorage::open(options(&nginx.url("/disk"))).await.unwrap();
        let file = nginx.directory.path().join("disk");
        std::fs::write(&file, vec![0xff; SIZE as usize]).unwrap();
        let later = std::time::SystemTime::now() + Duration::from_secs(2);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        let error = read(&storage, 1 << 20, 5000).await.unwrap_err().to_string();
        assert!(error.contains("was changed while it was open"), "{error}");
    });
}

#[test]
fn nginx_that_is_killed_and_comes_back_costs_a_wait() {
    let mut nginx = Nginx::start();
    run(async {
        let storage = HttpStorage::open(options(&nginx.url("/disk"))).await.unwrap();
        for _ in 0..3 {
            nginx.kill();
            let (directory, port) = (nginx.directory.path().to_owned(), nginx.ports.0);
            let restarted = reactor::blocking(move || {
                std::thread::sleep(Duration::from_millis(300));
                Nginx::spawn(&directory, port)
            });
            let (read, child) = futures_util::join!(read(&storage, 3 << 20, 5000), restarted);
            assert_eq!(read.unwrap(), content(3 << 20, 5000));
            nginx.child = child;
        }
    });
}

#[test]
fn over_tls_a_server_is_read_whose_certificate_is_believed_and_no_other() {
    let nginx = Nginx::start();
    let believes = |authority: Option<&str>| {
        let authority = authority.map(|file| certificates().join(file));
        ClientFiles { authority, identity: None }.read().unwrap()
    };
    let https = |host: &str, tls: ClientCredentials| {
        let url = format!("https://{host}:{}/disk", nginx.ports.1);
        Options { tls: Some(tls), ..options(&url) }
    };
    run(async {
        let storage = HttpStorage::open(https("localhost", believes(Some("ca.pem")))).await.unwrap();
        reads_right(&storage).await;
        reads_right(&HttpStorage::open(https("localhost", believes(None))).await.unwrap()).await;
        let strangers = believes(Some("stranger.pem"));
        let error = HttpStorage::open(https("localhost", strangers)).await.unwrap_err().to_string();
        assert!(error.contains("TLS: ") && error.contains("certificate"), "{error}");
    });
}
