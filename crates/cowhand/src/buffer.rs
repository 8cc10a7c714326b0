//! The bytes of a request: the caller's before and after, the request's in between.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memory::{IoBuf, IoBytes};

/// The bytes of a request. They are given to it, and come back when it is done, also when it failed.
///
/// Two kinds do the same and cost differently:
///
/// - [`Buffer::new`] is aligned memory from a pool: the device reads and writes it directly, nothing is copied.
/// - A `Vec<u8>` is copied once, except by a read whose bytes are in memory: that fills it directly.
///
/// A request that was dropped frees its bytes when it is done.
#[derive(Default)]
pub struct Buffer(Kind);

enum Kind {
    Aligned(IoBuf),
    Vec(Vec<u8>),
}

impl Default for Kind {
    fn default() -> Self {
        Kind::Vec(Vec::new())
    }
}

impl Buffer {
    /// `len` zero bytes of aligned memory.
    pub fn new(len: usize) -> Self {
        IoBuf::zeroed(len).into()
    }

    /// A copy of `bytes` in aligned memory.
    pub fn copy_from(bytes: &[u8]) -> Self {
        IoBuf::copy_from(bytes).into()
    }

    /// The bytes as a vector: the one that was given, or a copy of aligned memory.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Kind::Aligned(buf) => buf.to_vec(),
            Kind::Vec(vec) => vec,
        }
    }

    /// Aligned memory of the same length to be read into, and what becomes of it afterwards; `None` if there is no memory.
    pub(crate) fn for_reading(self) -> Result<(IoBuf, Lent), Self> {
        match self.0 {
            Kind::Aligned(buf) => Ok((buf, Lent(None))),
            Kind::Vec(vec) => match IoBuf::try_uninit(vec.len()) {
                Some(buf) => Ok((buf, Lent(Some(vec)))),
                None => Err(Self(Kind::Vec(vec))),
            },
        }
    }

    /// The bytes to be written, and what becomes of them afterwards; the buffer if there is no memory.
    pub(crate) fn for_writing(self) -> Result<(IoBytes, Lent), Self> {
        match self.0 {
            Kind::Aligned(buf) => Ok((buf.freeze(), Lent(None))),
            Kind::Vec(vec) => match IoBuf::try_uninit(vec.len()) {
                Some(mut buf) => {
                    buf.copy_from_slice(&vec);
                    Ok((buf.freeze(), Lent(Some(vec))))
                }
                None => Err(Self(Kind::Vec(vec))),
            },
        }
    }
}

/// The caller's own vector, while aligned memory takes its place.
pub(crate) struct Lent(Option<Vec<u8>>);

impl Lent {
    /// What was read, in what was given.
    pub(crate) fn after_reading(self, buf: IoBuf) -> Buffer {
        match self.0 {
            None => buf.into(),
            Some(mut vec) => {
                vec.copy_from_slice(&buf);
                vec.into()
            }
        }
    }

    /// What was given to be written. The kernel may still have a view of the bytes of a write that failed: then they are
    /// copied.
    pub(crate) fn after_writing(self, bytes: IoBytes) -> Buffer {
        match self.0 {
            None => bytes.thaw().unwrap_or_else(|shared| IoBuf::copy_from(&shared)).into(),
            Some(vec) => vec.into(),
        }
    }
}

impl From<IoBuf> for Buffer {
    fn from(buf: IoBuf) -> Self {
        Self(Kind::Aligned(buf))
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(vec: Vec<u8>) -> Self {
        Self(Kind::Vec(vec))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Aligned(buf) => buf,
            Kind::Vec(vec) => vec,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Aligned(buf) => buf,
            Kind::Vec(vec) => vec,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
