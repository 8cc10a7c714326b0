//! The first message of each side: what is to be opened, and what was found.

use std::fmt;
use std::sync::Arc;

use memory::secret::Secret;
use zeroize::Zeroizing;

use crate::rbd::message::{Cursor, Malformed};

/// Bytes of the first message at most: names are short, and paths have 4 KiB.
pub(crate) const OPENING_BYTES_MAX: usize = 64 << 10;
/// Bytes of the first answer at most; its words are cut.
pub(crate) const OPENED_BYTES_MAX: usize = 1024;
const WORDS_BYTES_MAX: usize = OPENED_BYTES_MAX - 32;

const WRITABLE: u32 = 1;
const UNCACHED: u32 = 2;
const CREATED: u32 = 4;

/// How an image is encrypted by librbd.
#[derive(Clone)]
pub struct Encryption {
    /// The format.
    pub format: EncryptionFormat,
    /// What opens it.
    pub passphrase: Arc<Secret>,
}

/// The formats of librbd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptionFormat {
    /// LUKS, version 1.
    Luks,
    /// LUKS, version 2.
    Luks2,
    /// LUKS, whatever the image's version is.
    LuksAny,
}

/// An image of a cluster, and how it is opened. Empty names are not given.
#[derive(Clone, Default)]
pub struct Opening {
    /// The pool.
    pub pool: String,
    /// A namespace of the pool.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// A snapshot of it, which is only read.
    pub snapshot: String,
    /// The configuration file; Ceph's usual places otherwise.
    pub conf: String,
    /// The user name, without "client."; `admin` otherwise.
    pub user: String,
    /// Addresses of monitors, as Ceph's `mon_host`.
    pub monitors: String,
    /// The user's key, in base64; from a keyring otherwise.
    pub key: Option<Arc<Secret>>,
    /// Kinds of authentication that the client takes, as Ceph's `auth_client_required`; those of the configuration otherwise.
    pub auth: String,
    /// How the image is encrypted, then its parent, and so on; empty: its bytes are those of the disk.
    pub encryption: Vec<Encryption>,
    /// It will be written.
    pub writable: bool,
    /// Past librbd's cache.
    pub uncached: bool,
    /// Seconds within which a monitor must answer at first; 0: Ceph's default.
    pub connect_timeout_s: u32,
    /// It is made, with so many bytes, and not opened. The cluster's defaults say how.
    pub new_bytes: Option<u64>,
}

/// The key is not shown.
impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.image)
    }
}

impl Opening {
    /// What Ceph's configuration is to say.
    pub(crate) fn settings(&self) -> Vec<(&'static str, Zeroizing<String>)> {
        let mut settings = Vec::new();
        let mut set = |name, value: &str| settings.push((name, Zeroizing::new(value.to_owned())));
        if !self.monitors.is_empty() {
            set("mon_host", &self.monitors);
        }
        if let Some(key) = self.key.as_ref().and_then(|key| std::str::from_utf8(key.bytes()).ok()) {
            set("key", key.trim());
        }
        if !self.auth.is_empty() {
            set("auth_client_required", &self.auth);
        }
        if self.connect_timeout_s > 0 {
            set("client_mount_timeout", &self.connect_timeout_s.to_string());
        }
        set("rbd_cache", if self.uncached { "false" } else { "true" });
        settings
    }

    fn texts(&self) -> [&str; 8] {
        let Self { pool, namespace, image, snapshot, conf, user, monitors, auth, .. } = self;
        [pool, namespace, image, snapshot, conf, user, monitors, auth]
    }

    /// The message; `None` if it is too long.
    pub(crate) fn encode(&self) -> Option<Zeroizing<Vec<u8>>> {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.writable, WRITABLE)
            | flag(self.uncached, UNCACHED)
            | flag(self.new_bytes.is_some(), CREATED);
        let key = self.key.as_ref().map_or(&[][..], |key| key.bytes());
        let texts = self.texts();
        let parts = texts.iter().map(|text| text.as_bytes()).chain([key]);
        let passphrases = self.encryption.iter().map(|level| 8 + level.passphrase.bytes().len());
        let bytes = 20 + parts.clone().map(|part| 4 + part.len()).chain(passphrases).sum::<usize>();
        // Never grown: no copy of the key stays behind.
        let mut message = Zeroizing::new(Vec::with_capacity(bytes));
        message.extend(flags.to_le_bytes());
        message.extend(self.connect_timeout_s.to_le_bytes());
        message.extend(self.new_bytes.unwrap_or(0).to_le_bytes());
        for part in parts {
            message.extend(u32::try_from(part.len()).ok()?.to_le_bytes());
            message.extend(part);
        }
        message.extend(u32::try_from(self.encryption.len()).ok()?.to_le_bytes());
        for Encryption { format, passphrase } in &self.encryption {
            message.extend(format.number().to_le_bytes());
            message.extend(u32::try_from(passphrase.bytes().len()).ok()?.to_le_bytes());
            message.extend(passphrase.bytes());
        }
        (message.len() <= OPENING_BYTES_MAX).then_some(message)
    }

    /// Reads the message.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Cursor(message);
        let flags = rest.u32()?;
        let connect_timeout_s = rest.u32()?;
        let new_bytes = rest.u64()?;
        let mut opening = Self {
            pool: rest.text()?,
            namespace: rest.text()?,
            image: rest.text()?,
            snapshot: rest.text()?,
            conf: rest.text()?,
            user: rest.text()?,
            monitors: rest.text()?,
            auth: rest.text()?,
            key: Some(rest.bytes()?).filter(|key| !key.is_empty()).map(|key| Arc::new(Secret::copy_of(key))),
            writable: flags & WRITABLE != 0,
            uncached: flags & UNCACHED != 0,
            connect_timeout_s,
            new_bytes: (flags & CREATED != 0).then_some(new_bytes),
            encryption: Vec::new(),
        };
        // What is not there ends it: a number of levels that is a lie costs nothing.
        for _ in 0..rest.u32()? {
            let format = EncryptionFormat::of_number(rest.u32()?)?;
            opening
                .encryption
                .push(Encryption { format, passphrase: Arc::new(Secret::copy_of(rest.bytes()?)) });
        }
        rest.end().map(|()| opening)
    }
}

