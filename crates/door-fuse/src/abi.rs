//! Bytes of the kernel's FUSE messages <-> checked values (linux/fuse.h, version 7.23 and later). Pure.
//!
//! Numbers have this machine's byte order. A message begins with a header that says its length; what is longer than we know comes from a
//! later kernel, and its rest is left alone.

mod answer;

use rustix::io::Errno;

pub use self::answer::{
    Attributes, Body, attributes, file_system, found, init_answer, opened, out_header, written,
};

/// Bytes of a request's header.
pub const IN_HEADER_BYTES: usize = 40;

/// Bytes before a write's data: the header, and what the write says of itself.
pub const WRITE_HEADER_BYTES: usize = IN_HEADER_BYTES + 40;

/// What kernel and server agree on.
mod init_flag {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files whose reads and writes pass the page cache by may be mapped and shared (Linux 6.6).
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// `fallocate` keeps the file's size.
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 0x10;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Who sends what: the part of the header that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole message.
    pub len: usize,
    /// What is asked.
    pub opcode: u32,
    /// The request's number, which its answer has, too.
    pub unique: u64,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first: what the kernel can do.
    Init { major: u32, minor: u32, flags: u64 },
    /// A name below the file, which is no directory.
    Lookup,
    /// Not answered.
    Forget,
    /// Size, mode, times.
    GetAttr,
    /// Changes of them.
    SetAttr(SetAttr),
    /// A program opens the file.
    Open { writes: bool },
    /// Bytes.
    Read { offset: u64, len: u32 },
    /// Bytes, which follow the request's [`WRITE_HEADER_BYTES`].
    Write { offset: u64, len: u32 },
    /// One of a file's descriptors is closed.
    Flush,
    /// A file's last descriptor is closed.
    Release { handle: u64 },
    /// Writes are to be durable.
    Fsync,
    /// Space in the file.
    Fallocate { what: Fallocate, offset: u64, len: u64 },
    /// Where data, or a hole, begins.
    Seek { offset: u64, target: SeekTarget },
    /// Size of the file system.
    StatFs,
    /// No task awaits the request of this number any more. Not answered.
    Interrupt { unique: u64 },
    /// The mount ends.
    Destroy,
    /// Nothing that is known here.
    Unknown,
}

/// What `fallocate` is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// The range reads as zeroes, and takes no space.
    PunchHole,
    /// The range reads as zeroes.
    ZeroRange { keep_size: bool },
    /// The range has space of its own.
    Allocate,
    /// Anything else.
    Other,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that are stored.
    Data,
    /// Bytes that read as zeroes, or the end.
    Hole,
}

/// A moment: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Seconds.
    pub seconds: u64,
    /// Nanoseconds.
    pub nanos: u32,
}

/// A time that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// This one.
    At(Moment),
    /// The present.
    Now,
}

/// Attributes that are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Bytes.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The owner's group.
    pub gid: Option<u32>,
    /// When it was read last.
    pub accessed: Option<NewTime>,
    /// When it was written last.
    pub modified: Option<NewTime>,
}

/// Bits of SETATTR's `valid`.
mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// Reads numbers of a message, in order. What is missing is zero, and remembered.
struct Fields<'a> {
    bytes: &'a [u8],
    is_short: bool,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, is_short: false }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.bytes.split_first_chunk::<N>() {
            Some((number, rest)) => {
                self.bytes = rest;
                *number
            }
            None => {
                self.is_short = true;
                [0; N]
            }
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn skip<const N: usize>(&mut self) {
        let _: [u8; N] = self.take();
    }

    fn done<T>(&self, value: T) -> Result<T, Errno> {
        if self.is_short { Err(Errno::INVAL) } else { Ok(value) }
    }
}

impl Header {
    /// The header of a message of `bytes`; None where it is none, or belongs to a message of another length.
    pub fn decode(bytes: &[u8], message_bytes: usize) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let (len, opcode, unique) = (fields.u32() as usize, fields.u32(), fields.u64());
        (bytes.len() >= IN_HEADER_BYTES && len == message_bytes).then_some(Self { len, opcode, unique })
    }
}

impl Request {
    /// What a message with this header asks; `body` follows the header, of a write without its data.
    ///
    /// # Errors
    /// With EINVAL, where the body is too short for its kind, or contradicts itself.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields::new(body);
        let fields = &mut fields;
        let request = match header.opcode {
            1 => Self::Lookup,
            2 | 42 => Self::Forget,
            3 => Self::GetAttr,
            4 => Self::SetAttr(set_attr(fields)),
            14 => Self::Open { writes: fields.u32() & 3 != 0 },
            15 => {
                fields.skip::<8>();
                Self::Read { offset: fields.u64(), len: fields.u32() }
            }
            16 => {
                fields.skip::<8>();
                let write = Self::Write { offset: fields.u64(), len: fields.u32() };
                fields.skip::<20>();
                write
            }
            17 => Self::StatFs,
            18 => Self::Release { handle: fields.u64() },
            20 => Self::Fsync,
            25 => Self::Flush,
            26 => init(fields),
            36 => Self::Interrupt { unique: fields.u64() },
            38 => Self::Destroy,
            43 => {
                fields.skip::<8>();
                let (offset, len) = (fields.u64(), fields.u64());
                Self::Fallocate { what: fallocate(fields.u32()), offset, len }
            }
            46 => {
                fields.skip::<8>();
                let (offset, whence) = (fields.u64(), fields.u32());
                Self::Seek { offset, target: seek_target(whence)? }
            }
            _ => Self::Unknown,
        };
        fields.done(request)
    }
}

