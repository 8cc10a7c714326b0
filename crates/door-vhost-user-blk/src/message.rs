//! Messages of vhost-user: bytes to checked values, and answers to bytes (pure). The layout is that of the vhost-user specification,
//! "Message Specification": a header of three words in the machine's byte order, then a payload.

mod encode;
mod name;

pub use self::name::name;
use crate::limits::{MEMORY_SLOTS_MAX, MESSAGE_BYTES_MAX};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;

/// Bytes of the configuration that one message can carry.
pub const CONFIG_BYTES_MAX: usize = 256;

/// Version of the protocol, in the lowest two bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// What the back-end asks of the front-end: read the configuration again.
const BACKEND_CONFIG_CHANGE: u32 = 2;

/// Regions that one message can describe: as many as descriptors are taken with one.
const TABLE_REGIONS_MAX: usize = 16;

/// Why a message is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Another version, or an answer where none was asked for.
    #[error("flags of a message are {found:#x}; its version must be 1, and it must be no answer")]
    Flags {
        /// As they came.
        found: u32,
    },
    /// Too long.
    #[error("a message has {found} bytes; at most {MESSAGE_BYTES_MAX} are allowed")]
    TooLong {
        /// As it came.
        found: u32,
    },
    /// The payload is not as long as it must be.
    #[error("{name} has {found} bytes, which do not fit it")]
    Length {
        /// What was asked for.
        name: &'static str,
        /// Bytes of the payload.
        found: usize,
    },
    /// A number in it is too large.
    #[error("{name}: {what} is {found}; at most {max} are allowed")]
    TooMany {
        /// What was asked for.
        name: &'static str,
        /// What is too large.
        what: &'static str,
        /// As it came.
        found: u64,
        /// The bound.
        max: u64,
    },
}

/// The first bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked for.
    pub request: u32,
    /// An answer is asked for where the message has none of its own.
    pub needs_reply: bool,
    /// Bytes that follow.
    pub payload_bytes: usize,
}

impl Header {
    /// What a front-end sent.
    ///
    /// # Errors
    /// For another version, an answer, or a payload that no message has.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, MessageError> {
        let [request, flags, size] = [0, 4, 8].map(|at| u32_at(&bytes, at));
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(MessageError::Flags { found: flags });
        }
        match usize::try_from(size) {
            Ok(payload_bytes) if payload_bytes <= MESSAGE_BYTES_MAX => {
                Ok(Self { request, needs_reply: flags & NEED_REPLY != 0, payload_bytes })
            }
            _ => Err(MessageError::TooLong { found: size }),
        }
    }
}

/// A message of the back-end to `request`, ready to be sent.
pub fn answer(request: u32, payload: &[u8]) -> Vec<u8> {
    message(request, VERSION | REPLY, payload)
}

/// The message that has a front-end read the configuration again.
pub fn config_change() -> Vec<u8> {
    message(BACKEND_CONFIG_CHANGE, VERSION, &[])
}

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    // Payloads are a few hundred bytes.
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[request, flags, size].map(u32::to_ne_bytes).concat()[..], payload].concat()
}

/// A region of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its first address as the guest has it.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// Its first address as the front-end has it: rings are named so.
    pub user: u64,
    /// Where it begins in its file.
    pub file_offset: u64,
}

/// A part of a file that is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Bytes.
    pub len: u64,
    /// Where it begins in its file.
    pub file_offset: u64,
}

/// A number about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Which ring.
    pub ring: u32,
    /// The number.
    pub value: u32,
}

/// Where a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddress {
    /// Which ring.
    pub ring: u32,
    /// Writes to the used ring are logged.
    pub logged: bool,
    /// The table of descriptors, as an address of the front-end.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring as an address of the guest, for the log.
    pub log_guest: u64,
}

/// A ring's descriptor: which ring, and whether one came along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFd {
    /// Which ring.
    pub ring: u32,
    /// No descriptor: the ring is polled.
    pub polled: bool,
}

/// A range of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRange {
    /// First byte.
    pub offset: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What records of requests in flight are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightInfo {
    /// Where they are.
    pub area: Area,
    /// How many queues.
    pub queues: u16,
    /// Entries of each queue's ring.
    pub entries: u16,
}