impl EncryptionFormat {
    /// `rbd_encryption_format_t`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Luks => 0,
            Self::Luks2 => 1,
            Self::LuksAny => 2,
        }
    }

    fn of_number(number: u32) -> Result<Self, Malformed> {
        let known = [Self::Luks, Self::Luks2, Self::LuksAny];
        known.into_iter().find(|format| format.number() == number).ok_or(Malformed("an unknown encryption"))
    }
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenReply {
    /// It is open.
    Open {
        /// Bytes of the image.
        bytes: u64,
        /// Bytes after which its objects begin anew, never 0.
        period: u64,
    },
    /// It is not.
    Failed {
        /// The system's number; 0 for none.
        number: i32,
        /// The reason.
        words: String,
    },
}

impl OpenReply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (is_open, number, bytes, period, words) = match self {
            Self::Open { bytes, period } => (1_u32, 0, *bytes, *period, ""),
            Self::Failed { number, words } => (0, *number, 0, 0, words.as_str()),
        };
        let end = (0..=WORDS_BYTES_MAX.min(words.len())).rev().find(|&end| words.is_char_boundary(end));
        let words = words.get(..end.unwrap_or(0)).unwrap_or_default();
        let mut message = Vec::new();
        message.extend(is_open.to_le_bytes());
        message.extend(number.to_le_bytes());
        message.extend(bytes.to_le_bytes());
        message.extend(period.to_le_bytes());
        message.extend(words.as_bytes());
        message
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// When it is none, or cannot be true.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Cursor(message);
        let (is_open, number, bytes, period) = (rest.u32()?, rest.i32()?, rest.u64()?, rest.u64()?);
        match is_open {
            1 if period == 0 => Err(Malformed("an image without objects")),
            1 if i64::try_from(bytes).is_err() => Err(Malformed("an image of more than 2^63 bytes")),
            1 => rest.end().map(|()| Self::Open { bytes, period }),
            0 => {
                let words: String =
                    String::from_utf8_lossy(rest.0).chars().filter(|c| !c.is_control()).collect();
                Ok(Self::Failed { number, words })
            }
            _ => Err(Malformed("an unknown result")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_arrives_and_a_message_that_is_cut_is_refused() {
        let level = |format| Encryption { format, passphrase: Arc::new(Secret::copy_of(b"hush")) };
        let opening = Opening {
            pool: "p".into(),
            namespace: "n".into(),
            image: "i".into(),
            snapshot: "s".into(),
            conf: "/c".into(),
            user: "u".into(),
            monitors: "[::1]:3300".into(),
            auth: "none;cephx".into(),
            encryption: vec![level(EncryptionFormat::Luks2), level(EncryptionFormat::LuksAny)],
            key: Some(Arc::new(Secret::copy_of(b"aGVsbG8="))),
            writable: true,
            uncached: true,
            connect_timeout_s: 30,
            new_bytes: Some(1 << 40),
        };
        let message = opening.encode().unwrap();
        let arrived = Opening::decode(&message).unwrap();
        assert_eq!((arrived.texts(), arrived.writable, arrived.uncached), (opening.texts(), true, true));
        assert_eq!((arrived.key.unwrap().bytes(), arrived.connect_timeout_s), (&b"aGVsbG8="[..], 30));
        assert_eq!(arrived.new_bytes, Some(1 << 40));
        let levels: Vec<_> =
            arrived.encryption.iter().map(|level| (level.format, level.passphrase.bytes())).collect();
        let expected =
            [EncryptionFormat::Luks2, EncryptionFormat::LuksAny].map(|format| (format, &b"hush"[..]));
        assert_eq!(levels, expected);
        let opened = Opening { new_bytes: None, ..opening.clone() };
        assert_eq!(Opening::decode(&opened.encode().unwrap()).unwrap().new_bytes, None);
        for len in 0..message.len() {
            assert!(Opening::decode(&message[..len]).is_err(), "{len}");
        }
        assert!(!format!("{opening:?}").contains("aGVs"));
        assert!(Opening { image: "x".repeat(OPENING_BYTES_MAX), ..opening }.encode().is_none());
    }

    #[test]
    fn what_a_worker_says_it_found_is_checked() {
        let open = OpenReply::Open { bytes: 1 << 40, period: 4 << 20 };
        assert_eq!(OpenReply::decode(&open.encode()), Ok(open.clone()));
        let failed = OpenReply::Failed { number: 2, words: "é".repeat(1000) };
        assert!(failed.encode().len() <= OPENED_BYTES_MAX);
        assert!(matches!(OpenReply::decode(&failed.encode()), Ok(OpenReply::Failed { number: 2, .. })));
        for len in 0..24 {
            assert!(OpenReply::decode(&open.encode()[..len]).is_err(), "{len}");
        }
        assert!(OpenReply::decode(&[&open.encode()[..], b"x"].concat()).is_err());
        assert!(OpenReply::decode(&OpenReply::Open { bytes: 1, period: 0 }.encode()).is_err());
        assert!(OpenReply::decode(&OpenReply::Open { bytes: u64::MAX, period: 1 }.encode()).is_err());
        assert!(OpenReply::decode(&[9; 24]).is_err());
    }
}
