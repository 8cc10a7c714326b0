//! Appending big-endian fields to a message under construction.

/// A message under construction.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// At most `N` bytes, without a heap allocation.
#[derive(Clone, Copy, Debug)]
pub struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Short<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Put for Short<N> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        let Some(place) = self.bytes.get_mut(self.len..end) else {
            debug_assert!(false, "header longer than its array");
            return;
        };
        place.copy_from_slice(bytes);
        self.len = end;
    }
}

impl<const N: usize> std::ops::Deref for Short<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

/// Cuts `text` to at most `max` bytes at a character boundary.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    text.get(..end.unwrap_or(0)).unwrap_or(text)
}

/// The length of a string that [`cut`] has bounded.
pub(crate) fn len_u32(bytes: &[u8]) -> u32 {
    debug_assert!(u32::try_from(bytes.len()).is_ok());
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
