//! The client's half of NBD against any server: handshake, then replies.

use wire::nbd::client::{ExportRequest, Handshake, Negotiated, Step};
use wire::nbd::{Chunk, Decoded, Dialect, ReplyHead, decode_chunk, decode_reply};

use crate::input::Input;

/// Steps without taking a byte: then it turns in circles.
const IDLE_STEPS_MAX: u32 = 8;

/// A client says a few hundred bytes at a time.
const QUESTION_BYTES_MAX: usize = 64 << 10;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let dialect = [Dialect::Simple, Dialect::Structured, Dialect::Extended][usize::from(how & 3) % 3];
    let wanted = ExportRequest {
        export: "disk".to_owned(),
        tls: how & 4 == 4,
        dialect,
        contexts: vec!["base:allocation".to_owned(), "qemu:dirty-bitmap:b".to_owned()],
    };
    let stream = if how & 8 == 8 { script(&mut input) } else { input.rest().to_vec() };
    if how & 16 == 16 {
        transmit(dialect, &stream);
    } else if let Some((agreed, rest)) = negotiate(wanted, &stream) {
        assert!(agreed.dialect <= dialect, "agreed on more than was wanted");
        transmit(agreed.dialect, rest);
    }
}

/// A greeting and option replies as a server frames them, their data from the input, then anything.
fn script(input: &mut Input<'_>) -> Vec<u8> {
    let mut stream = b"NBDMAGICIHAVEOPT\0".to_vec();
    stream.push(input.byte() & 3);
    let replies = input.byte() % 16;
    for _ in 0..replies {
        stream.extend_from_slice(&0x0003_e889_0455_65a9_u64.to_be_bytes());
        stream.extend_from_slice(&u32::from(input.byte() % 13).to_be_bytes());
        let kind = input.byte();
        let kind = u32::from(kind & 15) | u32::from(kind >> 7) << 31;
        stream.extend_from_slice(&kind.to_be_bytes());
        let len = usize::from(input.byte());
        let data = input.bytes(len);
        stream.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
        stream.extend_from_slice(data);
    }
    stream.extend_from_slice(input.clone().rest());
    stream
}

fn negotiate(wanted: ExportRequest, stream: &[u8]) -> Option<(Negotiated, &[u8])> {
    let mut handshake = Handshake::new(wanted);
    let (mut out, mut start, mut idle) = (Vec::new(), 0, 0);
    loop {
        out.clear();
        let (taken, step) = handshake.step(&stream[start..], &mut out).ok()?;
        assert!(taken <= stream.len() - start);
        assert!(out.len() <= QUESTION_BYTES_MAX, "asked {} bytes in one step", out.len());
        start += taken;
        idle = if taken == 0 { idle + 1 } else { 0 };
        match step {
            Step::Need(more) => {
                assert!(more > 0, "needs nothing, and does not go on");
                return None;
            }
            Step::Again => assert!(idle < IDLE_STEPS_MAX, "goes on without taking anything"),
            Step::StartTls => handshake.tls_started(&mut out),
            Step::Ready(agreed) => return Some((agreed, &stream[start..])),
        }
    }
}

fn transmit(dialect: Dialect, mut rest: &[u8]) {
    while let Ok(Decoded::Head { bytes, head }) = decode_reply(dialect, rest) {
        rest = &rest[bytes..];
        let ReplyHead::Chunk { kind, payload_bytes, .. } = head else { continue };
        let (payload, after) = rest.split_at((payload_bytes as usize).min(rest.len()));
        rest = after;
        match decode_chunk(kind, payload) {
            Ok(Chunk::BlockStatus { descriptors, .. }) => assert!(descriptors.iter().count() > 0),
            Ok(Chunk::Hole { len, .. }) => assert!(len > 0),
            Ok(_) | Err(_) => {}
        }
    }
}
