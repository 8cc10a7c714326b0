//! What clients get from a running server, byte for byte.

use crate::support;

use export::Hints;
use support::TestServer;
use support::client::{Client, Reply};
use support::memory_export::{MemoryExport, PAGE};
use wire::nbd::{
    BlockStatusFilter, CommandFlags, Descriptor, Dialect, ErrorCode, ExportFlags, command_number as n,
};

const ALL: [Dialect; 3] = [Dialect::Simple, Dialect::Structured, Dialect::Extended];
const MIB: u64 = 1 << 20;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ seed) as u8).collect()
}

#[test]
fn what_was_written_is_read_back_in_every_dialect_and_size() {
    for dialect in ALL {
        let server = TestServer::start(80 * MIB);
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        let sizes = [1, 511, 4096, 4097, 16 << 10, 40_000, 1 << 20, 3_000_001, 32 << 20];
        for (cookie, size) in sizes.into_iter().enumerate() {
            let (cookie, data) = (cookie as u64, bytes(cookie as u64, size));
            client.send_write(cookie, 12345 + cookie, &data);
            assert_eq!(client.reply(0).result, Ok(()));
            client.send_read(cookie, 12345 + cookie, size as u64);
            let reply = client.reply(size);
            assert_eq!((reply.cookie, reply.result), (cookie, Ok(())));
            assert!(reply.data == data, "{size} bytes in {dialect:?}");
        }
        let counted = server.entry.counters().snapshot();
        let total = sizes.iter().sum::<usize>() as u64;
        assert_eq!((counted.read.bytes, counted.write.bytes), (total, total));
        assert_eq!((counted.read.requests, counted.errors()), (sizes.len() as u64, 0));
    }
}

#[test]
fn a_disk_learns_whether_more_requests_wait() {
    let server = TestServer::start(MIB);
    let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let (alone, more) = (Hints::NONE, Hints::MORE_WAITING);
    client.send_write(1, 0, &[7; 4096]);
    assert_eq!(client.reply(0).result, Ok(()));
    client.send_read(2, 0, 4096);
    assert_eq!(client.reply(4096).result, Ok(()));
    assert_eq!(server.disk.take_hints(), [alone, alone]);
    // The first is tried, and waits; the others come while it is at work.
    server.disk.hold(1);
    client.send_read(3, PAGE, 4096);
    let mut reported = 0;
    while reported < 2 {
        reported += server.disk.take_hints().len();
        std::thread::yield_now();
    }
    client.send_read(4, 0, 4096);
    assert_eq!(client.reply(4096).cookie, 4);
    client.send_write(5, 0, &[8; 4096]);
    assert_eq!(client.reply(0).cookie, 5);
    assert_eq!(server.disk.take_hints(), [more, more]);
    server.disk.release();
    assert_eq!(client.reply(4096).cookie, 3);
    client.send_read(6, 0, 4096);
    assert_eq!(client.reply(4096).cookie, 6);
    assert_eq!(server.disk.take_hints(), [alone]);
}

#[test]
fn a_read_of_nothing_but_a_hole_brings_no_bytes_where_the_dialect_can_say_so() {
    for dialect in ALL {
        let server = TestServer::start(MIB);
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        client.send_write(1, 8192, &[7; 4096]);
        assert_eq!(client.reply(0).result, Ok(()));
        for (offset, len, is_hole) in
            [(0, 8192, true), (12288, 100_000, true), (4096, 8192, false), (8192, 4096, false)]
        {
            client.send_read(2, offset, len);
            let reply = client.reply(len as usize);
            assert!(reply.data == server.disk.peek(offset, len as usize));
            let expected = if is_hole && dialect != Dialect::Simple { len } else { 0 };
            assert_eq!((reply.result, reply.hole_bytes), (Ok(()), expected), "{dialect:?} at {offset}");
        }
    }
}

