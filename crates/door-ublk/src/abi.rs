//! What the kernel's ublk driver and its servers say to each other (linux/ublk_cmd.h): numbers of commands, and structures as bytes.

/// Bytes of a sector in all that is said.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// A device number that leaves the choice to the kernel.
pub(crate) const ANY_NUMBER: u32 = u32::MAX;

/// Bytes of what a server says of a queue's request, of which the address of the data comes last.
const IO_COMMAND_BYTES: u32 = 16;

/// Bytes of a command to the control device.
pub(crate) const CONTROL_COMMAND_BYTES: usize = 32;

/// Bytes of what is known of a device.
pub(crate) const INFO_BYTES: usize = 64;

/// Bytes of a device's parameters, as the first kernels have them.
pub(crate) const PARAMETERS_BYTES: usize = 64;

/// Bytes of what the kernel says of a request.
pub(crate) const DESCRIPTOR_BYTES: usize = 24;

/// Bytes of the kernel's features.
pub(crate) const FEATURES_BYTES: usize = 8;

/// Requests of a queue that the kernel has room for in each queue's descriptors.
pub(crate) const QUEUE_DEPTH_MAX: usize = 4096;

/// What devices can do.
pub(crate) mod feature {
    /// The device waits for another server when its own is gone.
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that were in flight then are given to the next server.
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The data of requests is read from the device by which the kernel asks, and written to it (Linux 6.5).
    pub(crate) const USER_COPY: u64 = 1 << 7;
    /// The device's size can change.
    pub(crate) const UPDATE_SIZE: u64 = 1 << 10;
}

/// A command to the control device: its number, and whether it changes something, as ioctl's numbers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    GetInfo,
    Add,
    Delete,
    DeleteLater,
    Start,
    Stop,
    SetParameters,
    GetParameters,
    StartRecovery,
    EndRecovery,
    GetFeatures,
    UpdateSize,
}

impl Control {
    /// The number that the kernel knows it by.
    pub(crate) fn code(self, encoding: Encoding) -> u32 {
        let (number, changes) = match self {
            Self::GetInfo => (0x02, false),
            Self::Add => (0x04, true),
            Self::Delete => (0x05, true),
            Self::Start => (0x06, true),
            Self::Stop => (0x07, true),
            Self::SetParameters => (0x08, true),
            Self::GetParameters => (0x09, false),
            Self::StartRecovery => (0x10, true),
            Self::EndRecovery => (0x11, true),
            Self::GetFeatures => (0x13, false),
            Self::DeleteLater => (0x14, false),
            Self::UpdateSize => (0x15, true),
        };
        encoding.of(number, changes, CONTROL_COMMAND_BYTES as u32)
    }

    /// What it is for, in an error.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GetInfo => "asking what device it is",
            Self::Add => "adding a device",
            Self::Delete | Self::DeleteLater => "deleting the device",
            Self::Start => "starting the device",
            Self::Stop => "stopping the device",
            Self::SetParameters => "setting the device's parameters",
            Self::GetParameters => "asking for the device's parameters",
            Self::StartRecovery => "beginning to recover the device",
            Self::EndRecovery => "recovering the device",
            Self::GetFeatures => "asking for the driver's features",
            Self::UpdateSize => "changing the device's size",
        }
    }
}

/// How numbers of commands are said: plain by Linux 6.0, as of ioctls from 6.4 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Plain,
    Ioctl,
}

impl Encoding {
    fn of(self, number: u32, changes: bool, bytes: u32) -> u32 {
        let direction: u32 = if changes { 3 } else { 2 };
        match self {
            Self::Plain => number,
            Self::Ioctl => direction << 30 | bytes << 16 | u32::from(b'u') << 8 | number,
        }
    }

    /// Waits for the first request in a place of a queue.
    pub(crate) fn fetch(self) -> u32 {
        self.of(0x20, true, IO_COMMAND_BYTES)
    }

    /// Answers a request, and waits for the next one in its place.
    pub(crate) fn commit_and_fetch(self) -> u32 {
        self.of(0x21, true, IO_COMMAND_BYTES)
    }
}

/// A command about a place of a queue, but for the address of its data.
pub(crate) fn io_command(queue: u16, tag: u16, result: i32) -> [u8; 8] {
    let mut bytes = [0; 8];
    put(&mut bytes, 0, &queue.to_ne_bytes());
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    bytes
}

