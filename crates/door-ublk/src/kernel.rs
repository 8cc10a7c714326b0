//! The driver's devices. All unsafe code of this crate is here: what the kernel may touch is handed to it in three places.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use io_uring::register::Restriction;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use memory::IoBuf;
use parking_lot::Mutex;
use reactor::CommandDevice;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi::{
    CONTROL_COMMAND_BYTES, DESCRIPTOR_BYTES, Encoding, QUEUE_DEPTH_MAX, control_command, data_offset,
    io_command,
};

/// Bytes of a command in an entry of a ring with entries of 128.
const WIDE_COMMAND_BYTES: usize = 80;

/// The control device of the driver, with a ring that carries commands to it and does nothing else. It is made when the device is opened: in the
/// sandbox, where the device is deleted, no ring can be made.
pub(crate) struct ControlDevice {
    file: File,
    /// Each carries one command at a time. A start waits for the device's queues; the other one carries the stop that ends it.
    rings: [Mutex<ControlRing>; 2],
}

impl fmt::Debug for ControlDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlDevice").field("file", &self.file).finish_non_exhaustive()
    }
}

type ControlRing = IoUring<squeue::Entry128, cqueue::Entry>;

impl ControlDevice {
    /// # Errors
    /// Where the kernel has no io_uring.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        Ok(Self { file, rings: [Mutex::new(control_ring()?), Mutex::new(control_ring()?)] })
    }

    /// Gives the driver a command about `device`, whose data `data` is, and waits for its end. It blocks.
    ///
    /// # Errors
    /// As the driver says.
    pub(crate) fn command(&self, code: u32, device: u32, data: &mut [u8], value: u64) -> io::Result<()> {
        let (len, address) = match data {
            [] => (0, 0),
            // Of fixed sizes, far below.
            data => (u16::try_from(data.len()).unwrap_or(u16::MAX), data.as_mut_ptr() as u64),
        };
        let mut command = [0; WIDE_COMMAND_BYTES];
        command[..CONTROL_COMMAND_BYTES].copy_from_slice(&control_command(device, len, address, value));
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), code).cmd(command).build();
        let [first, second] = &self.rings;
        let mut ring = first.try_lock().or_else(|| second.try_lock()).unwrap_or_else(|| first.lock());
        // SAFETY: the driver touches `data` alone, which outlives the command: the loop below ends with it.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::other("the submission queue is full"))?;
        loop {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(completion) = ring.completion().next() {
                let result = completion.result();
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }
}

/// A ring that carries commands to drivers, and does nothing else.
fn control_ring() -> io::Result<ControlRing> {
    let ring: ControlRing = IoUring::builder().setup_r_disabled().build(1)?;
    let mut commands = [Restriction::sqe_op(opcode::UringCmd80::CODE)];
    ring.submitter().register_restrictions(&mut commands)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// One place of a queue, as the driver has it: where a command goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) encoding: Encoding,
    pub(crate) queue: u16,
    pub(crate) tag: u16,
}

/// Waits for a request in a place of a queue, after the one before was answered with `answer`, whose data `buf` has. Gives the buffer back,
/// with the data of a write. It must hold the largest request; there must be none if the device was made so that data is copied by [`copy_in`] and [`copy_out`]. All
/// commands of a queue must come from one thread.
///
/// # Errors
/// ENODEV when the device is stopped.
pub(crate) async fn next_request(
    device: &CommandDevice,
    place: Place,
    answer: Option<i32>,
    buf: Option<LargestBuf>,
) -> (io::Result<usize>, Option<LargestBuf>) {
    let code = match answer {
        None => place.encoding.fetch(),
        Some(_) => place.encoding.commit_and_fetch(),
    };
    let head = io_command(place.queue, place.tag, answer.unwrap_or(0));
    let bytes = buf.as_ref().map_or(0, |buf| buf.bytes);
    // SAFETY: the driver copies at most the bytes of the largest request, which the buffer has, and nothing where there is none.
    let (result, buf) = unsafe { device.command(code, head, buf.map(|buf| buf.buf)).await };
    (result, buf.map(|buf| LargestBuf { buf, bytes }))
}