/// What a front-end asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Which features are there.
    GetFeatures,
    /// Which of them are used.
    SetFeatures(u64),
    /// A new session begins.
    SetOwner,
    /// The session ends (no longer used).
    ResetOwner,
    /// All of the guest's memory.
    SetMemoryTable(Vec<RegionInfo>),
    /// Where the log of dirty pages is.
    SetLogBase(Area),
    /// Who hears of new entries in it.
    SetLogFd,
    /// Entries of a ring.
    SetRingEntries(RingState),
    /// Where a ring is.
    SetRingAddress(RingAddress),
    /// Which available entry is next.
    SetRingBase(RingState),
    /// Stop a ring, and say which entry is next.
    GetRingBase(u32),
    /// How the guest wakes the device: the ring begins.
    SetRingKick(RingFd),
    /// How the device wakes the guest.
    SetRingCall(RingFd),
    /// How the device tells of a broken ring.
    SetRingErr(RingFd),
    /// Which features of the protocol are there.
    GetProtocolFeatures,
    /// Which of them are used.
    SetProtocolFeatures(u64),
    /// How many queues there may be.
    GetQueueNumber,
    /// Let a ring go on, or pause it.
    SetRingEnable(RingState),
    /// A socket for messages of the back-end.
    SetBackendChannel,
    /// Bytes of the configuration; those sent along are not looked at.
    GetConfig(ConfigRange),
    /// Bytes that the driver wrote there.
    SetConfig(ConfigRange),
    /// Make memory for records of requests in flight.
    GetInflight(InflightInfo),
    /// Use it.
    SetInflight(InflightInfo),
    /// How many regions of memory there may be.
    GetMemorySlots,
    /// One more region of memory.
    AddRegion(RegionInfo),
    /// One less.
    RemoveRegion(RegionInfo),
    /// Give the device's state to a descriptor, or take it from there: direction, phase.
    SetDeviceState(u32, u32),
    /// Whether that went well.
    CheckDeviceState,
    /// Something that was not offered.
    Unknown(u32),
}

impl Message {
    /// What `request` with `payload` asks for.
    ///
    /// # Errors
    /// When the payload is not that of the request.
    pub fn decode(request: u32, payload: &[u8]) -> Result<Self, MessageError> {
        let name = name(request);
        let wrong = || MessageError::Length { name, found: payload.len() };
        let exactly = |bytes: usize| if payload.len() == bytes { Ok(payload) } else { Err(wrong()) };
        let number = || exactly(8).map(|payload| u64_at(payload, 0));
        let state = || exactly(8).map(|p| RingState { ring: u32_at(p, 0), value: u32_at(p, 4) });
        let fd = || number().map(|n| RingFd { ring: (n & 0xff) as u32, polled: n & 0x100 != 0 });
        let single = || exactly(40).map(|payload| region(&payload[8..]));
        Ok(match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(number()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemoryTable(regions(name, payload)?),
            6 => Self::SetLogBase(area(exactly(16)?)),
            7 => Self::SetLogFd,
            8 => Self::SetRingEntries(state()?),
            9 => Self::SetRingAddress(ring_address(exactly(40)?)),
            10 => Self::SetRingBase(state()?),
            11 => Self::GetRingBase(state()?.ring),
            12 => Self::SetRingKick(fd()?),
            13 => Self::SetRingCall(fd()?),
            14 => Self::SetRingErr(fd()?),
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(number()?),
            17 => Self::GetQueueNumber,
            18 => Self::SetRingEnable(state()?),
            21 => Self::SetBackendChannel,
            24 => Self::GetConfig(config(name, payload)?),
            25 => Self::SetConfig(config(name, payload)?),
            // Compilers pad the last word; some front-ends send the padding.
            31 | 32 if !matches!(payload.len(), 20 | 24) => return Err(wrong()),
            31 => Self::GetInflight(inflight(payload)),
            32 => Self::SetInflight(inflight(payload)),
            36 => Self::GetMemorySlots,
            37 => Self::AddRegion(single()?),
            38 => Self::RemoveRegion(single()?),
            42 => state().map(|RingState { ring, value }| Self::SetDeviceState(ring, value))?,
            43 => Self::CheckDeviceState,
            other => Self::Unknown(other),
        })
    }
}

/// Answers about a device's state: no descriptor of ours comes along, the front-end's is used; it failed (and none comes along either).
pub const STATE_NO_FD: u64 = 1 << 8;
/// See [`STATE_NO_FD`].
pub const STATE_FAILED: u64 = STATE_NO_FD | 1;

/// The payload of an answer with a number.
pub fn number(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

/// The payload of an answer about a ring.
pub fn ring_state(ring: u32, value: u32) -> [u8; 8] {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&ring.to_ne_bytes());
    payload[4..].copy_from_slice(&value.to_ne_bytes());
    payload
}

