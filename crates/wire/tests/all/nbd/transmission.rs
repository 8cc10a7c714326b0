//! Requests and replies, on bytes.

use wire::nbd::limits::{FILTER_BYTES_MAX, REQUEST_BYTES_MAX};
use wire::nbd::{
    BlockStatusFilter, Chunk, ChunkKind, Command, CommandFlags, Context, Decoded, Descriptor, Dialect,
    ErrorCode, ExportFlags, ReplyHead, RequestHeader, Selected, Served, Targeted, block_status,
    command_number, decode_chunk, decode_reply, done_reply, error_reply, hole_reply, read_head,
};

const ALL: [Dialect; 3] = [Dialect::Simple, Dialect::Structured, Dialect::Extended];

fn everything(dialect: Dialect) -> Served {
    let flags = [
        ExportFlags::FLUSH,
        ExportFlags::FUA,
        ExportFlags::TRIM,
        ExportFlags::WRITE_ZEROES,
        ExportFlags::CACHE,
        ExportFlags::FAST_ZERO,
    ];
    let flags = flags.into_iter().fold(ExportFlags::HAS_FLAGS, |all, flag| all.and_if(true, flag));
    let flags = flags
        .and_if(dialect >= Dialect::Structured, ExportFlags::DF)
        .and_if(dialect == Dialect::Extended, ExportFlags::BLOCK_STATUS_PAYLOAD);
    Served { dialect, size: 1 << 40, flags, has_contexts: true }
}

fn header(number: u16, offset: u64, len: u64, flags: CommandFlags) -> RequestHeader {
    RequestHeader { flags, number, cookie: 0x1122_3344_5566_7788, offset, len }
}

fn check(number: u16, offset: u64, len: u64, flags: CommandFlags) -> Result<Command, ErrorCode> {
    Command::check(&header(number, offset, len, flags), &everything(Dialect::Extended))
}

#[test]
fn a_request_that_is_encoded_decodes_to_itself_and_tells_what_it_lacks() {
    for dialect in ALL {
        let request = header(command_number::READ, 4096, 8192, CommandFlags::DF);
        let bytes = request.encode(dialect);
        for cut in 0..bytes.len() {
            let decoded = RequestHeader::decode(dialect, &bytes[..cut]);
            assert_eq!(decoded, Ok(Decoded::Need(bytes.len() - cut)));
        }
        let decoded = RequestHeader::decode(dialect, &bytes);
        assert_eq!(decoded, Ok(Decoded::Head { bytes: bytes.len(), head: request }));
    }
}

#[test]
fn a_request_of_another_dialect_is_not_understood() {
    let compact = header(0, 0, 1, CommandFlags::NONE).encode(Dialect::Simple);
    assert!(RequestHeader::decode(Dialect::Extended, &compact).is_err());
    let extended = header(0, 0, 1, CommandFlags::NONE).encode(Dialect::Extended);
    assert!(RequestHeader::decode(Dialect::Structured, &extended[..4]).is_err());
}

#[test]
fn only_what_is_sent_counts_as_payload() {
    let write = header(command_number::WRITE, 0, 512, CommandFlags::NONE);
    let read = header(command_number::READ, 0, 512, CommandFlags::NONE);
    let status = header(command_number::BLOCK_STATUS, 0, 12, CommandFlags::PAYLOAD_LEN);
    for dialect in ALL {
        assert_eq!(write.payload_bytes(dialect), 512);
        assert_eq!(read.payload_bytes(dialect), 0);
        assert_eq!(status.payload_bytes(dialect), if dialect == Dialect::Extended { 12 } else { 0 });
    }
}

