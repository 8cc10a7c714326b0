//! What the log says of refused clients, and of what fails again and again: a line at once, then one a second.
//!
//! Clients refused for want of TLS were not seen at the default level, and a disk that failed every request wrote a line
//! for each of 50,000 a second.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, PermissionsExt};

use black_box::client::Failed;
use black_box::server::Start;
use black_box::{Run, Scratch, Server};

use super::create;
use super::tls::{certificates, port, start};

fn lines(server: &Server, text: &str) -> usize {
    server.stderr().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn a_client_without_tls_is_reported_of_with_its_address_and_the_reason() {
    let scratch = Scratch::new();
    certificates(scratch.path());
    let path = create(&scratch, "disk.qcow2", "4M");
    let (mut server, uri) = start(&scratch, &path, &[]);
    let mut plain = TcpStream::connect(format!("127.0.0.1:{}", port(&uri))).expect("a server that listens");
    let own = plain.local_addr().expect("an address").to_string();
    // Flags, and NBD_OPT_LIST without TLS.
    plain.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0").expect("a server that reads");
    plain.shutdown(std::net::Shutdown::Write).expect("a socket");
    plain.read_to_end(&mut Vec::new()).expect("an answer and the end");
    let reported = server.wait_until(|server| (lines(server, "is refused") > 0).then(|| server.stderr()));
    let reported = reported.expect("it serves on");
    assert!(
        reported.contains(&own) && reported.contains("it does not use TLS, which is required here"),
        "{reported}"
    );
    server.stop();
}

#[test]
fn a_client_whose_certificate_is_not_accepted_is_reported_of() {
    let (scratch, others) = (Scratch::new(), Scratch::new());
    certificates(scratch.path());
    certificates(others.path());
    let path = create(&scratch, "disk.qcow2", "4M");
    let ca = scratch.name("ca-cert.pem");
    let (mut server, uri) = start(&scratch, &path, &["--tls-client-ca", &ca]);
    // It trusts the server's authority, and comes with a certificate of another one.
    std::fs::copy(&ca, others.file("ca-cert.pem")).expect("a copy");
    let with = format!("nbds://localhost:{}/disk?tls-certificates={}", port(&uri), others.path().display());
    for _ in 0..20 {
        Run::new("nbdinfo").arg(&with).fails();
    }
    let count = |server: &Server| (lines(server, "is refused") > 0).then(|| lines(server, "is refused"));
    assert!(server.wait_until(count).is_some_and(|count| count < 20), "{}", server.stderr());
    let reported = server.stderr();
    assert!(
        reported.contains("TLS: invalid peer certificate") && reported.contains("127.0.0.1:"),
        "{reported}"
    );
    server.stop();
}

#[test]
fn a_disk_that_fails_every_request_does_not_fill_the_log_and_no_failure_is_lost() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    // The first entry of the L1 table leads beyond the end of the file.
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("the image");
    let mut l1_offset = [0; 8];
    file.read_exact_at(&mut l1_offset, 40).expect("a header");
    let wrong = (0x7000_0000_0000_u64 | 1 << 63).to_be_bytes();
    file.write_all_at(&wrong, u64::from_be_bytes(l1_offset)).expect("an entry");
    drop(file);
    let server = Server::start(["--read-only", &path]);
    let mut client = server.client("");
    let failures = 500;
    for at in 0..failures {
        assert!(matches!(client.read(at * 4096, 4096), Err(Failed::Refused(_))));
    }
    client.disconnect();
    let stderr = server.stderr_at_end();
    let reported: Vec<&str> = stderr.lines().filter(|line| line.contains("disk.qcow2")).collect();
    assert!(reported.len() < 100, "{} lines", reported.len());
    let times = |line: &str| line.split_once(" times since")?.0.rsplit_once('(')?.1.parse::<u64>().ok();
    let counted: u64 = reported.iter().map(|line| times(line).unwrap_or(1)).sum();
    assert_eq!(counted, failures, "{stderr}");
}

#[test]
fn the_sockets_of_a_server_are_its_owners_alone() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "4M");
    let qmp = scratch.name("qmp");
    for (more, mode) in
        [(&[][..], 0o600), (&["--socket-mode", "0660"], 0o660), (&["--socket-mode=600"], 0o600)]
    {
        let start = Start::under("sh", ["-c", "umask 0; exec \"$@\"", "sh"], ["--qmp", &qmp, &path]);
        let server = start.args(more).listen().expect("a server that listens");
        let rights =
            |path: &std::path::Path| std::fs::metadata(path).expect("a name").permissions().mode() & 0o777;
        assert_eq!((rights(server.socket()), rights(qmp.as_ref())), (mode, 0o600));
        server.stop();
    }
}