/// Where the device that hands over requests has the data of the request in a place of a queue, if it was made with [`feature::USER_COPY`].
pub(crate) fn data_offset(queue: u16, tag: u16) -> u64 {
    const FIRST: u64 = 0x8000_0000;
    FIRST + (u64::from(queue) << 41 | u64::from(tag) << 25)
}

/// A command about a device, with `len` bytes of data at `address`.
pub(crate) fn control_command(
    device: u32,
    len: u16,
    address: u64,
    value: u64,
) -> [u8; CONTROL_COMMAND_BYTES] {
    let mut bytes = [0; CONTROL_COMMAND_BYTES];
    put(&mut bytes, 0, &device.to_ne_bytes());
    // No queue is meant.
    put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
    put(&mut bytes, 6, &len.to_ne_bytes());
    put(&mut bytes, 8, &address.to_ne_bytes());
    put(&mut bytes, 16, &value.to_ne_bytes());
    bytes
}

/// What the kernel knows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: State,
    pub(crate) buffer_bytes: u32,
    pub(crate) number: u32,
    /// Its server's process.
    pub(crate) server: i32,
    /// Of [`feature`].
    pub(crate) features: u64,
    /// The server's own: no other process looks at it.
    pub(crate) mark: u64,
}

/// How far a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It was not started, or was stopped.
    Dead,
    Live,
    /// It waits for a server.
    Quiesced,
    Unknown(u16),
}

impl Info {
    pub(crate) fn encode(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 8, &self.buffer_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.number.to_ne_bytes());
        put(&mut bytes, 16, &self.server.to_ne_bytes());
        put(&mut bytes, 24, &self.features.to_ne_bytes());
        put(&mut bytes, 32, &self.mark.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; INFO_BYTES]) -> Self {
        Self {
            queues: half(bytes, 0),
            depth: half(bytes, 2),
            state: match half(bytes, 4) {
                0 => State::Dead,
                1 => State::Live,
                2 => State::Quiesced,
                other => State::Unknown(other),
            },
            buffer_bytes: word(bytes, 8),
            number: word(bytes, 12),
            server: word(bytes, 16).cast_signed(),
            features: long(bytes, 24),
            mark: long(bytes, 32),
        }
    }
}

/// What programs see of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) read_only: bool,
    /// There is something to flush.
    pub(crate) write_cache: bool,
    /// Powers of two, at least a sector.
    pub(crate) logical_block_bytes: u32,
    pub(crate) physical_block_bytes: u32,
    /// A power of two; what is smaller may stay.
    pub(crate) discard_bytes: u32,
    pub(crate) sectors: u64,
    pub(crate) request_sectors_max: u32,
    /// Of one request; 0 where there are none.
    pub(crate) discard_sectors_max: u32,
    pub(crate) zero_sectors_max: u32,
}

impl Parameters {
    /// What the kernel is given to tell a device's parameters in.
    pub(crate) fn asked() -> [u8; PARAMETERS_BYTES] {
        let mut bytes = [0; PARAMETERS_BYTES];
        put(&mut bytes, 0, &(PARAMETERS_BYTES as u32).to_ne_bytes());
        bytes
    }

    /// The device's sectors, of what the kernel reported.
    pub(crate) fn sectors_reported(bytes: &[u8; PARAMETERS_BYTES]) -> u64 {
        long(bytes, 24)
    }

    pub(crate) fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        const BASIC: u32 = 1;
        const DISCARD: u32 = 2;
        const READ_ONLY: u32 = 1;
        /// A volatile cache, and writes that pass it.
        const CACHE: u32 = 1 << 2 | 1 << 3;
        let when = |on: bool, bits: u32| if on { bits } else { 0 };
        let attributes = when(self.read_only, READ_ONLY) | when(self.write_cache, CACHE);
        let discards = self.discard_sectors_max > 0 || self.zero_sectors_max > 0;
        let mut bytes = Self::asked();
        put(&mut bytes, 4, &(BASIC | when(discards, DISCARD)).to_ne_bytes());
        put(&mut bytes, 8, &attributes.to_ne_bytes());
        // Exponents of powers of two are at most 31.
        let [logical, physical] =
            [self.logical_block_bytes, self.physical_block_bytes].map(|bytes| bytes.ilog2() as u8);
        put(&mut bytes, 12, &[logical, physical, physical, physical]);
        put(&mut bytes, 16, &self.request_sectors_max.to_ne_bytes());
        put(&mut bytes, 24, &self.sectors.to_ne_bytes());
        if discards {
            put(&mut bytes, 44, &self.discard_bytes.max(self.logical_block_bytes).to_ne_bytes());
            put(&mut bytes, 48, &self.discard_sectors_max.to_ne_bytes());
            put(&mut bytes, 52, &self.zero_sectors_max.to_ne_bytes());
            put(&mut bytes, 56, &1u16.to_ne_bytes());
        }
        bytes
    }
}

