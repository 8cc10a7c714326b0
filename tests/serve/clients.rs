//! Clients that are slow, silent or lie: bounded memory, and never another client's trouble.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use black_box::client::Request;
use black_box::peer::assert_clean;
use black_box::{Client, Random, Scratch, Server, wire};

use super::create;

/// What the process may hold, whatever clients do.
const RSS_BYTES_MAX: u64 = 512 << 20;

/// A connection in transmission, to be written to byte by byte.
fn raw(server: &Server) -> UnixStream {
    let mut stream = UnixStream::connect(server.socket()).expect("connect");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    stream
}

/// Reads until the server closes, at most so many bytes.
fn closed_after(mut stream: UnixStream, bytes_max: u64) -> bool {
    let mut sink = Vec::new();
    let read = Read::by_ref(&mut stream).take(bytes_max).read_to_end(&mut sink);
    match read {
        Ok(bytes) => (bytes as u64) < bytes_max,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn assert_served(server: &Server) {
    let mut client = server.client("");
    client.write(0, &[1; 4096]).expect("write");
    assert_eq!(client.read(0, 4096).expect("read"), [1; 4096]);
    client.disconnect();
    assert!(server.peak_rss_bytes() < RSS_BYTES_MAX, "{} bytes", server.peak_rss_bytes());
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "16M");
    let server = Server::start([&path]);
    let mut random = Random::new(7);
    for bytes in [1, 4, 18, 100, 5000] {
        let mut stream = raw(&server);
        // It may close while we are still talking.
        let _ = stream.write_all(&random.bytes(bytes));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(closed_after(stream, 1 << 20), "{bytes} bytes of garbage");
        assert_served(&server);
    }
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn an_option_of_4_gib_is_refused_without_memory() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "16M");
    let server = Server::start([&path]);
    for option in [1_u32, 3, 6, 7, 8, 10, 99] {
        let mut stream = raw(&server);
        let mut bytes = wire::CLIENT_FLAGS.to_be_bytes().to_vec();
        bytes.extend(wire::OPTION);
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::MAX.to_be_bytes());
        stream.write_all(&bytes).expect("write");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(closed_after(stream, 1 << 20), "option {option}");
    }
    assert_served(&server);
    server.stop();
}

#[test]
fn requests_beyond_the_disk_or_the_limits_get_the_protocols_errors() {
    use black_box::client::Failed::Refused;
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "16M");
    let server = Server::start([&path]);
    let mut client = server.client("");
    let size = client.size();
    assert!(matches!(client.read(size, 1), Err(Refused(wire::EINVAL))));
    assert!(matches!(client.read(size - 1, 2), Err(Refused(wire::EINVAL))));
    assert!(matches!(client.read(u64::MAX, 512), Err(Refused(wire::EINVAL))));
    assert!(matches!(client.read(0, u32::MAX), Err(Refused(_))));
    assert!(matches!(client.write(size, &[1; 512]), Err(Refused(wire::ENOSPC))));
    assert!(matches!(client.write(u64::MAX - 100, &[1; 512]), Err(Refused(_))));
    assert!(matches!(client.write_zeroes(size - 1, 2, 0), Err(Refused(wire::ENOSPC))));
    assert!(matches!(client.trim(size, 1), Err(Refused(_))));
    assert_eq!(client.read(size - 1, 1).expect("the last byte"), [0]);
    assert_served(&server);
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn a_client_that_takes_no_replies_costs_bounded_memory_and_no_other_client() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let server = Server::start(["--shared", "8", &path]);
    let mut greedy: Vec<Client> = (0..4).map(|_| server.client("")).collect();
    for client in &mut greedy {
        // 48 reads of 16 MiB, and no client reads. What the server does not take stays in the socket.
        for _ in 0..48 {
            client.send(&Request::read(0, 16 << 20)).expect("requests are small");
        }
    }
    for _ in 0..20 {
        assert_served(&server);
    }
    drop(greedy);
    assert_served(&server);
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_write_leaves_a_sound_disk() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "64M");
    let server = Server::start([&path]);
    let mut random = Random::new(3);
    for _ in 0..30 {
        let mut client = server.client("");
        for _ in 0..random.between(1, 20) {
            let offset = random.below(60 << 20);
            let data = random.bytes(usize::try_from(random.clone().between(1, 300_000)).expect("small"));
            client.send(&Request::write(offset, &data)).expect("send");
        }
        drop(client);
    }
    assert_served(&server);
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn a_half_finished_handshake_keeps_nobody_out() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let server = Server::start(["--shared", "2", &path]);
    let waiting: Vec<UnixStream> = (0..40).map(|_| raw(&server)).collect();
    assert_served(&server);
    drop(waiting);
    assert_served(&server);
    server.stop();
}