/// Contiguous writes that came together go to the disk as one, in whatever order; those that are not, those that are to be durable and those of a
/// server that merges nothing do not. Each is answered, and has its own bytes.
#[test]
fn contiguous_writes_that_came_together_are_one() {
    for (merge, dialect) in [(true, Dialect::Simple), (true, Dialect::Extended), (false, Dialect::Structured)]
    {
        let options = door_nbd::ServerOptions { merge, ..door_nbd::ServerOptions::default() };
        let server = TestServer::with(MemoryExport::new(MIB), options);
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        let (mut burst, mut expected) = (Vec::new(), vec![0; MIB as usize]);
        let fua = CommandFlags::FUA;
        // Eight in a row, out of order; two alone; a durable one in between that touches others; a flush; two in a row.
        let pages = [3, 1, 0, 2, 7, 6, 5, 4, 20, 30, 8, 40, 41];
        for (cookie, page) in (0u64..).zip(pages) {
            let flags = if page == 8 { fua } else { CommandFlags::NONE };
            let data = bytes(page, PAGE as usize);
            expected[(page * PAGE) as usize..][..PAGE as usize].copy_from_slice(&data);
            burst.extend(Client::header(n::WRITE, flags, cookie, (page * PAGE, PAGE)).encode(dialect).iter());
            burst.extend(data);
            if page == 8 {
                burst.extend(Client::header(n::FLUSH, CommandFlags::NONE, 99, (0, 0)).encode(dialect).iter());
            }
        }
        std::io::Write::write_all(&mut client.socket, &burst).expect("a server that reads");
        let mut answered: Vec<u64> = (0..=pages.len())
            .map(|_| client.reply(0))
            .map(|reply| {
                assert_eq!(reply.result, Ok(()));
                reply.cookie
            })
            .collect();
        answered.sort_unstable();
        assert_eq!(answered, (0..pages.len() as u64).chain([99]).collect::<Vec<_>>());
        assert!(server.disk.peek(0, MIB as usize) == expected, "merged writes mix their bytes up");
        let counted = server.entry.counters().snapshot();
        assert_eq!((counted.write.requests, counted.errors()), (pages.len() as u64, 0));
        assert_eq!(counted.write.bytes, pages.len() as u64 * PAGE);
        // It may have come in several pieces; one of them at least had neighbours.
        assert_eq!(counted.merged_writes > 0, merge, "{counted:?}");
        assert!(counted.merged_writes <= 8, "{counted:?}");
    }
}

/// Contiguous reads that came together and have to wait are one; those that are not, and those of a server that merges nothing, are not. Each has
/// its own bytes, and fails alone where its bytes cannot be read.
#[test]
fn contiguous_reads_that_came_together_are_one_and_fail_alone() {
    for (merge, dialect) in [(true, Dialect::Simple), (true, Dialect::Extended), (false, Dialect::Structured)]
    {
        let options = door_nbd::ServerOptions { merge, ..door_nbd::ServerOptions::default() };
        let mut disk = MemoryExport::new(MIB);
        disk.bad_page = Some(21);
        let server = TestServer::with(disk, options);
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        let all = bytes(5, 32 * PAGE as usize);
        client.send_write(99, 0, &all);
        assert_eq!(client.reply(0).result, Ok(()));
        // Eight in a row, out of order; one alone; three of which one fails; one that is answered at once in between.
        let pages = [3, 1, 0, 12, 2, 7, 6, 5, 4, 10, 20, 21, 22];
        pages.iter().filter(|page| **page != 12).for_each(|page| server.disk.hold(*page));
        let mut burst = Vec::new();
        for page in pages {
            burst.extend(
                Client::header(n::READ, CommandFlags::NONE, page, (page * PAGE, PAGE)).encode(dialect).iter(),
            );
        }
        std::io::Write::write_all(&mut client.socket, &burst).expect("a server that reads");
        assert_eq!(client.reply(PAGE as usize).cookie, 12);
        server.disk.release();
        let mut answered = vec![12];
        for _ in 1..pages.len() {
            let reply = client.reply(PAGE as usize);
            let own = &all[(reply.cookie * PAGE) as usize..][..PAGE as usize];
            match reply.cookie {
                21 => assert!(reply.result.is_err()),
                _ => assert!(reply.result.is_ok() && reply.data == own, "page {}", reply.cookie),
            }
            answered.push(reply.cookie);
        }
        answered.sort_unstable();
        assert_eq!(answered, [0, 1, 2, 3, 4, 5, 6, 7, 10, 12, 20, 21, 22]);
        let counted = server.entry.counters().snapshot();
        assert_eq!((counted.read.requests, counted.read.errors), (pages.len() as u64, 1));
        assert_eq!(counted.read.bytes, 12 * PAGE);
        // It may have come in several pieces; one of them at least had neighbours.
        assert_eq!(counted.merged_reads > 0, merge, "{counted:?}");
        assert!(counted.merged_reads <= 7, "{counted:?}");
    }
}

