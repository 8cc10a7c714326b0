//! Requests as they come from the device.

use std::io::{self, IoSliceMut};

use memory::{IoBuf, IoBytes};
use reactor::Device;
use rustix::io::Errno;

use crate::abi::{Header, IN_HEADER_BYTES, Request, WRITE_HEADER_BYTES};
use crate::limits::{COPIED_WRITE_BYTES_MAX, REQUEST_BYTES_MAX};

/// Bytes of a body that are looked at, of requests other than writes: more than the longest that we know has (SETATTR: 88).
const BODY_BYTES_MAX: usize = 128;

/// Where requests are read to. A write's data comes to lie at the beginning of a buffer of its own, aligned as direct I/O wants it.
#[derive(Debug)]
pub(crate) struct Reader {
    head: [u8; WRITE_HEADER_BYTES],
    /// As long as the longest write; None when a write took it along.
    data: Option<IoBuf>,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) unique: u64,
    /// Or what its sender receives.
    pub(crate) request: Result<Request, Errno>,
    /// Bytes behind the head: of a write, its data.
    pub(crate) data_bytes: usize,
}

/// A write's data.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) bytes: IoBytes,
    /// Bytes that it holds while it is in flight.
    pub(crate) held: u64,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { head: [0; WRITE_HEADER_BYTES], data: None }
    }

    /// The next request, if there is one.
    ///
    /// # Errors
    /// When the device is of no use any more: with ENODEV after the mount has ended.
    pub(crate) fn read(&mut self, device: &Device) -> io::Result<Option<Message>> {
        let data = self.data.get_or_insert_with(|| IoBuf::uninit(REQUEST_BYTES_MAX));
        loop {
            let parts = &mut [IoSliceMut::new(&mut self.head), IoSliceMut::new(data)];
            match device.read_now(parts) {
                Ok(Some(bytes)) => return decode(&self.head, data, bytes).map(Some),
                Ok(None) => return Ok(None),
                // Its sender was killed while it was being read.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The data of the write that was read last, which says that it has `len` bytes and brought `data_bytes`; None where these differ.
    pub(crate) fn take_data(&mut self, data_bytes: usize, len: u32) -> Option<Data> {
        let len = len as usize;
        if data_bytes != len {
            return None;
        }
        let mut data = self.data.take()?;
        if len > COPIED_WRITE_BYTES_MAX {
            data.truncate(len);
            return Some(Data { bytes: data.freeze(), held: REQUEST_BYTES_MAX as u64 });
        }
        let bytes = IoBytes::copy_from(&data[..len]);
        self.data = Some(data);
        Some(Data { bytes, held: len as u64 })
    }
}

fn decode(head: &[u8; WRITE_HEADER_BYTES], data: &[u8], bytes: usize) -> io::Result<Message> {
    let in_head = bytes.min(WRITE_HEADER_BYTES);
    let data_bytes = bytes - in_head;
    let not_one = || io::Error::new(io::ErrorKind::InvalidData, format!("{bytes} bytes that are no request"));
    let header = Header::decode(&head[..in_head], bytes).ok_or_else(not_one)?;
    let mut body = [0; BODY_BYTES_MAX];
    let first = in_head - IN_HEADER_BYTES;
    let rest = data_bytes.min(BODY_BYTES_MAX - first);
    body[..first].copy_from_slice(&head[IN_HEADER_BYTES..in_head]);
    body[first..first + rest].copy_from_slice(&data[..rest]);
    let request = Request::decode(&header, &body[..first + rest]);
    Ok(Message { unique: header.unique, request, data_bytes })
}
