//! Front-ends between two processes: what the next back-end has to know to resume a connection.

use std::os::fd::OwnedFd;

use crate::mapping::WrongFile;
use crate::message::Message;

/// One message of a front-end, as vhost-user has it.
#[derive(Debug)]
pub struct Said {
    /// The request's number.
    pub request: u32,
    /// What comes behind the header.
    pub payload: Vec<u8>,
    /// What came along.
    pub fd: Option<OwnedFd>,
}

impl Said {
    pub(crate) fn new(message: &Message, fd: Option<OwnedFd>) -> Self {
        let encoded = message.encode();
        debug_assert!(encoded.is_some(), "{message:?} sets nothing up");
        let (request, payload) = encoded.unwrap_or_default();
        Self { request, payload, fd }
    }

    /// Another descriptor for the same.
    fn again(&self) -> std::io::Result<Self> {
        let fd = self.fd.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Self { request: self.request, payload: self.payload.clone(), fd })
    }
}

/// A front-end that no process serves at this moment. Its rings are at rest, with nothing in flight. Dropping it hangs up, unless another process
/// has its socket.
#[derive(Debug)]
pub struct HandedFrontEnd {
    /// Its connection.
    pub socket: OwnedFd,
    /// The name of its export.
    pub export: String,
    /// Bytes of the disk, as its driver knows them.
    pub size: u64,
    /// Whether its driver has the write cache on, if that is known.
    pub cache: Option<bool>,
    /// Bytes that discards are aligned to, as its driver knows them.
    pub discard_bytes: Option<u32>,
    /// The messages that lead to where it is.
    pub reported: Vec<Said>,
}

impl HandedFrontEnd {
    pub(crate) fn reported_again(&self) -> std::io::Result<Vec<Said>> {
        self.reported.iter().map(Said::again).collect()
    }
}

/// Why a front-end cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum NotResumed {
    /// The disk is another one.
    #[error("export {export:?} has {found} bytes; its guest knows {known}")]
    Size {
        /// Its name.
        export: String,
        /// Now.
        found: u64,
        /// As the driver knows it.
        known: u64,
    },
    /// The device cannot do what the driver uses.
    #[error("export {export:?} does not offer features {missing:#x}, which its guest uses")]
    Features {
        /// Its name.
        export: String,
        /// Those that are missing.
        missing: u64,
    },
    /// The guest uses more queues.
    #[error("export {export:?} has {queues} queues; its guest uses queue {ring}")]
    Queues {
        /// Its name.
        export: String,
        /// Now.
        queues: u16,
        /// The first one too many.
        ring: u32,
    },
    /// Its memory is not to be mapped here.
    #[error("export {export:?}: the memory of its guest is refused here: {why}")]
    Memory {
        /// Its name.
        export: String,
        /// Why.
        why: WrongFile,
    },
    /// No descriptors for it.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
