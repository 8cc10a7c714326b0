//! nginx with the files of a directory, at two ports of its own: without and with TLS.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::ports::free_port;
use crate::ready;

/// How long it may take to answer.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// A server of files. Under `/locked/` they are for `user` with the password `hush`, `/moved` leads to `/disk`, under `/packed/` they
/// are compressed where a client takes that, and under `/whole/` there are no ranges. A connection takes seven requests.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    scratch: tempfile::TempDir,
    port: u16,
    tls_port: u16,
}

impl Nginx {
    /// Serves `files`; shows `server-cert.pem` in `certificates`, with `server-key.pem`.
    pub fn start(files: &Path, certificates: &Path) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let (port, tls_port) = (free_port(), free_port());
        let write = |name: &str, text: &str| std::fs::write(scratch.path().join(name), text).expect("a file");
        write("users", "user:{PLAIN}hush\n");
        write("conf", &configuration(scratch.path(), files, certificates, (port, tls_port)));
        let child = spawn(scratch.path(), port);
        Self { child, scratch, port, tls_port }
    }

    /// Ends it as SIGKILL does.
    pub fn kill(&mut self) {
        // Fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, at the same ports.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.scratch.path(), self.port);
    }

    /// The URL of a path that begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The same with TLS, for a certificate of `localhost`.
    pub fn tls_url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.tls_port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program() -> PathBuf {
    // Debian's place, which is not in the path of every user.
    PathBuf::from("/usr/sbin/nginx")
}

fn spawn(scratch: &Path, port: u16) -> Child {
    let mut command = Command::new(program());
    command.arg("-p").arg(scratch).arg("-c").arg(scratch.join("conf")).arg("-e").arg(scratch.join("log"));
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("cannot run nginx (needed to test with): {error}"));
    let what = format!("nginx (its log is {})", scratch.join("log").display());
    ready::until(&what, &mut child, STARTS_WITHIN, || ready::http(port));
    child
}

/// One process, so that killing it ends it; of root where it was started so, to read directories that are only root's.
fn configuration(scratch: &Path, files: &Path, certificates: &Path, ports: (u16, u16)) -> String {
    let ((port, tls_port), here) = (ports, scratch.display());
    let (files, certificates) = (files.display(), certificates.display());
    format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/log;\n\
         events {{ }}\n\
         http {{\n\
           access_log off; keepalive_requests 7;\n\
           client_body_temp_path {here}/1; proxy_temp_path {here}/2; fastcgi_temp_path {here}/3;\n\
           uwsgi_temp_path {here}/4; scgi_temp_path {here}/5;\n\
           server {{\n\
             listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl; root {files};\n\
             ssl_certificate {certificates}/server-cert.pem; ssl_certificate_key {certificates}/server-key.pem;\n\
             location /locked/ {{ alias {files}/; auth_basic a; auth_basic_user_file {here}/users; }}\n\
             location /moved {{ return 302 /disk; }}\n\
             location /packed/ {{ alias {files}/; gzip on; gzip_types *; gzip_min_length 1; }}\n\
             location /whole/ {{ alias {files}/; max_ranges 0; }}\n\
           }}\n\
         }}\n"
    )
}
