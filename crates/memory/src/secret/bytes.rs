//! Bytes that must not be seen.

use std::fmt;

use zeroize::Zeroize;

use crate::secret::pages::Pages;

/// A password or a key, in locked pages of its own. Overwritten when it is dropped; `Debug` does not show it, and there is no `Display`.
/// Costs a page at least, and four system calls.
pub struct Secret {
    pages: Pages,
    len: usize,
}

impl Secret {
    /// Takes `bytes`: they are copied, and overwritten where they were.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        let secret = Self::copy_of(&bytes);
        bytes.zeroize();
        secret
    }

    /// A copy of `bytes`, which stay where they are.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut secret = Self::zeroed(bytes.len());
        secret.bytes_mut().copy_from_slice(bytes);
        secret
    }

    /// `len` zero bytes, to be filled with [`Secret::bytes_mut`].
    pub fn zeroed(len: usize) -> Self {
        Self { pages: Pages::zeroed(len), len }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.pages.bytes()[..self.len]
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.pages.bytes_mut()[..self.len]
    }

    /// Cuts it to `len` bytes. What is cut off is overwritten.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.bytes_mut()[len..].zeroize();
            self.len = len;
        }
    }
}

impl Clone for Secret {
    fn clone(&self) -> Self {
        Self::copy_of(self.bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new(b"abc123".to_vec());
        assert_eq!(format!("{secret:?} {secret:#?}"), "Secret(..) Secret(..)");
        assert_eq!(secret.bytes(), b"abc123");
        assert_eq!(secret.clone().bytes(), b"abc123");
    }

    #[test]
    fn any_length_has_room_and_what_is_cut_off_is_gone() {
        for len in [0, 1, 4096, 4097, 300_000] {
            let mut secret = Secret::zeroed(len);
            assert!(secret.bytes().len() == len && secret.bytes().iter().all(|&byte| byte == 0));
            secret.bytes_mut().fill(7);
            secret.truncate(len / 2);
            secret.truncate(len);
            assert!(secret.bytes() == vec![7; len / 2]);
            assert!(secret.pages.bytes()[len / 2..].iter().all(|&byte| byte == 0));
        }
    }

    /// The kernel says of each mapping what it does with it: `lo` is locked, `dd` is not dumped.
    #[test]
    fn a_secret_is_locked_and_in_no_core_dump() {
        let secret = Secret::zeroed(100);
        let start = secret.bytes().as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let range = range.and_then(|(start, end)| {
                Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
            });
            inside = range.map_or(inside, |range| range.contains(&start));
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                assert!(flags.contains(" dd"), "{flags}");
                assert!(flags.contains(" lo") || crate::secret::why_unlocked().is_some(), "{flags}");
                return;
            }
        }
        panic!("no mapping has the secret");
    }
}
