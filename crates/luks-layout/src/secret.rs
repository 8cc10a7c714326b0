//! Bytes that nobody may see.

use std::fmt;

use zeroize::Zeroizing;

/// A password or a key. Overwritten when it is dropped; `Debug` does not show it, and there is no `Display`.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes `bytes`, which are not copied.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// `len` zero bytes, to be filled with [`Secret::bytes_mut`].
    pub fn zeroed(len: usize) -> Self {
        Self::new(vec![0; len])
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
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
    }
}
