//! Slow, silent, lying and greedy clients cost bounded memory, and never another client.

use crate::support;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use door_nbd::ServerOptions;
use door_nbd::limits::HANDSHAKES_MAX;
use export::{Loops, Shutdown};
use support::TestServer;
use support::client::{Client, connect_raw, read_to_end};
use support::memory_export::{MemoryExport, PAGE};
use wire::nbd::client::{ExportRequest, HandshakeError};
use wire::nbd::{CommandFlags, Dialect, OptionReplyKind, command_number as n};

const MIB: u64 = 1 << 20;

/// The server lives and serves.
fn assert_serves(server: &TestServer) {
    let mut client = Client::connect(&server.socket(), Dialect::Structured, &[]);
    for page in 0..20 {
        client.send_write(page, page * PAGE, &[page as u8; 512]);
        assert_eq!(client.reply(0).result, Ok(()));
        client.send_read(page, page * PAGE, 512);
        assert_eq!(client.reply(512).data, [page as u8; 512]);
    }
}

#[test]
fn a_client_that_never_reads_is_not_read_from() {
    let server = TestServer::start(4 * MIB);
    let mut silent = connect_silent(&server);
    let request = Client::header(n::READ, CommandFlags::NONE, 1, (0, MIB)).encode(Dialect::Simple);
    silent.set_nonblocking(true).expect("a flag");
    let mut requests = 0_u64;
    while requests < 100_000 && silent.write_all(&request).is_ok() {
        requests += 1;
    }
    assert_serves(&server);
    let counted = server.entry.counters().snapshot();
    assert!(requests * MIB > 256 * MIB, "the client asked for a lot: {requests}");
    assert!(counted.read.bytes < 64 * MIB, "{counted:?} of {requests} requests");
}

/// Connected, an export chosen, and nothing more.
fn connect_silent(server: &TestServer) -> UnixStream {
    Client::connect(&server.socket(), Dialect::Simple, &[]).socket
}

#[test]
fn requests_in_flight_are_bounded() {
    let server = TestServer::start(4 * MIB);
    server.disk.hold(0);
    let mut greedy = Client::connect(&server.socket(), Dialect::Simple, &[]);
    // In one piece: the kernel holds few small ones.
    let requests: Vec<u8> = (0..2000)
        .map(|cookie| Client::header(n::READ, CommandFlags::NONE, cookie, (0, 512)))
        .flat_map(|request| request.encode(Dialect::Simple).to_vec())
        .collect();
    greedy.socket.write_all(&requests).expect("a server that reads");
    assert_serves_other_pages(&server);
    let most = u64::from(export::limits::REQUESTS_IN_FLIGHT_MAX);
    // The pages of the other client are not held: all that is in flight is the greedy one's.
    assert!(server.entry.counters().snapshot().in_flight <= most);
    server.disk.release();
    let mut answered: Vec<u64> = (0..2000).map(|_| greedy.reply(512).cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..2000).collect::<Vec<_>>());
    assert_eq!(server.entry.counters().snapshot().in_flight, 0);
}

fn assert_serves_other_pages(server: &TestServer) {
    let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
    client.send_read(1, 9 * PAGE, 512);
    assert_eq!(client.reply(512).result, Ok(()));
}