fn init(fields: &mut Fields<'_>) -> Request {
    let (major, minor) = (fields.u32(), fields.u32());
    fields.skip::<4>();
    let low = u64::from(fields.u32());
    // Older kernels end here.
    let high = if low & init_flag::INIT_EXT == 0 { 0 } else { u64::from(fields.u32()) };
    Request::Init { major, minor, flags: low | high << 32 }
}

fn set_attr(fields: &mut Fields<'_>) -> SetAttr {
    let valid = fields.u32();
    fields.skip::<12>();
    let size = fields.u64();
    fields.skip::<8>();
    let (atime, mtime) = (fields.u64(), fields.u64());
    fields.skip::<8>();
    let (atime_nanos, mtime_nanos) = (fields.u32(), fields.u32());
    fields.skip::<4>();
    let mode = fields.u32();
    fields.skip::<4>();
    let (uid, gid) = (fields.u32(), fields.u32());
    let has = |bit: u32| valid & bit != 0;
    let time = |bit: u32, now: u32, seconds: u64, nanos: u32| {
        has(bit).then_some(if has(now) { NewTime::Now } else { NewTime::At(Moment { seconds, nanos }) })
    };
    SetAttr {
        size: has(valid::SIZE).then_some(size),
        mode: has(valid::MODE).then_some(mode & 0o7777),
        uid: has(valid::UID).then_some(uid),
        gid: has(valid::GID).then_some(gid),
        accessed: time(valid::ATIME, valid::ATIME_NOW, atime, atime_nanos),
        modified: time(valid::MTIME, valid::MTIME_NOW, mtime, mtime_nanos),
    }
}

fn fallocate(mode: u32) -> Fallocate {
    const PUNCH: u32 = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE;
    const ZERO_AND_KEEP: u32 = FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE;
    match mode {
        0 => Fallocate::Allocate,
        PUNCH => Fallocate::PunchHole,
        FALLOC_ZERO_RANGE => Fallocate::ZeroRange { keep_size: false },
        ZERO_AND_KEEP => Fallocate::ZeroRange { keep_size: true },
        _ => Fallocate::Other,
    }
}

fn seek_target(whence: u32) -> Result<SeekTarget, Errno> {
    match whence {
        SEEK_DATA => Ok(SeekTarget::Data),
        SEEK_HOLE => Ok(SeekTarget::Hole),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(IN_HEADER_BYTES + body.len()).unwrap();
        let mut bytes = [len.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        bytes.extend(7u64.to_ne_bytes());
        bytes.resize(IN_HEADER_BYTES, 0);
        bytes.extend(body);
        bytes
    }

    fn decode(opcode: u32, body: &[u8]) -> Result<Request, Errno> {
        let bytes = message(opcode, body);
        let header = Header::decode(&bytes, bytes.len()).unwrap();
        assert_eq!((header.opcode, header.unique), (opcode, 7));
        Request::decode(&header, &bytes[IN_HEADER_BYTES..])
    }

    #[test]
    fn a_message_cut_anywhere_is_an_error_and_none_is_taken_for_another() {
        let body: Vec<u8> = (0..128).collect();
        for opcode in 0..60 {
            let whole = decode(opcode, &body);
            for len in 0..body.len() {
                let cut = decode(opcode, &body[..len]);
                assert!(cut == whole || cut == Err(Errno::INVAL), "{opcode}, {len} bytes: {cut:?}");
            }
        }
        let bytes = message(3, &[0; 16]);
        assert!(
            Header::decode(&bytes, bytes.len() - 1).is_none() && Header::decode(&bytes[..39], 39).is_none()
        );
    }

    #[test]
    fn modes_of_fallocate_that_are_not_known_are_not_taken_for_others() {
        let body = |mode: u32| [&[0; 24][..], &mode.to_ne_bytes(), &[0; 4]].concat();
        let what = |mode| match decode(43, &body(mode)) {
            Ok(Request::Fallocate { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!((what(0), what(3)), (Fallocate::Allocate, Fallocate::PunchHole));
        assert_eq!(what(0x10), Fallocate::ZeroRange { keep_size: false });
        assert_eq!(what(0x11), Fallocate::ZeroRange { keep_size: true });
        for other in [1, 2, 4, 8, 0x12, 0x20, 0x40, u32::MAX] {
            assert_eq!(what(other), Fallocate::Other, "{other:#x}");
        }
    }

    #[test]
    fn attributes_that_are_not_set_are_not_changed() {
        let mut body = vec![0xff; 88];
        body[..4].copy_from_slice(&(valid::SIZE | valid::MTIME | valid::MTIME_NOW).to_ne_bytes());
        let expected = SetAttr { size: Some(u64::MAX), modified: Some(NewTime::Now), ..SetAttr::default() };
        assert_eq!(decode(4, &body), Ok(Request::SetAttr(expected)));
    }
}