/// Fills `buf` with the data of the write that is in `place`. The kernel has them in memory: nothing is waited for.
///
/// # Errors
/// When the kernel has fewer, or the device is stopped.
pub(crate) fn copy_in(device: &CommandDevice, place: Place, buf: &mut [u8]) -> io::Result<()> {
    let offset = data_offset(place.queue, place.tag);
    whole(buf.len(), || rustix::io::pread(device, &mut *buf, offset))
}

/// Gives `bytes` to the read that is in `place`.
///
/// # Errors
/// As [`copy_in`].
pub(crate) fn copy_out(device: &CommandDevice, place: Place, bytes: &[u8]) -> io::Result<()> {
    let offset = data_offset(place.queue, place.tag);
    whole(bytes.len(), || rustix::io::pwrite(device, bytes, offset))
}

/// The driver copies everything at once, or fails.
fn whole(len: usize, mut copy: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<()> {
    let copied = rustix::io::retry_on_intr(&mut copy)?;
    if copied == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A buffer for the largest request of a device.
#[derive(Debug)]
pub(crate) struct LargestBuf {
    buf: IoBuf,
    bytes: usize,
}

impl LargestBuf {
    /// For requests of `bytes` at most.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { buf: IoBuf::uninit(bytes), bytes }
    }

    /// Of `read`, the first bytes of a buffer that was split, and `rest`, what was left there.
    pub(crate) fn joined(mut read: IoBuf, rest: IoBuf, bytes: usize) -> Self {
        read.rejoin(rest);
        Self::of(read, bytes)
    }

    /// `buf`, if it is large enough; another one elsewhere.
    pub(crate) fn of(buf: IoBuf, bytes: usize) -> Self {
        if buf.len() < bytes { Self::new(bytes) } else { Self { buf, bytes } }
    }

    /// The bytes that requests of the device have at most.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The buffer itself.
    pub(crate) fn into_buf(self) -> IoBuf {
        self.buf
    }
}

/// What the kernel says of the requests of one queue: memory that it shares with us to be read.
#[derive(Debug)]
pub(crate) struct Descriptors {
    start: NonNull<u8>,
    len: usize,
    depth: u16,
}

impl Descriptors {
    /// Maps those of queue number `queue` of the open device, which has `depth` places.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn map(device: impl AsFd, queue: u16, depth: u16) -> io::Result<Self> {
        let len = usize::from(depth) * DESCRIPTOR_BYTES;
        let each = (QUEUE_DEPTH_MAX * DESCRIPTOR_BYTES).next_multiple_of(rustix::param::page_size());
        let offset = usize::from(queue) * each;
        // SAFETY: no address is asked for, so nothing that is mapped is replaced.
        let mapped = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, device, offset as u64)
        };
        let start = NonNull::new(mapped?.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { start, len, depth })
    }

    /// That of place `tag`. The kernel wrote it before it said so, and leaves it alone until the answer.
    pub(crate) fn get(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        if tag < self.depth {
            // SAFETY: the place lies in the mapping.
            let from = unsafe { self.start.add(usize::from(tag) * DESCRIPTOR_BYTES) };
            // SAFETY: the bytes are mapped for reading, and `bytes` is ours alone.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), DESCRIPTOR_BYTES) };
        }
        bytes
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `map`, and nothing has a reference to it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: it is an address and a length; the bytes are reached by copies alone, and nothing in this process writes them.
unsafe impl Send for Descriptors {}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn data_is_copied_from_and_to_the_place_of_its_request_or_the_request_fails() {
        let file = tempfile::tempfile().expect("a file in the place of a device");
        let device = CommandDevice::from_fd(OwnedFd::from(file));
        let place = |queue, tag| Place { encoding: Encoding::Ioctl, queue, tag };
        for (queue, tag) in [(0, 0), (0, 1), (1, 0)] {
            copy_out(&device, place(queue, tag), &[queue as u8 + 1, tag as u8, 7]).expect("a copy");
        }
        let mut found = [0; 3];
        copy_in(&device, place(1, 0), &mut found).expect("a copy");
        assert_eq!(found, [2, 0, 7]);
        copy_in(&device, place(0, 1), &mut found).expect("a copy");
        assert_eq!(found, [1, 1, 7]);
        // There is less than the request is said to have.
        copy_in(&device, place(1, 0), &mut [0; 4]).expect_err("a part of it");
        copy_in(&device, place(1, 1), &mut found).expect_err("nothing is there");
    }
}
