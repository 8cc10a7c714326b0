//! Passphrases of images that librbd encrypts.

use std::ffi::c_int;
use std::io;

use super::image::check;
use super::library::{Encrypting, Handle, Options, Spec};
use crate::rbd::opening::{Encryption, EncryptionFormat};

/// `rbd_encryption_luks1_format_options_t` and that of version 2. The algorithm counts for new images only.
#[repr(C)]
struct OfVersion {
    algorithm: c_int,
    passphrase: *const u8,
    bytes: usize,
}

/// `rbd_encryption_luks_format_options_t`.
#[repr(C)]
struct OfAnyVersion {
    passphrase: *const u8,
    bytes: usize,
}

/// One level, and what its specification points to.
struct Level<'a> {
    versioned: OfVersion,
    any: OfAnyVersion,
    given: &'a Encryption,
}

impl<'a> Level<'a> {
    fn new(given: &'a Encryption) -> Self {
        let passphrase = given.passphrase.bytes();
        let (start, bytes) = (passphrase.as_ptr(), passphrase.len());
        let versioned = OfVersion { algorithm: 0, passphrase: start, bytes };
        Self { versioned, any: OfAnyVersion { passphrase: start, bytes }, given }
    }

    fn spec(&self, format: EncryptionFormat) -> Spec {
        let (options, options_bytes): (Options, usize) = match format {
            EncryptionFormat::LuksAny => ((&raw const self.any).cast(), size_of::<OfAnyVersion>()),
            EncryptionFormat::Luks | EncryptionFormat::Luks2 => {
                ((&raw const self.versioned).cast(), size_of::<OfVersion>())
            }
        };
        Spec { format: format.number() as c_int, options, options_bytes }
    }
}

/// Has the library decrypt the image, and its parents, from now on.
///
/// # Errors
/// When the library is too old, the image is not encrypted so, or the passphrase is wrong.
pub fn load(library: &Encrypting, image: Handle, encryption: &[Encryption]) -> io::Result<()> {
    let too_old = |what: &str, since: &str| {
        let words = format!("librbd.so.1 {what}; allowed: that of Ceph {since} or newer");
        io::Error::new(io::ErrorKind::Unsupported, words)
    };
    let levels: Vec<_> = encryption.iter().map(Level::new).collect();
    let [level] = levels.as_slice() else {
        let specs: Vec<_> = levels.iter().map(|level| level.spec(level.given.format)).collect();
        let load =
            library.load_levels.ok_or_else(|| too_old("decrypts no parents of images", "18 (Reef)"))?;
        // SAFETY: an open image without requests; the specifications point to options that live until the call ends.
        return check(unsafe { load(image, specs.as_ptr(), specs.len()) }, "encryption");
    };
    let load = library.load.ok_or_else(|| too_old("decrypts no images", "16 (Pacific)"))?;
    let load = |format| {
        let spec = level.spec(format);
        // SAFETY: an open image without requests; options that live until the call ends.
        unsafe { load(image, spec.format, spec.options, spec.options_bytes) }
    };
    let is_old = library.load_levels.is_none();
    let loaded = match level.given.format {
        // Libraries before Ceph 18 know the versions alone, and answer EINVAL for another one.
        EncryptionFormat::LuksAny if is_old => match load(EncryptionFormat::Luks2) {
            code if code == -libc::EINVAL => load(EncryptionFormat::Luks),
            code => code,
        },
        format => load(format),
    };
    check(loaded, "encryption")
}