#[test]
fn a_burst_of_requests_is_answered_in_full() {
    let server = TestServer::start(MIB);
    let mut client = Client::connect(&server.socket(), Dialect::Structured, &[]);
    let mut burst = Vec::new();
    for page in 0..200 {
        let write = Client::header(n::WRITE, CommandFlags::NONE, page, (page * PAGE, PAGE));
        burst.extend(write.encode(Dialect::Structured).iter());
        burst.extend(vec![page as u8; PAGE as usize]);
    }
    std::io::Write::write_all(&mut client.socket, &burst).expect("a server that reads");
    let mut answered: Vec<u64> = (0..200).map(|_| client.reply(0).cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..200).collect::<Vec<_>>());
    for page in (0..200).rev() {
        client.send_read(page, page * PAGE, PAGE);
    }
    for _ in 0..200 {
        let reply = client.reply(PAGE as usize);
        assert_eq!(reply.data, vec![reply.cookie as u8; PAGE as usize]);
    }
}

#[test]
fn a_request_that_waits_holds_up_no_other() {
    let server = TestServer::start(MIB);
    server.disk.hold(7);
    let mut client = Client::connect(&server.socket(), Dialect::Structured, &[]);
    client.send_read(1, 7 * PAGE, PAGE);
    client.send_write(2, 7 * PAGE, &[1; 512]);
    client.send_read(3, 8 * PAGE, PAGE);
    client.send_write(4, 9 * PAGE, &[1; 512]);
    let mut first = [client.reply(0).cookie, client.reply(0).cookie];
    first.sort_unstable();
    assert_eq!(first, [3, 4]);
    assert_eq!(server.entry.counters().snapshot().in_flight, 2);
    server.disk.release();
    let mut later = [client.reply(0).cookie, client.reply(0).cookie];
    later.sort_unstable();
    assert_eq!(later, [1, 2]);
}

#[test]
fn bad_requests_get_the_errors_that_other_servers_give() {
    use CommandFlags as F;
    let size = MIB;
    let cases = [
        (n::READ, F::NONE, (size - 1, 2), ErrorCode::Inval),
        (n::READ, F::NONE, (u64::MAX, 2), ErrorCode::Inval),
        (n::TRIM, F::NONE, (size, 1), ErrorCode::Inval),
        (n::CACHE, F::NONE, (size, 1), ErrorCode::Inval),
        (n::WRITE_ZEROES, F::NONE, (size, 1), ErrorCode::NoSpc),
        (n::READ, F::NO_HOLE, (0, 1), ErrorCode::Inval),
        (n::BLOCK_STATUS, F::NONE, (0, 1), ErrorCode::Inval),
        (77, F::NONE, (0, 1), ErrorCode::Inval),
    ];
    for dialect in ALL {
        let server = TestServer::start(size);
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        for (number, flags, range, expected) in cases {
            let header = Client::header(number, flags, 5, range);
            assert_eq!(client.call(header, &[]), Err(expected), "{header:?}");
        }
        client.send_write(6, size - 1, &[1, 2]);
        assert_eq!(client.reply(0).result, Err(ErrorCode::NoSpc));
        let too_long = vec![0; (32 << 20) + 1];
        client.send_write(7, 0, &too_long);
        assert_eq!(client.reply(0).result, Err(ErrorCode::Inval));
        // After each the stream is where it should be.
        assert!(client.call(Client::header(n::FLUSH, F::NONE, 8, (0, 0)), &[]).is_ok());
        let counted = server.entry.counters().snapshot();
        assert_eq!((counted.invalid, counted.requests()), (10, 11));
    }
}

#[test]
fn a_read_only_disk_says_so_and_takes_no_write() {
    let mut disk = MemoryExport::new(MIB);
    disk.read_only = true;
    let server = TestServer::with(disk, door_nbd::ServerOptions::default());
    let mut client = Client::connect(&server.socket(), Dialect::Structured, &[]);
    assert!(client.agreed.flags.has(ExportFlags::READ_ONLY));
    assert!(!client.agreed.flags.has(ExportFlags::TRIM));
    client.send_write(1, 0, &[1; 5000]);
    assert_eq!(client.reply(0).result, Err(ErrorCode::Perm));
    client.send_read(2, 0, 512);
    assert_eq!(client.reply(512).data, [0; 512]);
}

