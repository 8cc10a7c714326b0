//! Requests, and how a loop carries them out.

use block::pace::Unpaced;
use block::{Hints, ZeroOptions};
use memory::{ForeignBytes, IoVec};

use crate::buffer::Buffer;
use crate::completions::QueueReply;
use crate::error::{Error, ErrorKind, Place};
use crate::in_flight::Inside;
use crate::pending::Reply;

/// What is asked of a disk. Offsets and lengths are in bytes, of any alignment; two requests on overlapping ranges that are in
/// flight at a time have no order.
#[derive(Debug)]
pub enum Request {
    /// Fill `buffer` with the bytes at `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// As long as the range. After a failure any of its bytes may have changed.
        buffer: Buffer,
    },
    /// Write `buffer` at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// What is written.
        buffer: Buffer,
        /// It is durable when it completes. In a writethrough mode every write is.
        fua: bool,
    },
    /// Fill memory that is not ours, such as a guest's, with the bytes at `offset`.
    ReadInto {
        /// First byte.
        offset: u64,
        /// As long as the range. After a failure any of its bytes may have changed.
        memory: ForeignBytes,
    },
    /// Write memory that is not ours at `offset`.
    WriteFrom {
        /// First byte.
        offset: u64,
        /// What is written: the bytes that are there at some time while the request is in flight.
        memory: ForeignBytes,
        /// It is durable when it completes. In a writethrough mode every write is.
        fua: bool,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes of the range.
        len: u64,
        /// Whether space may be given back (where the disk was opened with discard), and whether it has to be fast.
        options: ZeroOptions,
        /// It is durable when it completes.
        fua: bool,
    },
    /// A range is of no use any more. On a disk that was opened with discard its space goes back to the file system.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes of the range.
        len: u64,
    },
    /// Make durable what completed before this was submitted.
    Flush,
}

impl Request {
    /// What it is about.
    pub fn place(&self) -> Place {
        let (operation, offset, len) = match self {
            Self::Read { offset, buffer } => ("read", *offset, buffer.len() as u64),
            Self::Write { offset, buffer, .. } => ("write", *offset, buffer.len() as u64),
            Self::ReadInto { offset, memory } => ("read", *offset, memory.len() as u64),
            Self::WriteFrom { offset, memory, .. } => ("write", *offset, memory.len() as u64),
            Self::WriteZeroes { offset, len, .. } => ("write zeroes", *offset, *len),
            Self::Discard { offset, len } => ("discard", *offset, *len),
            Self::Flush => ("flush", 0, 0),
        };
        Place { operation, offset, len }
    }

    /// Its bytes.
    pub(crate) fn into_buffer(self) -> Buffer {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => buffer,
            Self::ReadInto { .. }
            | Self::WriteFrom { .. }
            | Self::WriteZeroes { .. }
            | Self::Discard { .. }
            | Self::Flush => Buffer::default(),
        }
    }

    /// It was not begun, and why.
    pub(crate) fn refuse(self, error: Error) -> Error {
        let place = self.place();
        error.of_request(place, self.into_buffer())
    }

    /// Carries it out, on a loop.
    async fn run(self, disk: &graph::Disk, hints: Hints) -> Result<Buffer, Error> {
        let place = self.place();
        let (result, buffer) = match self {
            Self::Read { offset, buffer } => read(disk, offset, buffer, hints).await,
            Self::Write { offset, buffer, fua } => write(disk, offset, buffer, fua, hints).await,
            Self::ReadInto { offset, memory } => {
                without_bytes(disk.read_into(offset, memory, hints, &Unpaced).await.map(drop))
            }
            Self::WriteFrom { offset, memory, fua } => {
                without_bytes(disk.write_from(offset, memory, fua, hints, &Unpaced).await)
            }
            Self::WriteZeroes { offset, len, options, fua } => {
                without_bytes(disk.zero(offset, len, options, fua, &Unpaced).await)
            }
            Self::Discard { offset, len } => without_bytes(disk.discard(offset, len, false, &Unpaced).await),
            Self::Flush => without_bytes(disk.flush().await),
        };
        match result {
            Ok(()) => Ok(buffer),
            Err(error) => Err(error.of_request(place, buffer)),
        }
    }
}

type Outcome = (Result<(), Error>, Buffer);

fn without_bytes(result: Result<(), block::Error>) -> Outcome {
    (result.map_err(Error::from), Buffer::default())
}

fn no_memory(buffer: Buffer) -> Outcome {
    let text = format!("no memory for {} bytes beside the caller's", buffer.len());
    (Err(Error::said(ErrorKind::Io, text)), buffer)
}

async fn read(disk: &graph::Disk, offset: u64, buffer: Buffer, hints: Hints) -> Outcome {
    match buffer.for_reading() {
        Ok((buf, lent)) => {
            let (result, buf) = disk.read(offset, buf, hints).await;
            (result.map(drop).map_err(Error::from), lent.after_reading(buf))
        }
        Err(buffer) => no_memory(buffer),
    }
}

async fn write(disk: &graph::Disk, offset: u64, buffer: Buffer, fua: bool, hints: Hints) -> Outcome {
    match buffer.for_writing() {
        Ok((bytes, lent)) => {
            let result = disk.write(offset, IoVec::from(bytes.clone()), fua, hints).await;
            (result.map_err(Error::from), lent.after_writing(bytes))
        }
        Err(buffer) => no_memory(buffer),
    }
}

/// Who learns how a request ended. Dropped, it says that the loop has ended.
pub(crate) enum To {
    Bytes(Reply<Buffer>),
    Nothing(Reply<()>),
    Queue(QueueReply),
}

impl To {
    pub(crate) fn send(self, result: Result<Buffer, Error>) {
        match self {
            Self::Bytes(reply) => reply.send(result),
            Self::Nothing(reply) => reply.send(result.map(drop)),
            Self::Queue(reply) => reply.send(result),
        }
    }
}

/// Something for a loop to do.
pub(crate) enum Job {
    /// A request of a disk.
    Request { inside: Inside, request: Request, to: To },
    /// Anything else.
    Work(Box<dyn FnOnce() + Send>),
}

impl Job {
    /// Begins it, on the loop of this thread.
    pub(crate) fn start(self) {
        match self {
            Self::Work(start) => start(),
            Self::Request { inside, request, to } => {
                let hints = Hints { more_waiting: inside.is_one_of_several() };
                let task = async move {
                    let result = request.run(inside.disk(), hints).await;
                    drop(inside);
                    to.send(result);
                };
                reactor::spawn_now(task).detach();
            }
        }
    }

    /// The loop has ended.
    pub(crate) fn refuse(self) {
        match self {
            // The waiting caller is notified when it is dropped.
            Self::Work(start) => drop(start),
            Self::Request { inside, request, to } => {
                drop(inside);
                to.send(Err(request.refuse(Error::loop_ended())));
            }
        }
    }
}
