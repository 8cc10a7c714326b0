//! The server's half of NBD against any client: handshake, then requests.

use wire::nbd::server::{Catalogue, Handshake, Refusal, Session, Step, Tls};
use wire::nbd::{
    BlockSizes, BlockStatusFilter, Command, Decoded, Dialect, ErrorCode, ExportFlags, ExportInfo,
    RequestHeader, Served, Targeted, done_reply, error_reply, read_head,
};

use crate::input::Input;

/// Steps without taking a byte: then it turns in circles.
const IDLE_STEPS_MAX: u32 = 8;

/// Most bytes that one step may answer with: the list of all contexts, each with a full name.
const ANSWER_BYTES_MAX: usize = 8 << 20;

struct Shelf;

impl Shelf {
    fn export(name: &str) -> Option<ExportInfo> {
        let flags = [ExportFlags::HAS_FLAGS, ExportFlags::FLUSH, ExportFlags::FUA, ExportFlags::TRIM]
            .into_iter()
            .chain([ExportFlags::WRITE_ZEROES, ExportFlags::CACHE, ExportFlags::FAST_ZERO])
            .fold(ExportFlags::default(), |flags, more| flags.and_if(true, more));
        (name.is_empty() || name == "disk").then(|| ExportInfo {
            name: "disk".to_owned(),
            description: "a disk".to_owned(),
            size: 1 << 20,
            flags,
            blocks: BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 },
            allocation_depth: true,
            bitmaps: vec!["b".to_owned(), "nightly".to_owned()],
        })
    }
}

impl Catalogue for Shelf {
    type Chosen = ();

    fn list(&self) -> Vec<(String, String)> {
        vec![("disk".to_owned(), "a disk".to_owned())]
    }

    fn describe(&self, name: &str) -> Result<ExportInfo, Refusal> {
        match name {
            "full" => Err(Refusal::Policy("too many clients".to_owned())),
            "late" => Err(Refusal::Shutdown),
            name => Self::export(name).ok_or_else(|| Refusal::Unknown(name.to_owned())),
        }
    }

    fn choose(&self, name: &str) -> Result<((), ExportInfo), Refusal> {
        self.describe(name).map(|export| ((), export))
    }
}

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let tls = [Tls::Off, Tls::Allowed, Tls::Required, Tls::Active][usize::from(how & 3)];
    let stream = if how & 4 == 4 { script(&mut input) } else { input.rest().to_vec() };
    // How the bytes are cut must not matter beyond what is not there yet.
    let piece = [1, 7, 64, usize::MAX][usize::from(how >> 3 & 3)];
    if let Some((session, rest)) = negotiate(tls, &stream, piece) {
        transmit(&session, rest);
    }
}

