//! What a LUKS header can be refused for.

use thiserror::Error;

/// A header, a cipher or a key slot that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LuksError {
    /// The first bytes are others.
    #[error("there is no LUKS header: the first six bytes are not LUKS\\xba\\xbe")]
    Magic,
    /// Fewer bytes than a header has.
    #[error("the LUKS header is cut off: {found} bytes of {needed}")]
    Short {
        /// Bytes there.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Another version of the format.
    #[error("the LUKS header has version {found}; version 1 is supported")]
    Version {
        /// What it says.
        found: u16,
    },
    /// A name that does not end, or is no text.
    #[error("the {field} of the LUKS header is no text that ends within its field")]
    Text {
        /// Which field.
        field: &'static str,
    },
    /// A cipher, mode or hash that is not supported.
    #[error("the {what} {found:?} is not supported; supported: {allowed}")]
    Unsupported {
        /// What kind of name.
        what: &'static str,
        /// The name.
        found: String,
        /// Names that are supported.
        allowed: &'static str,
    },
    /// A number outside its limits.
    #[error("{field} of the LUKS header is {found}; allowed: {allowed}")]
    OutOfRange {
        /// Which field.
        field: String,
        /// Its value.
        found: u64,
        /// Its limits.
        allowed: String,
    },
    /// The key of a slot lies where something else is.
    #[error("the key material of slot {slot} (sectors {start} to {end}) overlaps {other}")]
    Overlap {
        /// Which slot.
        slot: usize,
        /// First sector.
        start: u64,
        /// Behind its last sector.
        end: u64,
        /// What is there.
        other: String,
    },
    /// A key of another length than the cipher takes.
    #[error("the key has {found} bytes; {cipher} takes {needed}")]
    KeyLength {
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        needed: usize,
        /// The cipher.
        cipher: String,
    },
}

impl LuksError {
    /// Whether the header is a good one of a kind that is not known here, rather than a damaged one.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Unsupported { .. })
    }
}
