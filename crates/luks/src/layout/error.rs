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
    #[error("the LUKS header has version {found}; {supported} supported")]
    Version {
        /// What it says.
        found: u16,
        /// Which are, here, with the verb.
        supported: &'static str,
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
    /// A copy of a LUKS2 header that was not written whole, or was damaged.
    #[error("the checksum of the LUKS2 header at {at} is wrong")]
    Checksum {
        /// Where the copy begins in its file.
        at: u64,
    },
    /// The metadata of a LUKS2 header is no JSON.
    #[error("the metadata of the LUKS2 header cannot be read: {reason}")]
    NotJson {
        /// What is wrong with it.
        reason: String,
    },
    /// A member of the metadata that is not there, has another type, or is outside its limits.
    #[error("{member} of the LUKS2 header is {found}; allowed: {allowed}")]
    Member {
        /// Which, with the members that it stands in: `keyslots.0.kdf.time`.
        member: String,
        /// What stands there, shortened.
        found: String,
        /// Its limits.
        allowed: String,
    },
    /// A member of the metadata that asks for what is not supported.
    #[error("{member} of the LUKS2 header is {found}, which is not supported; {instead}")]
    NotSupported {
        /// Which.
        member: String,
        /// What stands there, shortened.
        found: String,
        /// What is supported, or what to do.
        instead: String,
    },
    /// Two parts of a LUKS2 header lie in one place.
    #[error("{part} of the LUKS2 header (bytes {start} to {end}) overlaps {other}")]
    AreaOverlap {
        /// Which part.
        part: String,
        /// First byte.
        start: u64,
        /// Behind its last byte.
        end: u64,
        /// What is there.
        other: String,
    },
    /// There is too little memory to try a password.
    #[error("a key slot needs {needed_kib} KiB of memory to try a password (argon2), which are not there")]
    NoMemory {
        /// KiB.
        needed_kib: u32,
    },
    /// A header whose data is in another file.
    #[error("the LUKS header has its disk in another file; give driver=luks,file=DATA,header=HEADER")]
    Detached,
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
    /// The program was built without ciphers.
    #[error("this program was built without ciphers (the feature luks) and neither encrypts nor decrypts")]
    NotBuilt,
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
        matches!(
            self,
            Self::Version { .. }
                | Self::Unsupported { .. }
                | Self::NotSupported { .. }
                | Self::Detached
                | Self::NotBuilt
        )
    }
}

/// Text of a header as a message shows it: not all of a long one.
pub(crate) fn shortened(text: &str) -> String {
    /// Longer than any name that means something.
    const CHARS_MAX: usize = 64;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
