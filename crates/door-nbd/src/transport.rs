//! A connection's bytes, encrypted or not.

use std::io;
use std::rc::Rc;

use buffer::{IoBuf, IoVec};
use reactor::net::Stream;

use crate::tls::TlsStream;

/// One receive and one send at a time; they may overlap each other.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Rc<Stream>),
    Tls(Box<TlsStream>),
}

impl Transport {
    /// Receives into `buf`: the count of bytes, 0 at the end.
    pub(crate) async fn recv(&self, buf: IoBuf) -> (io::Result<usize>, IoBuf) {
        match self {
            Transport::Plain(stream) => stream.recv(buf).await,
            Transport::Tls(stream) => stream.recv(buf).await,
        }
    }

    /// Sends all of `data`.
    pub(crate) async fn send_all(&self, data: IoVec) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => stream.send_all(data).await,
            Transport::Tls(stream) => stream.send_all(data).await,
        }
    }

    /// Ends both directions: tasks that wait for the client see the end.
    pub(crate) fn hang_up(&self) {
        // Fails where the peer was faster.
        let _ = self.stream().shutdown(std::net::Shutdown::Both);
    }

    /// Ends when the client is gone in both directions.
    pub(crate) async fn hung_up(&self) {
        // An error says the same: nobody is there.
        let _ = self.stream().hung_up().await;
    }

    fn stream(&self) -> &Stream {
        match self {
            Transport::Plain(stream) => stream,
            Transport::Tls(tls) => tls.stream(),
        }
    }

    /// Says goodbye, where the transport has a word for it.
    pub(crate) async fn close(&self) {
        if let Transport::Tls(stream) = self {
            stream.close().await;
        }
    }
}
