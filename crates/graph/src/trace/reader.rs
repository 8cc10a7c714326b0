//! A trace, read piece by piece from wherever it is.

use std::io::{self, Read};

use thiserror::Error;

use super::{Decoder, Record, TraceError};

/// Bytes read at a time: several times the longest record, which has less than 5 KiB.
const PIECE_BYTES: usize = 64 << 10;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// It is none.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Reads records in order, in little memory.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    decoder: Decoder,
    buffer: Box<[u8]>,
    /// What of the buffer was read and not decoded yet.
    from: usize,
    to: usize,
    complete: bool,
}

impl<R: Read> Reader<R> {
    /// Of the trace that `source` gives from here on.
    pub fn new(source: R) -> Self {
        let buffer = vec![0; PIECE_BYTES].into_boxed_slice();
        Self { source, decoder: Decoder::default(), buffer, from: 0, to: 0, complete: false }
    }

    /// The next record; `None` at the end, whether the trace ends in order ([`Reader::is_complete`]) or in the
    /// middle of a record.
    ///
    /// # Errors
    /// When the source fails, or is no trace.
    pub fn read(&mut self) -> Result<Option<Record>, ReadError> {
        if self.complete {
            return Ok(None);
        }
        loop {
            let mut rest = self.buffer.get(self.from..self.to).unwrap_or_default();
            if let Some(record) = self.decoder.next(&mut rest)? {
                self.from = self.to - rest.len();
                self.complete = matches!(record, Record::End { .. });
                return Ok(Some(record));
            }
            self.from = self.to - rest.len();
            if self.fill()? == 0 {
                return Ok(None);
            }
        }
    }

    /// Whether the record was met that a server writes when it ends in order.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        loop {
            match self.source.read(&mut self.buffer[self.to..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let read = read?;
                    self.to += read;
                    return Ok(read);
                }
            }
        }
    }
}
