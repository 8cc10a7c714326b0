//! radosgw: the S3-compatible store of a Ceph cluster. It takes no request that its user did not sign.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use crate::ports::free_port;
use crate::{Ceph, Run, moto, ready};

/// How long it may take to make its pools and to answer.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// Its only user: the key's name, and the secret.
pub const USER: (&str, &str) = ("somebody", "hush-hush");

/// The store, at two ports of its own.
#[derive(Debug)]
pub struct Radosgw {
    child: Child,
    words: Vec<String>,
    port: u16,
    tls_port: u16,
}

impl Radosgw {
    /// A store without a bucket; shows `server-cert.pem` in `certificates`, with `server-key.pem`.
    pub fn start(ceph: &Ceph, certificates: &Path) -> Self {
        let (port, tls_port, here) = (free_port(), free_port(), certificates.display());
        ceph.know("client.rgw", &["mon", "allow rw", "osd", "allow rwx"]);
        let (id, secret) = USER;
        let keys = [format!("--access-key={id}"), format!("--secret-key={secret}")];
        let user = ["user", "create", "--uid=tests", "--display-name=tests", &keys[0], &keys[1]];
        ceph.tool("radosgw-admin", user);
        let doors = format!(
            "--rgw-frontends=beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{tls_port} \
             ssl_certificate={here}/server-cert.pem ssl_private_key={here}/server-key.pem"
        );
        let words = ["-n", "client.rgw", "-f", &doors].map(str::to_owned).to_vec();
        let child = started(ceph, &words, port);
        Self { child, words, port, tls_port }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its URL with TLS, for a certificate of `localhost`.
    pub fn tls_endpoint(&self) -> String {
        format!("https://localhost:{}", self.tls_port)
    }

    /// Makes a bucket, as a client that is not ours.
    pub fn make_bucket(&self, name: &str) {
        let (id, secret) = USER;
        let script = format!(
            "import boto3; boto3.client('s3', endpoint_url='{}', aws_access_key_id='{id}', \
             aws_secret_access_key='{secret}', region_name='us-east-1').create_bucket(Bucket='{name}')",
            self.endpoint()
        );
        Run::new("/usr/bin/python3").args(["-c", &script]).env("PYTHONPATH", moto::packages()).ok();
    }

    /// Ends it as SIGKILL does.
    pub fn kill(&mut self) {
        // Fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, at the same ports.
    pub fn restart(&mut self, ceph: &Ceph) {
        self.kill();
        self.child = started(ceph, &self.words, self.port);
    }
}

impl Drop for Radosgw {
    fn drop(&mut self) {
        self.kill();
    }
}

fn started(ceph: &Ceph, words: &[String], port: u16) -> Child {
    let mut child = ceph.spawn("radosgw", words);
    ready::until("radosgw", &mut child, STARTS_WITHIN, || ready::http(port));
    child
}
