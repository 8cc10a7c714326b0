//! Bytes that a client has received from its server and not looked at yet.

use std::io;

use memory::IoBuf;

use crate::tls::transport::Transport;

/// Received at a time: many small replies, or the start of a large one.
const INBOX_BYTES: usize = 64 << 10;
/// What is missing of a payload is received straight into its buffer from this many bytes on; less comes with what follows it.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// What was received and not looked at yet, in 64 KiB: no message head may be longer. Payloads go past it into their own buffers.
#[derive(Debug)]
pub struct Inbox {
    buf: IoBuf,
    start: usize,
    end: usize,
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it")
}

impl Default for Inbox {
    fn default() -> Self {
        Self { buf: IoBuf::uninit(INBOX_BYTES), start: 0, end: 0 }
    }
}

impl Inbox {
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(self.start..self.end).unwrap_or_default()
    }

    /// The first `count` bytes are done with.
    pub fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start);
        self.start = self.end.min(self.start + count);
    }

    /// Receives until there are `more` bytes more than now.
    ///
    /// # Errors
    /// When the connection ends before, or a message is longer than the inbox: none is that is not refused before.
    pub async fn receive(&mut self, transport: &Transport, more: usize) -> io::Result<()> {
        let wanted = self.bytes().len() + more;
        if wanted > self.buf.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is longer than any allowed"));
        }
        if self.start == self.end || self.start + wanted > self.buf.len() {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < wanted {
            let tail = self.buf.split_off(self.end);
            let (result, tail) = transport.recv(tail).await;
            self.buf.rejoin(tail);
            match result? {
                0 => return Err(ended()),
                count => self.end += count,
            }
        }
        Ok(())
    }

    /// Takes `len` bytes into `buf` from `at` on.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn take(
        &mut self,
        transport: &Transport,
        mut buf: IoBuf,
        at: usize,
        len: usize,
    ) -> io::Result<IoBuf> {
        let (mut at, stop) = (at, at + len);
        while at < stop {
            if self.bytes().is_empty() && stop - at >= DIRECT_BYTES_MIN {
                let mut target = buf.split_off(at);
                let behind = target.split_off(stop - at);
                let (result, mut target) = transport.recv(target).await;
                target.rejoin(behind);
                buf.rejoin(target);
                match result? {
                    0 => return Err(ended()),
                    count => at += count,
                }
                continue;
            }
            if self.bytes().is_empty() {
                self.receive(transport, 1).await?;
            }
            let there = self.bytes();
            let count = there.len().min(stop - at);
            if let (Some(target), Some(there)) = (buf.get_mut(at..at + count), there.get(..count)) {
                target.copy_from_slice(there);
            }
            self.consume(count);
            at += count;
        }
        Ok(buf)
    }
}
