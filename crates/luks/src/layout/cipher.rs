//! Names of ciphers <-> what is done to a sector.

use std::fmt;

use crate::layout::LuksError;
use crate::layout::error::shortened;

/// Bytes of a sector: places are counted in sectors, and each sector is ciphered by itself.
pub const SECTOR_BYTES: u64 = 512;

const CIPHERS: &str = "aes";
const MODES: &str = "xts-plain64, xts-plain, cbc-plain64, cbc-plain, cbc-essiv:sha256, xts-essiv:sha256";

/// AES with its key length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// 16 bytes of key.
    Aes128,
    /// 24 bytes of key.
    Aes192,
    /// 32 bytes of key.
    Aes256,
}

/// How blocks of a sector depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// IEEE 1619: two keys, every block by itself with a tweak of its own.
    Xts,
    /// Each block is mixed with the one before it.
    Cbc,
}

/// How a sector's number becomes the start of its chain, or its tweak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iv {
    /// The low 32 bits of the number.
    Plain,
    /// The number.
    Plain64,
    /// The number, encrypted with the SHA-256 digest of the key.
    EssivSha256,
}

/// Bytes that are ciphered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorSize(u16);

/// A cipher of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cipher {
    /// `cipher-alg`
    pub algorithm: Algorithm,
    /// `cipher-mode`
    pub mode: Mode,
    /// `ivgen-alg`, with `ivgen-hash-alg`
    pub iv: Iv,
}

impl Algorithm {
    /// All of them, with QEMU's names.
    pub const NAMED: [(&'static str, Self); 3] =
        [("aes-128", Self::Aes128), ("aes-192", Self::Aes192), ("aes-256", Self::Aes256)];

    /// QEMU's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128 => "aes-128",
            Self::Aes192 => "aes-192",
            Self::Aes256 => "aes-256",
        }
    }

    fn key_bytes(self) -> usize {
        match self {
            Self::Aes128 => 16,
            Self::Aes192 => 24,
            Self::Aes256 => 32,
        }
    }
}

impl Mode {
    /// All of them, with QEMU's names.
    pub const NAMED: [(&'static str, Self); 2] = [("xts", Self::Xts), ("cbc", Self::Cbc)];

    /// QEMU's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xts => "xts",
            Self::Cbc => "cbc",
        }
    }
}

impl Iv {
    /// All of them, as QEMU names the generator.
    pub const NAMED: [(&'static str, Self); 3] =
        [("plain", Self::Plain), ("plain64", Self::Plain64), ("essiv", Self::EssivSha256)];

    /// QEMU's name of the generator.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Plain64 => "plain64",
            Self::EssivSha256 => "essiv",
        }
    }

    /// QEMU's name of the generator's hash, where it has one.
    pub fn hash_name(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Plain64 => None,
            Self::EssivSha256 => Some("sha256"),
        }
    }
}

impl SectorSize {
    /// 512 bytes: of all volumes but those whose LUKS2 header says otherwise.
    pub const SMALLEST: Self = Self(SECTOR_BYTES as u16);

    /// Sectors of so many bytes.
    ///
    /// # Errors
    /// When no volume has them: 512, 1024, 2048 and 4096 are sizes. CBC takes 512 alone: a larger sector of it that was half written when
    /// the machine stopped would lose what stood behind the change; in XTS mode every block of 16 bytes stands alone.
    pub fn new(bytes: u64, mode: Mode) -> Result<Self, LuksError> {
        let allowed = match (bytes, mode) {
            (512, _) => return Ok(Self::SMALLEST),
            (1024, Mode::Xts) => return Ok(Self(1024)),
            (2048, Mode::Xts) => return Ok(Self(2048)),
            (4096, Mode::Xts) => return Ok(Self(4096)),
            (_, Mode::Xts) => "512, 1024, 2048, 4096",
            (_, Mode::Cbc) => "512 in CBC mode",
        };
        Err(LuksError::Unsupported { what: "sector size", found: bytes.to_string(), allowed })
    }

    /// Bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }
}

impl Cipher {
    /// QEMU's choice: AES-256 in XTS mode, the sector's number being the tweak.
    pub const DEFAULT: Self = Self { algorithm: Algorithm::Aes256, mode: Mode::Xts, iv: Iv::Plain64 };

    /// The cipher that a header names, with a key of `key_bytes`.
    ///
    /// # Errors
    /// For every name that is not supported, and for a key of another length.
    pub fn of_names(cipher: &str, mode: &str, key_bytes: u32) -> Result<Self, LuksError> {
        if cipher != "aes" {
            return Err(LuksError::Unsupported {
                what: "cipher",
                found: shortened(cipher),
                allowed: CIPHERS,
            });
        }
        let unsupported =
            || LuksError::Unsupported { what: "cipher mode", found: shortened(mode), allowed: MODES };
        let (chain, iv) = mode.split_once('-').ok_or_else(unsupported)?;
        let (_, chain) = Mode::NAMED.into_iter().find(|(name, _)| *name == chain).ok_or_else(unsupported)?;
        // The hash of a plain number has no effect: QEMU and dm-crypt ignore it, and QEMU writes it when it is given.
        let iv = match iv.split_once(':').unwrap_or((iv, "")) {
            ("plain", _) => Iv::Plain,
            ("plain64", _) => Iv::Plain64,
            ("essiv", "sha256") => Iv::EssivSha256,
            _ => return Err(unsupported()),
        };
        let of = |(_, algorithm)| Self { algorithm, mode: chain, iv };
        let fits = |cipher: &Self| cipher.key_bytes() as u64 == u64::from(key_bytes);
        Algorithm::NAMED.into_iter().map(of).find(fits).ok_or_else(|| LuksError::OutOfRange {
            field: "the key length".into(),
            found: u64::from(key_bytes),
            allowed: match chain {
                Mode::Xts => "32, 48 or 64 bytes".into(),
                Mode::Cbc => "16, 24 or 32 bytes".into(),
            },
        })
    }

    /// The cipher that a LUKS2 header names (`aes-xts-plain64`), with a key of `key_bytes`.
    ///
    /// # Errors
    /// For every name that is not supported, and for a key of another length.
    pub fn of_text(text: &str, key_bytes: u32) -> Result<Self, LuksError> {
        match text.split_once('-') {
            Some((cipher, mode)) => Self::of_names(cipher, mode, key_bytes),
            None => Err(LuksError::Unsupported { what: "cipher", found: shortened(text), allowed: CIPHERS }),
        }
    }

    /// Bytes of a key: XTS takes two.
    pub fn key_bytes(&self) -> usize {
        match self.mode {
            Mode::Xts => 2 * self.algorithm.key_bytes(),
            Mode::Cbc => self.algorithm.key_bytes(),
        }
    }

    /// What a header calls the mode.
    pub fn mode_text(&self) -> String {
        match self.iv.hash_name() {
            Some(hash) => format!("{}-{}:{hash}", self.mode.name(), self.iv.name()),
            None => format!("{}-{}", self.mode.name(), self.iv.name()),
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.algorithm.name(), self.mode_text())
    }
}
