//! A list of byte ranges that are written as one.

use smallvec::SmallVec;

use crate::IoBytes;

/// What one vectored write carries, in order. Usually one part, three for a copy-on-write.
#[derive(Debug, Default)]
pub struct IoVec {
    parts: SmallVec<[IoBytes; 3]>,
    len: usize,
}

impl Clone for IoVec {
    fn clone(&self) -> Self {
        // Requests without data have one, too, and are cloned often.
        if self.is_empty() { Self::new() } else { Self { parts: self.parts.clone(), len: self.len } }
    }
}

impl IoVec {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `part` at the end; empty parts are left out.
    pub fn push(&mut self, part: IoBytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Adds all of `other` at the end.
    pub fn append(&mut self, other: IoVec) {
        self.len += other.len;
        self.parts.extend(other.parts);
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts in order, none empty.
    pub fn parts(&self) -> &[IoBytes] {
        &self.parts
    }

    /// Whether every byte is zero.
    pub fn is_zero(&self) -> bool {
        self.parts.iter().all(IoBytes::is_zero)
    }

    /// The bytes from `from` (included) to `to` (excluded). No copy.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn slice(&self, from: usize, to: usize) -> IoVec {
        assert!(from <= to && to <= self.len, "slice {from}..{to} of {} bytes", self.len);
        let mut out = IoVec::new();
        let mut at = 0;
        for part in &self.parts {
            let (start, end) = (from.max(at), to.min(at + part.len()));
            if start < end {
                out.push(part.slice(start - at, end - at));
            }
            at += part.len();
        }
        out
    }

    /// All bytes in one buffer; copies unless there is exactly one part.
    pub fn to_bytes(&self) -> IoBytes {
        match self.parts.as_slice() {
            [one] => one.clone(),
            parts => {
                let mut joined = crate::IoBuf::uninit(self.len);
                let mut at = 0;
                for part in parts {
                    joined[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                joined.freeze()
            }
        }
    }
}

impl From<IoBytes> for IoVec {
    fn from(part: IoBytes) -> Self {
        let mut vec = IoVec::new();
        vec.push(part);
        vec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_across_parts_holds_the_same_bytes() {
        let mut vec = IoVec::new();
        vec.push(IoBytes::copy_from(b"abc"));
        vec.push(IoBytes::copy_from(b""));
        vec.push(IoBytes::copy_from(b"defg"));
        for from in 0..=7 {
            for to in from..=7 {
                assert_eq!(&vec.slice(from, to).to_bytes()[..], &b"abcdefg"[from..to]);
            }
        }
    }
}