/// The payload of an answer with `bytes` of the configuration; none say that it failed.
pub fn config_answer(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let [offset, len] = [offset, bytes.len()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    [&[offset, len, 0].map(u32::to_ne_bytes).concat()[..], bytes].concat()
}

/// The payload of an answer about records of requests in flight, as long as the question was.
pub fn inflight_answer(info: InflightInfo, question_bytes: usize) -> Vec<u8> {
    let mut payload = [info.area.len, info.area.file_offset].map(u64::to_ne_bytes).concat();
    payload.extend([info.queues, info.entries].map(u16::to_ne_bytes).concat());
    payload.resize(question_bytes.clamp(20, 24), 0);
    payload
}

fn regions(name: &'static str, payload: &[u8]) -> Result<Vec<RegionInfo>, MessageError> {
    let wrong = MessageError::Length { name, found: payload.len() };
    let (head, rest) = payload.split_at_checked(8).ok_or_else(|| wrong.clone())?;
    let count = u32_at(head, 0) as usize;
    if count > TABLE_REGIONS_MAX.min(MEMORY_SLOTS_MAX) {
        let (found, max) = (count as u64, TABLE_REGIONS_MAX as u64);
        return Err(MessageError::TooMany { name, what: "the number of regions", found, max });
    }
    // Some front-ends always send the whole table.
    let used = rest.get(..count * 32).ok_or(wrong)?;
    Ok(used.chunks_exact(32).map(region).collect())
}

fn region(bytes: &[u8]) -> RegionInfo {
    let [guest, len, user, file_offset] = [0, 8, 16, 24].map(|at| u64_at(bytes, at));
    RegionInfo { guest, len, user, file_offset }
}

fn area(bytes: &[u8]) -> Area {
    Area { len: u64_at(bytes, 0), file_offset: u64_at(bytes, 8) }
}

fn inflight(bytes: &[u8]) -> InflightInfo {
    InflightInfo { area: area(bytes), queues: u16_at(bytes, 16), entries: u16_at(bytes, 18) }
}

fn ring_address(bytes: &[u8]) -> RingAddress {
    let [descriptors, used, available, log_guest] = [8, 16, 24, 32].map(|at| u64_at(bytes, at));
    let logged = u32_at(bytes, 4) & 1 != 0;
    RingAddress { ring: u32_at(bytes, 0), logged, descriptors, used, available, log_guest }
}

fn config(name: &'static str, payload: &[u8]) -> Result<ConfigRange, MessageError> {
    let wrong = MessageError::Length { name, found: payload.len() };
    let (head, bytes) = payload.split_at_checked(12).ok_or_else(|| wrong.clone())?;
    let (offset, len) = (u32_at(head, 0) as usize, u32_at(head, 4) as usize);
    if bytes.len() != len || offset.saturating_add(len) > CONFIG_BYTES_MAX {
        return Err(wrong);
    }
    Ok(ConfigRange { offset, bytes: bytes.to_vec() })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    // Callers have looked at the length.
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(array(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_another_version_or_beyond_the_bounds_is_refused() {
        let header = |words: [u32; 3]| {
            let bytes = words.map(u32::to_ne_bytes).concat();
            Header::decode(bytes.try_into().expect("twelve bytes"))
        };
        assert_eq!(header([1, 9, 8]), Ok(Header { request: 1, needs_reply: true, payload_bytes: 8 }));
        assert_eq!(header([1, 2, 0]), Err(MessageError::Flags { found: 2 }));
        assert_eq!(header([1, 5, 0]), Err(MessageError::Flags { found: 5 }));
        assert_eq!(header([1, 1, 5000]), Err(MessageError::TooLong { found: 5000 }));
    }

    #[test]
    fn payloads_are_read_as_the_specification_lays_them_out() {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let region = RegionInfo { guest: 1, len: 2, user: 3, file_offset: 4 };
        assert_eq!(Message::decode(37, &words(&[0, 1, 2, 3, 4])), Ok(Message::AddRegion(region)));
        let table = words(&[1, 1, 2, 3, 4]);
        assert_eq!(Message::decode(5, &table), Ok(Message::SetMemoryTable(vec![region])));
        let address =
            RingAddress { ring: 5, logged: true, descriptors: 10, used: 20, available: 30, log_guest: 40 };
        let payload = words(&[5 | 1 << 32, 10, 20, 30, 40]);
        assert_eq!(Message::decode(9, &payload), Ok(Message::SetRingAddress(address)));
        let kick = Message::SetRingKick(RingFd { ring: 3, polled: true });
        assert_eq!(Message::decode(12, &words(&[0x103])), Ok(kick));
        let info = InflightInfo { area: Area { len: 7, file_offset: 8 }, queues: 2, entries: 128 };
        assert_eq!(Message::decode(31, &inflight_answer(info, 20)), Ok(Message::GetInflight(info)));
        assert_eq!(Message::decode(32, &inflight_answer(info, 24)), Ok(Message::SetInflight(info)));
        let range = ConfigRange { offset: 32, bytes: vec![1] };
        assert_eq!(Message::decode(25, &config_answer(32, &[1])), Ok(Message::SetConfig(range)));
    }

    #[test]
    fn payloads_that_do_not_fit_are_refused() {
        for (request, bytes) in [(2, 4), (5, 4), (6, 8), (9, 32), (12, 0), (24, 4), (31, 16), (37, 32)] {
            assert!(Message::decode(request, &vec![0; bytes]).is_err(), "{}", name(request));
        }
        let many = [17u32.to_ne_bytes(), [0; 4]].concat();
        assert!(Message::decode(5, &[many, vec![0; 17 * 32]].concat()).is_err());
        assert!(Message::decode(24, &config_answer(250, &[0; 10])).is_err());
        assert_eq!(Message::decode(99, &[]), Ok(Message::Unknown(99)));
    }
}