#[test]
fn an_error_of_the_disk_reaches_its_request_and_no_other() {
    for dialect in ALL {
        let mut disk = MemoryExport::new(MIB);
        disk.bad_page = Some(3);
        let server = TestServer::with(disk, door_nbd::ServerOptions::default());
        let mut client = Client::connect(&server.socket(), dialect, &[]);
        for page in 0..6 {
            client.send_read(page, page * PAGE, PAGE);
        }
        for _ in 0..6 {
            // In the simple dialect the length of a reply follows from its result.
            let reply = client.reply(PAGE as usize);
            let expected = if reply.cookie == 3 { Err(ErrorCode::Io) } else { Ok(()) };
            assert_eq!(reply.result, expected);
            assert_eq!(reply.data.len(), if reply.cookie == 3 { 0 } else { PAGE as usize });
        }
        assert_eq!(server.entry.counters().snapshot().read.errors, 1);
    }
}

#[test]
fn flush_and_fua_reach_the_disk() {
    let server = TestServer::start(MIB);
    let mut client = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let calls = [(n::FLUSH, (0, 0)), (n::WRITE_ZEROES, (0, 512)), (n::TRIM, (0, 512))];
    for (at, (number, range)) in calls.into_iter().enumerate() {
        assert!(client.call(Client::header(number, CommandFlags::FUA, 1, range), &[]).is_ok());
        assert_eq!(server.disk.flushes(), at as u64 + 1);
    }
    assert!(client.call(Client::header(n::WRITE, CommandFlags::FUA, 1, (0, 3)), b"abc").is_ok());
    assert_eq!((server.disk.flushes(), server.disk.peek(0, 3)), (4, b"abc".to_vec()));
}

#[test]
fn zeroes_trims_and_caching_do_what_they_say() {
    let server = TestServer::start(MIB);
    let mut client = Client::connect(&server.socket(), Dialect::Extended, &["base:allocation"]);
    client.send_write(1, 0, &[7; 65536]);
    assert_eq!(client.reply(0).result, Ok(()));
    let zero = Client::header(n::WRITE_ZEROES, CommandFlags::FAST_ZERO, 2, (PAGE, 2 * PAGE));
    assert!(client.call(zero, &[]).is_ok());
    assert!(client.call(Client::header(n::TRIM, CommandFlags::NONE, 3, (8 * PAGE, PAGE)), &[]).is_ok());
    assert!(client.call(Client::header(n::CACHE, CommandFlags::NONE, 4, (0, MIB)), &[]).is_ok());
    let status = Client::header(n::BLOCK_STATUS, CommandFlags::NONE, 5, (0, 16 * PAGE));
    let extents = [(1, 0), (2, 3), (5, 0), (1, 3), (7, 0)];
    let expected = extents.map(|(pages, flags)| Descriptor { len: pages * PAGE, flags }).to_vec();
    assert_eq!(client.call(status, &[]).expect("a status").status, [(1, expected)]);
}

#[test]
fn block_status_tells_of_every_selected_context() {
    let contexts = ["base:allocation", "qemu:allocation-depth", "qemu:dirty-bitmap:dirty", "qemu:nothing"];
    for dialect in [Dialect::Structured, Dialect::Extended] {
        let server = TestServer::start(MIB);
        let mut client = Client::connect(&server.socket(), dialect, &contexts);
        assert_eq!(client.agreed.contexts.len(), 3);
        client.send_write(1, 0, &[1; PAGE as usize]);
        assert_eq!(client.reply(0).result, Ok(()));
        let status = Client::header(n::BLOCK_STATUS, CommandFlags::NONE, 2, (100, 2 * PAGE));
        let found = client.call(status, &[]).expect("a status").status;
        let extents = |flags: [u64; 2]| {
            vec![
                Descriptor { len: PAGE - 100, flags: flags[0] },
                Descriptor { len: PAGE + 100, flags: flags[1] },
            ]
        };
        assert_eq!(found, [(1, extents([0, 3])), (2, extents([1, 0])), (3, extents([1, 0]))]);
        let one = Client::header(n::BLOCK_STATUS, CommandFlags::REQ_ONE, 2, (0, 2 * PAGE));
        let found = client.call(one, &[]).expect("a status").status;
        assert!(found.iter().all(|(_, extents)| extents.len() == 1));
    }
}