/// What programs ask of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    Flush,
    Discard,
    /// Zeroes that may, or may not, be a hole.
    Zero {
        unmap: bool,
    },
    Unknown(u8),
}

/// A request in a place of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// Durable before its answer.
    pub(crate) fua: bool,
    /// In bytes; within u64, as it comes in sectors of a disk.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Request {
    pub(crate) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        const FUA: u32 = 1 << 13;
        const NO_UNMAP: u32 = 1 << 15;
        let what = word(bytes, 0);
        let op = match what as u8 {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Discard,
            5 => Op::Zero { unmap: what & NO_UNMAP == 0 },
            other => Op::Unknown(other),
        };
        Self {
            op,
            fua: what & FUA != 0,
            offset: long(bytes, 8).saturating_mul(SECTOR_BYTES),
            len: u64::from(word(bytes, 4)) * SECTOR_BYTES,
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|field| field.try_into().ok()).unwrap_or([0; N])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(field(bytes, at))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(field(bytes, at))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(field(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_that_the_kernel_knows() {
        assert_eq!(Control::Add.code(Encoding::Plain), 4);
        assert_eq!(Control::Add.code(Encoding::Ioctl), 0xc020_7504);
        assert_eq!(Control::GetFeatures.code(Encoding::Ioctl), 0x8020_7513);
        assert_eq!(Encoding::Ioctl.fetch(), 0xc010_7520);
        assert_eq!(Encoding::Plain.commit_and_fetch(), 0x21);
    }

    #[test]
    fn data_of_each_place_lies_where_the_kernel_has_it() {
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(0, 3), 0x8600_0000);
        assert_eq!(data_offset(2, 0), 0x400_8000_0000);
        assert_eq!(data_offset(1, 1), 0x200_8200_0000);
    }

    #[test]
    fn what_is_said_of_a_device_is_what_is_understood() {
        let info = Info {
            queues: 2,
            depth: 128,
            state: State::Dead,
            buffer_bytes: 1 << 18,
            number: 7,
            server: -1,
            features: feature::USER_RECOVERY,
            mark: 0x1234_5678_9abc_def0,
        };
        let mut bytes = info.encode();
        assert_eq!(Info::decode(&bytes), info);
        put(&mut bytes, 4, &2u16.to_ne_bytes());
        assert_eq!(Info::decode(&bytes).state, State::Quiesced);
    }

    #[test]
    fn a_request_is_reported_in_bytes() {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        put(&mut bytes, 0, &(5u32 | 1 << 13 | 1 << 15).to_ne_bytes());
        put(&mut bytes, 4, &8u32.to_ne_bytes());
        put(&mut bytes, 8, &16u64.to_ne_bytes());
        let zero = Request { op: Op::Zero { unmap: false }, fua: true, offset: 8192, len: 4096 };
        assert_eq!(Request::decode(&bytes), zero);
        put(&mut bytes, 0, &4u32.to_ne_bytes());
        assert_eq!(Request::decode(&bytes).op, Op::Unknown(4));
    }

    #[test]
    fn a_read_only_disk_has_no_discards() {
        let parameters = Parameters {
            read_only: true,
            write_cache: true,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            discard_bytes: 65536,
            sectors: 2048,
            request_sectors_max: 512,
            discard_sectors_max: 0,
            zero_sectors_max: 0,
        };
        let bytes = parameters.encode();
        assert_eq!((word(&bytes, 0), word(&bytes, 4), word(&bytes, 8)), (64, 1, 0b1101));
        assert_eq!((&bytes[12..16], long(&bytes, 24)), (&[9, 12, 12, 12][..], 2048));
        let writable = Parameters { read_only: false, discard_sectors_max: 8, ..parameters }.encode();
        assert_eq!((word(&writable, 4), word(&writable, 44), half(&writable, 56)), (3, 65536, 1));
    }
}
