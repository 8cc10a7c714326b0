//! Messages on a stream: a head of two lengths, with which descriptors come along; a JSON object; bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use memory::{IoBuf, IoBytes};
use reactor::net::Stream;

use super::message::Message;

const HEAD_BYTES: usize = 8;

/// Bytes of JSON in a message at most.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Bytes behind it at most: the beginning of one request of a client, which has at most 32 MiB of data.
const DATA_BYTES_MAX: usize = 40 << 20;

/// Pause before a head is sent again to a peer that reads slowly.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// What came.
#[derive(Debug)]
pub struct Received {
    /// The object.
    pub message: Message,
    /// Bytes that belong to it.
    pub data: Vec<u8>,
    /// Descriptors that belong to it.
    pub fds: Vec<OwnedFd>,
}

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The peer is gone.
    #[error("the other process has ended, or hung up")]
    Ended,
    /// Too late.
    #[error("the other process said nothing for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// Longer than any.
    #[error(
        "a message has {text} bytes of text and {data} of data; at most {TEXT_BYTES_MAX} and {DATA_BYTES_MAX} are allowed"
    )]
    TooLong {
        /// As it came.
        text: usize,
        /// As it came.
        data: usize,
    },
    /// No message that is known.
    #[error("a message cannot be understood: {0}")]
    Text(#[from] serde_json::Error),
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// One end of the conversation.
#[derive(Debug)]
pub struct Line(Stream);

impl Line {
    /// Over a connected Unix socket.
    pub fn new(stream: Stream) -> Self {
        Self(stream)
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.0
    }

    /// Sends a message alone.
    ///
    /// # Errors
    /// When the peer is gone.
    pub async fn say(&self, message: &Message) -> Result<(), LineError> {
        self.send(message, &[], &[]).await
    }

    /// Sends a message with bytes and at most 16 descriptors, which are copied.
    ///
    /// # Errors
    /// When the peer is gone.
    pub async fn send(
        &self,
        message: &Message,
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), LineError> {
        let text = serde_json::to_vec(message)?;
        let [text_bytes, data_bytes] =
            [text.len(), data.len()].map(|len| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        let head = [text_bytes, data_bytes].concat();
        loop {
            match self.0.send_with_fds_now(&head, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => reactor::sleep(FULL_PAUSE).await,
                sent => break sent?,
            }
        }
        self.0.send_all(IoBytes::copy_from(&text).into()).await?;
        Ok(self.0.send_all(IoBytes::copy_from(data).into()).await?)
    }

    /// The next message, within `patience`.
    ///
    /// # Errors
    /// When none comes, or it is none.
    pub async fn receive(&self, patience: Duration) -> Result<Received, LineError> {
        reactor::within(patience, self.next()).await.unwrap_or(Err(LineError::Silent(patience)))
    }

    async fn next(&self) -> Result<Received, LineError> {
        let mut fds = Vec::new();
        let head = self.bytes(HEAD_BYTES, &mut fds).await?;
        let length = |at: usize| {
            let bytes =
                head.get(at..at + 4).and_then(|bytes| bytes.first_chunk().copied()).unwrap_or_default();
            u32::from_le_bytes(bytes) as usize
        };
        let (text, data) = (length(0), length(4));
        if text > TEXT_BYTES_MAX || data > DATA_BYTES_MAX {
            return Err(LineError::TooLong { text, data });
        }
        let message = serde_json::from_slice(&self.bytes(text, &mut fds).await?)?;
        let data = self.bytes(data, &mut fds).await?;
        Ok(Received { message, data, fds })
    }

    async fn bytes(&self, len: usize, fds: &mut Vec<OwnedFd>) -> Result<Vec<u8>, LineError> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let room = (len - bytes.len()).min(1 << 20);
            let (count, buf) = self.0.recv_with_fds(IoBuf::zeroed(room), fds).await;
            match count? {
                0 => return Err(LineError::Ended),
                count => bytes.extend_from_slice(&buf[..count]),
            }
        }
        Ok(bytes)
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
