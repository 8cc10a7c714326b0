//! The request at hand, so that another process can begin it anew.

/// Bytes of a request's header at most (NBD protocol, "Extended request message").
const HEAD_BYTES_MAX: usize = 32;

/// The header of the request that is taken in now, and what of it goes to another process.
#[derive(Debug, Default)]
pub(super) struct AtHand {
    head: [u8; HEAD_BYTES_MAX],
    /// How much of `head` counts.
    len: usize,
    /// A request whose payload had begun to come when the client was given away.
    begun: Vec<u8>,
}

impl AtHand {
    /// A request with this header is taken in from here on.
    pub(super) fn begin(&mut self, head: &[u8]) {
        self.len = head.len().min(HEAD_BYTES_MAX);
        self.head[..self.len].copy_from_slice(&head[..self.len]);
    }

    /// It goes to another process, with as much of its payload as came.
    pub(super) fn give(&mut self, payload: &[u8]) {
        self.begun = [&self.head[..self.len], payload].concat();
    }

    /// What goes to another process.
    pub(super) fn begun(&self) -> &[u8] {
        &self.begun
    }
}