#[test]
fn every_command_is_understood_with_its_flags() {
    use CommandFlags as F;
    use command_number as n;
    assert_eq!(check(n::READ, 1, 2, F::DF), Ok(Command::Read { offset: 1, len: 2, whole: true }));
    assert_eq!(
        check(n::WRITE, 1, 2, F::FUA | F::PAYLOAD_LEN),
        Ok(Command::Write { offset: 1, len: 2, fua: true })
    );
    assert_eq!(check(n::FLUSH, 0, 0, F::NONE), Ok(Command::Flush));
    assert_eq!(check(n::TRIM, 0, 1 << 40, F::FUA), Ok(Command::Trim { offset: 0, len: 1 << 40, fua: true }));
    assert_eq!(
        check(n::WRITE_ZEROES, 5, 6, F::NO_HOLE | F::FAST_ZERO),
        Ok(Command::WriteZeroes { offset: 5, len: 6, fua: false, no_hole: true, fast: true })
    );
    assert_eq!(check(n::CACHE, 5, 6, F::NONE), Ok(Command::Cache { offset: 5, len: 6 }));
    assert_eq!(
        check(n::BLOCK_STATUS, 5, 6, F::REQ_ONE),
        Ok(Command::BlockStatus { offset: 5, target: Targeted::Range { len: 6 }, one: true })
    );
    assert_eq!(
        check(n::BLOCK_STATUS, 5, 12, F::PAYLOAD_LEN),
        Ok(Command::BlockStatus { offset: 5, target: Targeted::Filter { payload_bytes: 12 }, one: false })
    );
    assert_eq!(check(n::DISCONNECT, u64::MAX, u64::MAX, F::DF), Ok(Command::Disconnect));
}

#[test]
fn ranges_past_the_end_are_refused_also_where_the_sum_overflows() {
    use command_number as n;
    for (offset, len) in [((1 << 40) - 1, 2), (u64::MAX, 2), (1 << 40, 1), (u64::MAX - 1, 1)] {
        for number in [n::READ, n::TRIM, n::CACHE, n::BLOCK_STATUS] {
            assert_eq!(check(number, offset, len, CommandFlags::NONE), Err(ErrorCode::Inval));
        }
        for number in [n::WRITE, n::WRITE_ZEROES] {
            assert_eq!(check(number, offset, len, CommandFlags::NONE), Err(ErrorCode::NoSpc));
        }
    }
    assert!(check(n::READ, 1 << 40, 0, CommandFlags::NONE).is_ok());
}

#[test]
fn a_read_only_export_takes_no_writes() {
    let mut served = everything(Dialect::Simple);
    served.flags = served.flags.and_if(true, ExportFlags::READ_ONLY);
    for number in [command_number::WRITE, command_number::TRIM, command_number::WRITE_ZEROES] {
        let request = header(number, 0, 512, CommandFlags::NONE);
        assert_eq!(Command::check(&request, &served), Err(ErrorCode::Perm));
    }
}

#[test]
fn what_was_not_advertised_is_invalid() {
    use command_number as n;
    let bare = Served {
        dialect: Dialect::Structured,
        size: 512,
        flags: ExportFlags::HAS_FLAGS,
        has_contexts: false,
    };
    for number in [n::FLUSH, n::TRIM, n::WRITE_ZEROES, n::CACHE, n::BLOCK_STATUS, 8, 99] {
        assert_eq!(Command::check(&header(number, 0, 1, CommandFlags::NONE), &bare), Err(ErrorCode::Inval));
    }
    for (number, flags) in [
        (n::READ, CommandFlags::DF),
        (n::READ, CommandFlags::from_wire(1 << 9)),
        (n::WRITE, CommandFlags::NO_HOLE),
        (n::WRITE, CommandFlags::PAYLOAD_LEN),
    ] {
        assert_eq!(Command::check(&header(number, 0, 1, flags), &bare), Err(ErrorCode::Inval));
    }
    let too_long = u64::from(REQUEST_BYTES_MAX) + 1;
    assert_eq!(check(n::READ, 0, too_long, CommandFlags::NONE), Err(ErrorCode::Inval));
    assert_eq!(check(n::WRITE, 0, too_long, CommandFlags::NONE), Err(ErrorCode::Inval));
    assert_eq!(check(n::BLOCK_STATUS, 0, 0, CommandFlags::NONE), Err(ErrorCode::Inval));
    let long_filter = check(n::BLOCK_STATUS, 0, FILTER_BYTES_MAX + 1, CommandFlags::PAYLOAD_LEN);
    assert_eq!(long_filter, Err(ErrorCode::Inval));
}

#[test]
fn a_context_filter_names_selected_contexts_once() {
    let selected = [1, 2].map(|id| Selected { id, context: Context::Bitmap(id.to_string()) });
    let filter = |ids: &[u32]| BlockStatusFilter { len: 7, ids: ids.to_vec() };
    for ids in [&[1][..], &[2, 1]] {
        assert_eq!(BlockStatusFilter::decode(&filter(ids).encode(), &selected), Ok(filter(ids)));
    }
    for ids in [&[][..], &[3], &[1, 1], &[0]] {
        assert_eq!(BlockStatusFilter::decode(&filter(ids).encode(), &selected), Err(ErrorCode::Inval));
    }
    assert!(BlockStatusFilter::decode(&filter(&[1]).encode()[..11], &selected).is_err());
}