/// Options as a client frames them, their data from the input, then anything.
fn script(input: &mut Input<'_>) -> Vec<u8> {
    let mut stream = vec![0, 0, 0, input.byte() & 3];
    for _ in 0..input.byte() % 12 {
        stream.extend_from_slice(b"IHAVEOPT");
        stream.extend_from_slice(&u32::from(input.byte() % 13).to_be_bytes());
        let len = usize::from(input.byte());
        let data = input.bytes(len);
        stream.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
        stream.extend_from_slice(data);
    }
    if input.flag() {
        // Into transmission: GO for the default export, no facts.
        stream.extend_from_slice(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    }
    while !input.is_empty() {
        request(input, &mut stream);
    }
    stream
}

fn request(input: &mut Input<'_>, stream: &mut Vec<u8>) {
    let how = input.byte();
    let dialect = if how & 1 == 1 { Dialect::Extended } else { Dialect::Structured };
    let header = RequestHeader {
        flags: wire::nbd::CommandFlags::from_wire(u16::from(input.byte() & 0x3f)),
        number: u16::from(input.byte() % 9),
        cookie: u64::from(input.byte()),
        offset: if how & 2 == 2 { input.number(8) } else { input.number(3) },
        len: input.number(if how & 4 == 4 { 4 } else { 1 }),
    };
    stream.extend_from_slice(header.encode(dialect).as_ref());
    let payload = usize::from(input.byte());
    stream.extend_from_slice(input.bytes(payload));
}

/// Feeds the stream, `piece` bytes at a time.
fn negotiate(tls: Tls, stream: &[u8], piece: usize) -> Option<(Session<()>, &[u8])> {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(tls, &mut out);
    let (mut start, mut end, mut idle) = (0, 0, 0);
    loop {
        out.clear();
        let offered = &stream[start..end];
        let (taken, step) = handshake.step(offered, &Shelf, &mut out).ok()?;
        assert!(taken <= offered.len(), "took {taken} of {} bytes", offered.len());
        assert!(out.len() <= ANSWER_BYTES_MAX, "answered one step with {} bytes", out.len());
        start += taken;
        idle = if taken == 0 { idle + 1 } else { 0 };
        match step {
            Step::Need(more) => {
                assert!(more > 0, "needs nothing, and does not go on");
                if end == stream.len() {
                    return None;
                }
                end = end.saturating_add(piece).min(stream.len());
                idle = 0;
            }
            Step::Again => assert!(idle < IDLE_STEPS_MAX, "goes on without taking anything"),
            Step::StartTls => handshake.tls_started(),
            Step::Ready(session) => return Some((session, &stream[start..])),
            Step::Done => return None,
        }
    }
}

fn transmit(session: &Session<()>, mut rest: &[u8]) {
    let dialect = session.dialect;
    let served = Served::new(&session.export, dialect, !session.contexts.is_empty());
    let mut out = Vec::new();
    while let Ok(Decoded::Head { bytes, head }) = RequestHeader::decode(dialect, rest) {
        assert_eq!(
            RequestHeader::decode(dialect, head.encode(dialect).as_ref()),
            Ok(Decoded::Head { bytes, head })
        );
        rest = &rest[bytes..];
        let payload = usize::try_from(head.payload_bytes(dialect)).unwrap_or(usize::MAX);
        let (payload, after) = rest.split_at(payload.min(rest.len()));
        rest = after;
        out.clear();
        match Command::check(&head, &served) {
            Ok(command) => answer(command, &head, &served, session, payload),
            Err(code) => error_reply(&mut out, dialect, (head.cookie, head.offset), code, "no", None),
        }
        error_reply(&mut out, dialect, (head.cookie, head.offset), ErrorCode::Io, "no", Some(head.offset));
    }
}

fn answer(command: Command, head: &RequestHeader, served: &Served, session: &Session<()>, payload: &[u8]) {
    let inside = |offset: u64, len: u64| {
        assert!(offset.checked_add(len).is_some_and(|end| end <= served.size), "{command:?} is not inside");
    };
    match command {
        Command::Read { offset, len, .. } => {
            inside(offset, u64::from(len));
            let _ = read_head(served.dialect, head.cookie, offset, len);
            let _ = wire::nbd::hole_reply(served.dialect, head.cookie, offset, len);
        }
        Command::Write { offset, len, .. } => inside(offset, u64::from(len)),
        Command::Trim { offset, len, .. }
        | Command::WriteZeroes { offset, len, .. }
        | Command::Cache { offset, len } => inside(offset, len),
        Command::BlockStatus { offset, target, .. } => match target {
            Targeted::Range { len } => inside(offset, len),
            Targeted::Filter { payload_bytes } => {
                assert!(u64::from(payload_bytes) == head.len);
                let Ok(filter) = BlockStatusFilter::decode(payload, &session.contexts) else { return };
                assert_eq!(filter.encode(), payload);
                if Command::block_status_range(offset, filter.len, served).is_ok() {
                    inside(offset, filter.len);
                }
            }
        },
        Command::Flush | Command::Disconnect => {}
    }
    let _ = done_reply(served.dialect, head.cookie, head.offset);
}
