//! What holds for all bytes.

use crate::nbd::common;

use common::{End, Server, TwoDisks};
use proptest::prelude::*;
use wire::nbd::limits::CHUNK_BYTES_MAX;
use wire::nbd::server::{Handshake, Step, Tls};
use wire::nbd::{
    BlockStatusFilter, Chunk, ChunkKind, Command, CommandFlags, Context, Decoded, Dialect, ExportFlags,
    ReplyHead, RequestHeader, Selected, Served, client, decode_chunk, decode_reply,
};

fn dialects() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Simple), Just(Dialect::Structured), Just(Dialect::Extended)]
}

/// Options whose frame is right and whose content is anything, a valid one now and then.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        Just(b"\0\0\0\x01a\0\0".to_vec()),
        Just(b"\0\0\0\x01a\0\0\0\0".to_vec()),
        Just(b"\0\0\0\x01a\0\0\0\x01\0\0\0\x05qemu:".to_vec()),
        Just(vec![]),
    ];
    prop::collection::vec((0_u32..13, data), 0..12).prop_map(|options| {
        options.into_iter().flat_map(|(number, data)| common::raw_option(number, &data)).collect()
    })
}

proptest! {
    #[test]
    fn no_bytes_make_the_server_panic_or_talk_without_end(
        mut input in prop::collection::vec(any::<u8>(), 0..300),
        framed in options(),
        tls in prop_oneof![Just(Tls::Off), Just(Tls::Allowed), Just(Tls::Required)],
    ) {
        let mut server = Server::new(tls);
        prop_assert!(server.hear(&input).0.len() < 100_000);
        let mut server = Server::greeted(tls);
        prop_assert!(server.hear(&framed).0.len() < 100_000);
        let mut server = Server::greeted(tls);
        input.splice(0..0, framed);
        prop_assert!(server.hear(&input).0.len() < 100_000);
    }

    #[test]
    fn the_server_says_the_same_however_the_bytes_are_cut(framed in options(), pace in 1_usize..40) {
        let mut whole = Server::greeted(Tls::Off);
        let (expected, end) = whole.hear(&framed);
        let mut out = Vec::new();
        let mut cut = Handshake::new(Tls::Off, &mut Vec::new());
        cut.step(&3_u32.to_be_bytes(), &TwoDisks, &mut out).expect("flags");
        let mut held = Vec::new();
        'all: for piece in framed.chunks(pace) {
            held.extend_from_slice(piece);
            loop {
                match cut.step(&held, &TwoDisks, &mut out) {
                    Ok((taken, Step::Again)) => { held.drain(..taken); }
                    Ok((taken, Step::Need(more))) => {
                        held.drain(..taken);
                        prop_assert!(more > 0);
                        break;
                    }
                    _ => break 'all,
                }
            }
        }
        prop_assert_eq!(out, expected, "{:?}", matches!(end, End::Waiting));
    }

    #[test]
    fn no_bytes_make_the_client_panic(input in prop::collection::vec(any::<u8>(), 0..300)) {
        let wanted = client::ExportRequest {
            export: String::new(), tls: false, dialect: Dialect::Extended, contexts: vec!["base:allocation".into()],
        };
        let mut handshake = client::Handshake::new(wanted);
        let mut sent = Vec::new();
        let mut greeting = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
        greeting.extend(&input);
        let mut rest = &greeting[..];
        while let Ok((taken, client::Step::Again)) = handshake.step(rest, &mut sent) {
            rest = &rest[taken..];
        }
    }

    #[test]
    fn every_request_header_survives_the_wire(
        dialect in dialects(), flags: u16, number: u16, cookie: u64, offset: u64, len: u64,
    ) {
        let len = if dialect == Dialect::Extended { len } else { len & u64::from(u32::MAX) };
        let head = RequestHeader { flags: CommandFlags::from_wire(flags), number, cookie, offset, len };
        let bytes = head.encode(dialect);
        prop_assert_eq!(RequestHeader::decode(dialect, &bytes), Ok(Decoded::Head { bytes: bytes.len(), head }));
    }

    #[test]
    fn a_checked_command_lies_inside_the_export(
        dialect in dialects(), flags: u16, number in 0_u16..9, size: u64, export_flags: u16,
        offset: u64, len in prop_oneof![any::<u64>(), 0_u64..100_000_000],
    ) {
        let head = RequestHeader { flags: CommandFlags::from_wire(flags), number, cookie: 1, offset, len };
        let served =
            Served { dialect, size, flags: ExportFlags::from_wire(export_flags), has_contexts: true };
        let range = match Command::check(&head, &served) {
            Ok(Command::Read { offset, len, .. } | Command::Write { offset, len, .. }) => (offset, u64::from(len)),
            Ok(
                Command::Trim { offset, len, .. }
                | Command::WriteZeroes { offset, len, .. }
                | Command::Cache { offset, len },
            ) => (offset, len),
            _ => (0, 0),
        };
        prop_assert!(range.0.checked_add(range.1).is_some_and(|end| end <= size));
    }

    #[test]
    fn no_reply_makes_the_client_panic(
        dialect in dialects(), mut bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_usize..8,
    ) {
        let magic: u32 = match dialect {
            Dialect::Simple => 0x6744_6698,
            Dialect::Structured => 0x668e_33ef,
            Dialect::Extended => 0x6e8a_278c,
        };
        let _ = decode_reply(dialect, &bytes);
        bytes.splice(0..0, magic.to_be_bytes());
        if let Ok(Decoded::Head { head: ReplyHead::Chunk { payload_bytes, .. }, .. }) = decode_reply(dialect, &bytes) {
            prop_assert!(u64::from(payload_bytes) <= CHUNK_BYTES_MAX);
        }
        let kinds = [
            ChunkKind::None, ChunkKind::OffsetData, ChunkKind::OffsetHole, ChunkKind::BlockStatus,
            ChunkKind::BlockStatusExt, ChunkKind::Error, ChunkKind::ErrorOffset, ChunkKind::UnknownError(0x8009),
        ];
        if let Ok(Chunk::BlockStatus { descriptors, .. }) = decode_chunk(kinds[kind], &bytes) {
            prop_assert!(descriptors.iter().count() > 0);
        }
    }

    #[test]
    fn no_filter_makes_the_server_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = BlockStatusFilter::decode(&bytes, &[Selected { id: 1, context: Context::Allocation }]);
    }
}