fn chunk_of(dialect: Dialect, bytes: &[u8]) -> (ReplyHead, ChunkKind, Vec<u8>) {
    let Ok(Decoded::Head { bytes: taken, head }) = decode_reply(dialect, bytes) else { panic!("no reply") };
    let ReplyHead::Chunk { cookie: 7, kind, done: true, payload_bytes, .. } = head else {
        panic!("{head:?}")
    };
    let payload = &bytes[taken..];
    assert_eq!(payload.len(), payload_bytes as usize);
    (head, kind, payload.to_vec())
}

#[test]
fn a_read_is_answered_in_one_chunk() {
    for dialect in ALL {
        let mut reply = read_head(dialect, 7, 4096, 3).to_vec();
        let head_bytes = reply.len();
        reply.extend(b"abc");
        assert_eq!(head_bytes, [16, 28, 40][dialect as usize]);
        if dialect == Dialect::Simple {
            let head = ReplyHead::Simple { cookie: 7, result: Ok(()) };
            assert_eq!(decode_reply(dialect, &reply), Ok(Decoded::Head { bytes: 16, head }));
            continue;
        }
        let (_, kind, payload) = chunk_of(dialect, &reply);
        assert_eq!(decode_chunk(kind, &payload), Ok(Chunk::Data { offset: 4096, bytes: b"abc" }));
        let hole = hole_reply(dialect, 7, 4096, 512).expect("this dialect has holes");
        let (_, kind, payload) = chunk_of(dialect, &hole);
        assert_eq!(decode_chunk(kind, &payload), Ok(Chunk::Hole { offset: 4096, len: 512 }));
        let (_, kind, payload) = chunk_of(dialect, &read_head(dialect, 7, 0, 0));
        assert_eq!(decode_chunk(kind, &payload), Ok(Chunk::None));
    }
    assert!(hole_reply(Dialect::Simple, 7, 0, 512).is_none());
}

#[test]
fn an_error_reaches_the_client_with_its_words_and_its_place() {
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_wire(code.to_wire()), code);
        for dialect in [Dialect::Structured, Dialect::Extended] {
            for at in [None, Some(99)] {
                let mut reply = Vec::new();
                error_reply(&mut reply, dialect, (7, 0), code, "why", at);
                let (_, kind, payload) = chunk_of(dialect, &reply);
                assert_eq!(decode_chunk(kind, &payload), Ok(Chunk::Error { code, message: b"why", at }));
            }
        }
        let mut reply = Vec::new();
        error_reply(&mut reply, Dialect::Simple, (7, 0), code, "why", None);
        let head = ReplyHead::Simple { cookie: 7, result: Err(code) };
        assert_eq!(decode_reply(Dialect::Simple, &reply), Ok(Decoded::Head { bytes: 16, head }));
    }
    assert_eq!(ErrorCode::from_wire(12345), ErrorCode::Inval);
}

#[test]
fn extents_reach_the_client_in_both_widths() {
    let extents = [Descriptor { len: 65536, flags: 3 }, Descriptor { len: 1, flags: 0 }];
    for dialect in [Dialect::Structured, Dialect::Extended] {
        let mut reply = Vec::new();
        block_status(&mut reply, dialect, (7, 512), (5, true), &extents);
        let (_, kind, payload) = chunk_of(dialect, &reply);
        let Ok(Chunk::BlockStatus { context: 5, descriptors }) = decode_chunk(kind, &payload) else {
            panic!("no block status")
        };
        assert_eq!(descriptors.iter().collect::<Vec<_>>(), extents);
        assert!(decode_chunk(kind, &payload[..payload.len() - 1]).is_err());
    }
}

#[test]
fn success_without_data_is_as_short_as_the_dialect_allows() {
    assert_eq!(ALL.map(|dialect| done_reply(dialect, 7, 0).len()), [16, 16, 32]);
    let (_, kind, payload) = chunk_of(Dialect::Extended, &done_reply(Dialect::Extended, 7, 0));
    assert_eq!(decode_chunk(kind, &payload), Ok(Chunk::None));
}
