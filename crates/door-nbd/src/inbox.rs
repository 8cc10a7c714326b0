//! Bytes of one connection that were received and not handled yet.

use std::io;

use export::Departure;
use memory::IoBuf;
use net::tls::Transport;

use crate::limits::RECEIVE_BYTES;

/// The connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The client has gone, perhaps in the middle of a message.
    #[error("connection closed by the client")]
    Ended,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The receive buffer.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Shortened while a receive is under way.
    buf: IoBuf,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { buf: IoBuf::uninit(RECEIVE_BYTES), start: 0, end: 0 }
    }

    /// With bytes that came before, however many.
    pub(crate) fn with(bytes: &[u8]) -> Self {
        let mut buf = IoBuf::uninit(RECEIVE_BYTES.max(bytes.len()));
        buf[..bytes.len()].copy_from_slice(bytes);
        Self { buf, start: 0, end: bytes.len() }
    }

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// The first `count` bytes are handled.
    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start);
        self.start += count;
        if self.start >= self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives at least one byte and at most `most`.
    pub(crate) async fn receive(&mut self, transport: &Transport, most: usize) -> Result<(), ReceiveError> {
        self.move_to_front();
        let mut room = self.buf.split_off(self.end);
        let rest = room.split_off(most.min(room.len()));
        let (received, room) = transport.recv(room).await;
        self.buf.rejoin(room);
        self.buf.rejoin(rest);
        match received? {
            0 => Err(ReceiveError::Ended),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// As [`Inbox::receive`]; `false` when the client is to be given away first, which loses no byte. An encrypted connection cannot be.
    pub(crate) async fn receive_unless(
        &mut self,
        transport: &Transport,
        most: usize,
        departure: &Departure,
    ) -> Result<bool, ReceiveError> {
        let Transport::Plain(stream) = transport else {
            return self.receive(transport, most).await.map(|()| true);
        };
        self.move_to_front();
        let mut room = self.buf.split_off(self.end);
        let rest = room.split_off(most.min(room.len()));
        let (received, room) = stream.recv_unless(room, departure.asked()).await;
        self.buf.rejoin(room);
        self.buf.rejoin(rest);
        match received? {
            Some(0) => Err(ReceiveError::Ended),
            Some(count) => {
                self.end += count;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Receives until `count` bytes are there; at most [`RECEIVE_BYTES`].
    pub(crate) async fn receive_at_least(
        &mut self,
        transport: &Transport,
        count: usize,
    ) -> Result<(), ReceiveError> {
        debug_assert!(count <= RECEIVE_BYTES);
        while self.bytes().len() < count {
            self.receive(transport, RECEIVE_BYTES).await?;
        }
        Ok(())
    }

    /// Moves as many bytes as are there to the front of `place`; says how many.
    pub(crate) fn take_into(&mut self, place: &mut [u8]) -> usize {
        let count = self.bytes().len().min(place.len());
        place[..count].copy_from_slice(&self.bytes()[..count]);
        self.consume(count);
        count
    }

    /// What is left is the start of one message: little, unless a handshake is at its end.
    fn move_to_front(&mut self) {
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}