#[test]
fn clients_that_choose_no_export_keep_nobody_out() {
    let server = TestServer::start(4 * MIB);
    let too_many = 10;
    let mut silent: Vec<_> = (0..HANDSHAKES_MAX + too_many).map(|_| connect_raw(&server.socket())).collect();
    assert_serves(&server);
    let is_closed = |stream: &mut UnixStream| {
        stream.set_nonblocking(true).expect("a flag");
        loop {
            match stream.read(&mut [0; 64]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    };
    // As many made room as there were too many, with the one that was served; a loop may not have got to all yet.
    let mut closed = || silent.iter_mut().map(is_closed).filter(|is_closed| *is_closed).count();
    while closed() < too_many {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(closed() <= too_many + 1);
    assert!(!is_closed(silent.last_mut().expect("many")), "the newest stays");
}

#[test]
fn a_write_that_is_announced_and_never_sent_holds_up_nobody() {
    let server = TestServer::start(64 * MIB);
    let liars: Vec<_> = (0..12)
        .map(|cookie| {
            let mut liar = Client::connect(&server.socket(), Dialect::Simple, &[]);
            liar.send(Client::header(n::WRITE, CommandFlags::NONE, cookie, (0, 32 * MIB)), &[1; 100]);
            liar
        })
        .collect();
    assert_serves(&server);
    drop(liars);
    assert_serves(&server);
}

#[test]
fn a_client_that_chooses_nothing_is_sent_away() {
    let timeout = Duration::from_millis(50);
    let options = ServerOptions { handshake_timeout: timeout, ..ServerOptions::default() };
    let server = TestServer::with(MemoryExport::new(MIB), options);
    assert_eq!(read_to_end(connect_raw(&server.socket())).len(), 18);
    let mut talker = connect_raw(&server.socket());
    talker.write_all(b"\0\0\0\x03IHAVE").expect("a server that reads");
    assert_eq!(read_to_end(talker).len(), 18);
    assert_serves(&server);
}

#[test]
fn connections_beyond_the_limit_are_refused_with_a_reason_until_one_leaves() {
    let options = ServerOptions { connections_per_export: 2, ..ServerOptions::default() };
    let server = TestServer::with(MemoryExport::new(MIB), options);
    let first = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let _second = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let wanted =
        ExportRequest { export: "disk".into(), tls: false, dialect: Dialect::Simple, contexts: vec![] };
    let refused = Client::negotiate(&server.socket(), wanted.clone()).err();
    assert!(matches!(
        refused,
        Some(HandshakeError::Refused { kind: OptionReplyKind::Policy, ref message, .. }) if message.contains("at most 2")
    ));
    let other = ExportRequest { export: "other".into(), ..wanted.clone() };
    assert!(Client::negotiate(&server.socket(), other).is_ok());
    let mut leaving = first;
    leaving.send(Client::header(n::DISCONNECT, CommandFlags::NONE, 0, (0, 0)), &[]);
    assert_eq!(read_to_end(leaving.socket), b"");
    while Client::negotiate(&server.socket(), wanted.clone()).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn malformed_bytes_close_the_connection_and_nothing_else() {
    let server = TestServer::start(MIB);
    let openings: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0; 64],
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04nope",
        b"\0\0\0\x03IHAVEOP?\0\0\0\x07\0\0\0\0",
    ];
    for opening in openings {
        let mut stream = connect_raw(&server.socket());
        // The server may close before it has read all.
        let _ = stream.write_all(opening);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(read_to_end(stream).len() < 200, "{opening:?}");
    }
    for dialect in [Dialect::Simple, Dialect::Structured, Dialect::Extended] {
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        client.socket.write_all(&[0x42; 32]).expect("a server that reads");
        assert_eq!(read_to_end(client.socket), b"");
    }
    let mut endless = Client::connect(&server.socket(), Dialect::Extended, &[]);
    endless.send(Client::header(n::WRITE, CommandFlags::PAYLOAD_LEN, 1, (0, u64::MAX)), &[]);
    assert_eq!(read_to_end(endless.socket), b"");
    assert_serves(&server);
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let server = TestServer::start(4 * MIB);
    server.disk.hold(0);
    for round in 0..10 {
        let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
        client.send_read(round, 0, 512);
        client.send_write(round, 0, &[1; 600]);
        client.send(Client::header(n::WRITE, CommandFlags::NONE, round, (PAGE, MIB)), &[2; 1000]);
    }
    server.disk.release();
    while server.entry.connections() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(server.entry.counters().snapshot().in_flight, 0);
    // Writes that had come in full were done; the others were not begun.
    assert_eq!((server.disk.peek(0, 1), server.disk.peek(PAGE, 1)), (vec![1], vec![0]));
    assert_serves(&server);
}

#[test]
fn a_shutdown_answers_what_is_in_flight_and_then_closes() {
    let mut server = TestServer::start(4 * MIB);
    server.disk.hold(0);
    let mut client = Client::connect(&server.socket(), Dialect::Structured, &[]);
    let idle = connect_silent(&server);
    let undecided = connect_raw(&server.socket());
    client.send_write(1, 0, b"last words");
    while server.entry.counters().snapshot().in_flight == 0 {
        std::thread::yield_now();
    }
    server.shutdown.trigger();
    assert_eq!(read_to_end(idle), b"");
    assert!(read_to_end(undecided).len() <= 18);
    server.disk.release();
    let reply = client.reply(0);
    assert_eq!((reply.cookie, reply.result), (1, Ok(())));
    assert_eq!(client.socket.read(&mut [0]).expect("an orderly end"), 0);
    server.ended();
    assert_eq!(server.disk.peek(0, 10), b"last words");
}

#[test]
fn a_shutdown_does_not_wait_for_ever_for_a_client_that_never_reads() {
    let loops = Loops::with_grace(2, Shutdown::new(), Duration::from_millis(50));
    let disk = MemoryExport::new(4 * MIB);
    let mut server = TestServer::on(loops, reactor::Backend::Ring, disk, ServerOptions::default());
    let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
    for cookie in 0..64 {
        client.send_read(cookie, 0, MIB);
    }
    while server.entry.counters().snapshot().read.requests == 0 {
        std::thread::yield_now();
    }
    server.shutdown.trigger();
    server.ended();
    drop(client);
}
