//! Who went away costs nothing, who reads nothing is sent away, and no number of clients holds more than the bounds.
//!
//! Sixteen connections asked for 16 times 32 MiB each and closed: the server read all 8 GiB for nothing, and a client of
//! another disk got one answer a second for as long. Where they stayed and read nothing they held 528 MiB.

use std::net::Shutdown;
use std::time::Duration;

use crate::support::TestServer;
use crate::support::client::{Client, read_to_end};
use crate::support::memory_export::{MemoryExport, PAGE};
use door_nbd::ServerOptions;
use export::limits::{FIRST_REQUEST_BYTES_MAX, PROCESS_BYTES_MAX};
use wire::nbd::{CommandFlags, Dialect, command_number as n};

const MIB: u64 = 1 << 20;
const LARGE: u64 = 32 * MIB;
const CONNECTIONS: u64 = 16;
const REQUESTS: u64 = 16;

fn wait_until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// Sixteen connections that have asked for 32 MiB sixteen times each. Nothing is read of the disk before its first
/// page is released.
fn greedy(server: &TestServer, dialect: Dialect) -> Vec<Client> {
    server.disk.hold(0);
    let ask = |_| {
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        let requests: Vec<u8> = (0..REQUESTS)
            .map(|cookie| Client::header(n::READ, CommandFlags::NONE, cookie, (0, LARGE)))
            .flat_map(|request| request.encode(dialect).to_vec())
            .collect();
        std::io::Write::write_all(&mut client.socket, &requests).expect("a server that reads");
        client
    };
    let clients = (0..CONNECTIONS).map(ask).collect();
    wait_until(|| server.entry.counters().snapshot().in_flight > 0);
    clients
}

#[test]
fn what_a_client_asked_for_that_is_gone_is_not_read() {
    for dialect in [Dialect::Simple, Dialect::Extended] {
        let server = TestServer::start(LARGE);
        let clients = greedy(&server, dialect);
        let begun = server.entry.counters().snapshot().in_flight;
        drop(clients);
        let dropped = || server.entry.counters().snapshot().dropped;
        // Those in line are dropped while the disk still holds the ones that were begun.
        wait_until(|| dropped() >= CONNECTIONS * REQUESTS - CONNECTIONS);
        server.disk.release();
        wait_until(|| server.entry.connections() == 0);
        assert!(begun > 0 && begun <= CONNECTIONS, "{begun}");
        assert_eq!((dropped(), server.disk.read_bytes()), (CONNECTIONS * REQUESTS, 0));
        let counted = server.entry.counters().snapshot();
        assert_eq!((counted.in_flight, counted.read.requests), (0, 0));
        assert_eq!(server.server.client_costs().held_bytes, 0);
    }
}

#[test]
fn a_read_at_work_ends_at_its_next_step_when_its_client_goes() {
    let server = TestServer::start(LARGE);
    // The first step is free, the second one is held.
    server.disk.hold(2 * MIB / PAGE);
    let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
    // The second one waits for memory: that it is dropped tells that the server has seen the end.
    (0..2).for_each(|cookie| client.send_read(cookie, 0, LARGE));
    wait_until(|| server.disk.read_bytes() == 2 * MIB);
    drop(client);
    wait_until(|| server.entry.counters().snapshot().dropped == 1);
    server.disk.release();
    wait_until(|| server.entry.connections() == 0);
    assert_eq!(server.disk.read_bytes(), 2 * MIB);
    assert_eq!(server.entry.counters().snapshot().dropped, 2);
}

#[test]
fn what_was_asked_before_a_goodbye_is_answered_in_full() {
    for dialect in [Dialect::Simple, Dialect::Structured, Dialect::Extended] {
        let server = TestServer::start(4 * MIB);
        server.disk.hold(0);
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        for cookie in 0..8 {
            client.send_read(cookie, 0, 2 * MIB);
        }
        client.send(Client::header(n::DISCONNECT, CommandFlags::NONE, 9, (0, 0)), &[]);
        client.socket.shutdown(Shutdown::Write).expect("a socket");
        server.disk.release();
        let mut answered: Vec<u64> = (0..8).map(|_| client.reply(2 * MIB as usize).cookie).collect();
        answered.sort_unstable();
        assert_eq!(answered, (0..8).collect::<Vec<_>>());
    }
}

#[test]
fn a_write_that_was_taken_in_whole_is_carried_out_though_its_client_is_gone() {
    let server = TestServer::start(4 * MIB);
    server.disk.hold(0);
    let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
    client.send_write(1, 0, b"last words");
    wait_until(|| server.entry.counters().snapshot().in_flight == 1);
    drop(client);
    server.disk.release();
    wait_until(|| server.entry.connections() == 0);
    assert_eq!(server.disk.peek(0, 10), b"last words");
}