#[test]
fn a_filter_asks_for_some_contexts_over_a_long_range() {
    let server = TestServer::start(MIB);
    let contexts = ["base:allocation", "qemu:dirty-bitmap:dirty"];
    let mut client = Client::connect(&server.socket(), Dialect::Extended, &contexts);
    assert!(client.agreed.flags.has(ExportFlags::BLOCK_STATUS_PAYLOAD));
    let mut ask = |ids: &[u32], len: u64| {
        let payload = BlockStatusFilter { len, ids: ids.to_vec() }.encode();
        let range = (0, payload.len() as u64);
        client.call(Client::header(n::BLOCK_STATUS, CommandFlags::PAYLOAD_LEN, 9, range), &payload)
    };
    let all = vec![Descriptor { len: MIB, flags: 0 }];
    assert_eq!(ask(&[2], MIB).expect("a status").status, [(2, all)]);
    assert_eq!(ask(&[3], MIB), Err(ErrorCode::Inval));
    assert_eq!(ask(&[2, 2], MIB), Err(ErrorCode::Inval));
    assert_eq!(ask(&[1], MIB + 1), Err(ErrorCode::Inval));
    assert_eq!(ask(&[1], 0), Err(ErrorCode::Inval));
    assert_eq!(ask(&[1, 2], 512).expect("a status").status.len(), 2);
}

#[test]
fn many_extents_come_in_bounded_replies_that_go_on_where_the_last_one_ended() {
    let pages = 3 * door_nbd::limits::STATUS_EXTENTS_MAX as u64;
    let server = TestServer::start(pages * PAGE);
    let mut client = Client::connect(&server.socket(), Dialect::Extended, &["base:allocation"]);
    for page in (0..pages).step_by(2) {
        client.send_write(page, page * PAGE, &[1]);
        if page % 512 == 510 {
            (0..256).for_each(|_| assert_eq!(client.reply(0).result, Ok(())));
        }
    }
    let mut at = 0;
    let mut replies = 0;
    while at < pages * PAGE {
        let range = (at, pages * PAGE - at);
        let status = client.call(Client::header(n::BLOCK_STATUS, CommandFlags::NONE, 9, range), &[]);
        let extents = &status.expect("a status").status[0].1;
        assert!(extents.len() <= door_nbd::limits::STATUS_EXTENTS_MAX);
        at += extents.iter().map(|extent| extent.len).sum::<u64>();
        replies += 1;
    }
    assert_eq!(replies, 3);
}

#[test]
fn two_connections_see_one_disk() {
    let server = TestServer::start(MIB);
    let mut first = Client::connect(&server.socket(), Dialect::Simple, &[]);
    let mut second = Client::connect(&server.socket(), Dialect::Extended, &[]);
    assert!(first.agreed.flags.has(ExportFlags::MULTI_CONN));
    first.send_write(1, 4096, b"seen");
    assert_eq!(first.reply(0).result, Ok(()));
    second.send_read(2, 4096, 4);
    assert_eq!(second.reply(4).data, b"seen");
    assert_eq!(server.entry.connections(), 2);
}

#[test]
fn where_io_uring_is_forbidden_everything_works_all_the_same() {
    let disk = MemoryExport::new(4 * MIB);
    let loops = export::Loops::new(2, export::Shutdown::new());
    let mut server =
        TestServer::on(loops, reactor::Backend::Threads, disk, door_nbd::ServerOptions::default());
    let mut client = Client::connect(&server.socket(), Dialect::Extended, &["base:allocation"]);
    let data = bytes(9, 3_000_000);
    server.disk.hold(0);
    client.send_write(1, 0, &data);
    client.send_read(2, 3 * MIB, PAGE);
    assert_eq!(client.reply(0).cookie, 2);
    server.disk.release();
    assert_eq!(
        client.reply(0),
        Reply { cookie: 1, result: Ok(()), data: vec![], hole_bytes: 0, status: vec![] }
    );
    client.send_read(3, 0, 3_000_000);
    assert!(client.reply(0).data == data);
    server.shutdown.trigger();
    server.ended();
}
