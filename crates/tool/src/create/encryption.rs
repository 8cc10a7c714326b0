//! `-o encrypt.*`: how a new image is encrypted.

use std::time::Duration;

use graph::probe::Format;
use graph::{SecretError, Secrets};
use luks::{Algorithm, Cipher, Hash, ITER_TIME_DEFAULT, Iv, Mode, NewVolume};

use super::options::{BadOption, NewImage};

/// The hashes that QEMU takes for `ivgen-hash-alg`. None has an effect but with essiv, where we have SHA-256 alone.
pub const IV_HASHES: &[&str] = &["md5", "sha1", "sha224", "sha256", "sha384", "sha512", "ripemd160", "sm3"];

/// What was given of it; the rest is QEMU's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// `encrypt.format=luks`
    pub format: bool,
    /// `encrypt.key-secret`
    pub key_secret: Option<String>,
    /// `encrypt.cipher-alg`
    pub algorithm: Algorithm,
    /// `encrypt.cipher-mode`
    pub mode: Mode,
    /// `encrypt.ivgen-alg`
    pub iv: Iv,
    /// `encrypt.ivgen-hash-alg` was given: one of [`IV_HASHES`].
    pub iv_hash: Option<&'static str>,
    /// `encrypt.hash-alg`
    pub hash: Hash,
    /// `encrypt.iter-time`
    pub iter_time_ms: u32,
    /// `detached-header`, of a LUKS file.
    pub is_detached: bool,
}

impl Encryption {
    /// That of `image`, to be changed.
    pub fn of(image: &mut NewImage) -> &mut Self {
        let Cipher { algorithm, mode, iv } = Cipher::DEFAULT;
        image.encryption.get_or_insert(Self {
            format: false,
            key_secret: None,
            algorithm,
            mode,
            iv,
            iv_hash: None,
            hash: Hash::Sha256,
            // Two seconds.
            iter_time_ms: ITER_TIME_DEFAULT.as_millis() as u32,
            is_detached: false,
        })
    }

    /// How data of a new image of `format` is ciphered.
    ///
    /// # Errors
    /// When a part is missing that the others need.
    pub fn cipher(&self, format: Format) -> Result<Cipher, BadOption> {
        let cipher = Cipher { algorithm: self.algorithm, mode: self.mode, iv: self.iv };
        if let (Iv::EssivSha256, Some(hash)) = (self.iv, self.iv_hash.filter(|hash| *hash != "sha256")) {
            let prefix = if format == Format::Luks { "" } else { "encrypt." };
            let what = format!("with {prefix}ivgen-alg=essiv allowed: sha256");
            return Err(BadOption(format!("-o {prefix}ivgen-hash-alg is {hash}; {what}")));
        }
        if format == Format::Luks {
            return match self.key_secret {
                Some(_) => Ok(cipher),
                None => {
                    Err(BadOption("a LUKS file needs -o key-secret=ID, the secret with its password".into()))
                }
            };
        }
        match &self.key_secret {
            Some(id) if !self.format => {
                let what = "an image is encrypted with encrypt.format=luks";
                Err(BadOption(format!("-o encrypt.key-secret={id}: {what}")))
            }
            None if !self.format => {
                Err(BadOption("-o encrypt.*: an image is encrypted with encrypt.format=luks".into()))
            }
            None => {
                let what = "it needs encrypt.key-secret=ID, the secret with the password";
                Err(BadOption(format!("-o encrypt.format=luks: {what}")))
            }
            Some(_) => Ok(cipher),
        }
    }

    /// What is made, with the password.
    ///
    /// # Errors
    /// When there is no such secret.
    pub fn volume(&self) -> Result<NewVolume, SecretError> {
        Ok(NewVolume {
            cipher: Cipher { algorithm: self.algorithm, mode: self.mode, iv: self.iv },
            hash: self.hash,
            iter_time: Duration::from_millis(self.iter_time_ms.into()),
            password: Secrets::default().get(self.key_secret.as_deref().unwrap_or_default())?,
            is_detached: self.is_detached,
        })
    }
}

/// What `word` names.
pub fn named<T: Copy>(known: &[(&str, T)], word: &str) -> Option<T> {
    known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}