/// The write of a client that had gone was carried out behind what its next connection wrote in the same place, and was answered.
#[test]
fn what_a_client_left_behind_comes_before_what_others_ask_for_in_the_same_place() {
    for dialect in [Dialect::Simple, Dialect::Extended] {
        let server = TestServer::start(4 * MIB);
        server.disk.hold(1);
        let mut gone = Client::connect(&server.socket(), dialect, &[]);
        gone.send_write(1, 0, &[1; 2 * PAGE as usize]);
        wait_until(|| server.entry.counters().snapshot().in_flight == 1);
        drop(gone);
        wait_until(|| server.entry.has_left_behind());

        let mut elsewhere = Client::connect(&server.socket(), dialect, &[]);
        elsewhere.send_write(1, 5 * PAGE, b"elsewhere");
        assert_eq!(elsewhere.reply(0).result, Ok(()));
        elsewhere.send_read(2, 5 * PAGE, 9);
        assert_eq!(elsewhere.reply(9).data, b"elsewhere");

        let [mut writer, mut reader, mut left_too] =
            [(); 3].map(|()| Client::connect(&server.socket(), dialect, &[]));
        writer.send_write(1, PAGE - 3, b"new");
        reader.send_read(1, PAGE / 2, 4);
        left_too.send_write(1, 8, b"newer");
        wait_until(|| server.entry.counters().snapshot().in_flight == 4);
        assert_eq!(server.disk.peek(PAGE - 3, 3), [0; 3], "it waits");
        // Its write waits for another that was left behind, not for itself.
        drop(left_too);
        server.disk.release();
        assert_eq!(writer.reply(0).result, Ok(()));
        assert_eq!(reader.reply(4).data, [1; 4]);
        wait_until(|| server.entry.connections() == 3);
        assert!(!server.entry.has_left_behind());
        assert_eq!(server.disk.peek(PAGE - 4, 5), [1, b'n', b'e', b'w', 1]);
        assert_eq!(server.disk.peek(8, 5), b"newer");
    }
}

#[test]
fn clients_that_read_nothing_hold_no_more_than_the_bound_and_keep_nobody_out() {
    let options = ServerOptions { connections_per_export: 32, ..ServerOptions::default() };
    let server = TestServer::with(MemoryExport::new(LARGE), options);
    let silent = greedy(&server, Dialect::Simple);
    server.disk.release();
    wait_until(|| server.disk.read_bytes() >= 2 * LARGE);
    let mut other = Client::connect(&server.socket(), Dialect::Simple, &[]);
    for page in 0..100 {
        other.send_read(page, page * PAGE, PAGE);
        assert_eq!(other.reply(PAGE as usize).cookie, page);
    }
    let costs = server.server.client_costs();
    assert!(costs.held_bytes_most >= LARGE, "{costs:?}");
    assert!(costs.held_bytes_most <= PROCESS_BYTES_MAX + CONNECTIONS * FIRST_REQUEST_BYTES_MAX, "{costs:?}");
    drop(silent);
    wait_until(|| server.entry.connections() == 1);
    assert_eq!(server.server.client_costs().held_bytes, 0);
}

#[test]
fn a_client_that_reads_nothing_for_too_long_is_sent_away_and_what_it_held_is_free() {
    let stall_timeout = Duration::from_millis(50);
    let server = TestServer::with(
        MemoryExport::new(LARGE),
        ServerOptions { stall_timeout, ..ServerOptions::default() },
    );
    let mut silent = Client::connect(&server.socket(), Dialect::Simple, &[]);
    (0..8).for_each(|cookie| silent.send_read(cookie, 0, LARGE));
    wait_until(|| server.entry.connections() == 0);
    let costs = server.server.client_costs();
    assert_eq!((costs.stalled, costs.held_bytes), (1, 0), "{costs:?}");
    assert!((read_to_end(silent.socket).len() as u64) < LARGE);
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_payload_is_sent_away() {
    let stall_timeout = Duration::from_millis(50);
    let server = TestServer::with(
        MemoryExport::new(LARGE),
        ServerOptions { stall_timeout, ..ServerOptions::default() },
    );
    for payload in [100, 100_000, LARGE as usize - 1] {
        let mut liar = Client::connect(&server.socket(), Dialect::Simple, &[]);
        liar.send(Client::header(n::WRITE, CommandFlags::NONE, 1, (0, LARGE)), &vec![1; payload]);
        assert_eq!(read_to_end(liar.socket), b"");
    }
    wait_until(|| server.entry.connections() == 0);
    let costs = server.server.client_costs();
    assert_eq!((costs.stalled, costs.held_bytes), (3, 0), "{costs:?}");
}

#[test]
fn a_client_that_asks_for_nothing_may_stay_as_long_as_it_likes() {
    let stall_timeout = Duration::from_millis(10);
    let options = ServerOptions { stall_timeout, ..ServerOptions::default() };
    let server = TestServer::with(MemoryExport::new(LARGE), options);
    let mut idle = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let mut silent = Client::connect(&server.socket(), Dialect::Simple, &[]);
    silent.send_read(1, 0, LARGE);
    wait_until(|| server.entry.connections() == 1);
    idle.send_read(1, 0, PAGE);
    assert_eq!(idle.reply(PAGE as usize).result, Ok(()));
}

#[test]
fn connections_beyond_the_bound_of_the_process_are_closed_at_once() {
    let options = ServerOptions { connections_max: 2, ..ServerOptions::default() };
    let server = TestServer::with(MemoryExport::new(MIB), options);
    let first = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let _second = Client::connect(&server.socket(), Dialect::Simple, &[]);
    assert_eq!(read_to_end(crate::support::client::connect_raw(&server.socket())), b"");
    assert_eq!(server.server.client_costs().refused, 1);
    drop(first);
    wait_until(|| server.server.connections() == 1);
    Client::connect(&server.socket(), Dialect::Simple, &[]);
}
