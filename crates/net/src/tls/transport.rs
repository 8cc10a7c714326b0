//! A connection's bytes, encrypted or not.

use std::io;
use std::sync::Arc;

use memory::{IoBuf, IoVec};
use reactor::net::Stream;

use crate::tls::stream::TlsStream;

/// A connection's bytes. One receive and one send at a time; they may overlap each other.
#[derive(Debug)]
pub enum Transport {
    /// As they are.
    Plain(Arc<Stream>),
    /// Encrypted.
    Tls(Box<TlsStream>),
}

impl Transport {
    /// Receives into `buf`: the count of bytes, 0 at the end.
    pub async fn recv(&self, buf: IoBuf) -> (io::Result<usize>, IoBuf) {
        match self {
            Transport::Plain(stream) => stream.recv(buf).await,
            Transport::Tls(stream) => stream.recv(buf).await,
        }
    }

    /// Sends all of `data`.
    ///
    /// # Errors
    /// When the peer is gone.
    pub async fn send_all(&self, data: IoVec) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => stream.send_all(data).await,
            Transport::Tls(stream) => stream.send_all(data).await,
        }
    }

    /// Ends both directions: tasks that wait for the peer see the end.
    pub fn hang_up(&self) {
        // Fails where the peer was faster.
        let _ = self.stream().shutdown(std::net::Shutdown::Both);
    }

    /// Ends when the peer is gone in both directions.
    pub async fn hung_up(&self) {
        // An error says the same: no peer is there.
        let _ = self.stream().hung_up().await;
    }

    /// The stream below.
    pub fn stream(&self) -> &Stream {
        match self {
            Transport::Plain(stream) => stream,
            Transport::Tls(tls) => tls.stream(),
        }
    }

    /// Says goodbye, where the transport has a word for it.
    pub async fn close(&self) {
        if let Transport::Tls(stream) = self {
            stream.close().await;
        }
    }
}
