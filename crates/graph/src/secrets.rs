//! Passwords by id, as `--object secret` and object-add give them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use storage_luks::{Secret, base64};
use thiserror::Error;

/// Bytes of a secret at most: passwords are short, and a wrong file is not read whole.
pub const SECRET_BYTES_MAX: usize = 2 << 20;

/// Where systemd puts the credentials of a unit.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Secrets by id. Clones are the same table; the default is the process's.
#[derive(Clone)]
pub struct Secrets(Arc<Mutex<BTreeMap<String, Secret>>>);

/// A secret that is not there, or cannot be made.
#[derive(Debug, Error)]
pub enum SecretError {
    /// Nobody gave it.
    #[error(
        "there is no secret {id:?}: give --object secret,id={id},file=PATH (or a systemd credential of that name)"
    )]
    Missing {
        /// Which.
        id: String,
    },
    /// There is one already.
    #[error("there is a secret {id:?} already")]
    Twice {
        /// Which.
        id: String,
    },
    /// Its file cannot be read.
    #[error("cannot read secret {id:?} from {}: {source}", .path.display())]
    Read {
        /// Which.
        id: String,
        /// Its file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// More than a password has.
    #[error("secret {id:?} has more than {SECRET_BYTES_MAX} bytes")]
    TooLong {
        /// Which.
        id: String,
    },
    /// It is not what `format=base64` says.
    #[error("secret {id:?} is not base64")]
    NotBase64 {
        /// Which.
        id: String,
    },
    /// Neither or both of `data` and `file`.
    #[error("secret {id:?} needs data=TEXT or file=PATH, one of them")]
    Source {
        /// Which.
        id: String,
    },
    /// A kind of secret that is not supported.
    #[error("secret {id:?}: {what}")]
    Unsupported {
        /// Which.
        id: String,
        /// What it is, and what is there instead.
        what: &'static str,
    },
}

/// How a secret is given (QEMU's object `secret`).
#[derive(Clone, Default)]
pub struct SecretOptions {
    /// `data`: itself.
    pub data: Option<Secret>,
    /// `file`: the file that holds it, all its bytes.
    pub file: Option<PathBuf>,
    /// `format=base64`: its bytes in base64.
    pub base64: bool,
    /// `keyid`: another secret deciphers it. Refused.
    pub keyid: bool,
}

impl Default for Secrets {
    fn default() -> Self {
        static OF_PROCESS: LazyLock<Secrets> = LazyLock::new(|| Secrets(Arc::default()));
        OF_PROCESS.clone()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl Secrets {
    /// A table of its own, with nothing in it.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Adds the secret called `id`. Reads its file, if it has one.
    ///
    /// # Errors
    /// When there is one of that name, or it cannot be made.
    pub fn add(&self, id: &str, options: SecretOptions) -> Result<(), SecretError> {
        let secret = options.read(id)?;
        let mut table = self.0.lock();
        if table.contains_key(id) {
            return Err(SecretError::Twice { id: id.into() });
        }
        table.insert(id.into(), secret);
        Ok(())
    }

    /// Forgets it. Disks that were opened with it stay open. Says whether it was there.
    pub fn remove(&self, id: &str) -> bool {
        self.0.lock().remove(id).is_some()
    }

    /// The secret called `id`; if nobody gave one, the systemd credential of that name.
    ///
    /// # Errors
    /// When there is neither.
    pub fn get(&self, id: &str) -> Result<Secret, SecretError> {
        if let Some(secret) = self.0.lock().get(id) {
            return Ok(secret.clone());
        }
        let is_name = !id.is_empty() && !id.contains('/') && id != "." && id != "..";
        match std::env::var_os(CREDENTIALS) {
            Some(directory) if is_name => {
                let path = PathBuf::from(directory).join(id);
                match path.exists() {
                    true => SecretOptions { file: Some(path), ..SecretOptions::default() }.read(id),
                    false => Err(SecretError::Missing { id: id.into() }),
                }
            }
            _ => Err(SecretError::Missing { id: id.into() }),
        }
    }
}

impl SecretOptions {
    fn read(self, id: &str) -> Result<Secret, SecretError> {
        if self.keyid {
            let what = "it is enciphered with another one (keyid), which is not supported; give file=PATH or a systemd credential";
            return Err(SecretError::Unsupported { id: id.into(), what });
        }
        let secret = match (self.data, self.file) {
            (Some(data), None) => data,
            (None, Some(path)) => read_file(id, path)?,
            _ => return Err(SecretError::Source { id: id.into() }),
        };
        if secret.bytes().len() > SECRET_BYTES_MAX {
            return Err(SecretError::TooLong { id: id.into() });
        }
        match self.base64 {
            true => decoded(secret.bytes()).ok_or_else(|| SecretError::NotBase64 { id: id.into() }),
            false => Ok(secret),
        }
    }
}

fn read_file(id: &str, path: PathBuf) -> Result<Secret, SecretError> {
    use std::io::Read;
    // Room for all at once: a buffer that grows would leave copies.
    let mut secret = Secret::zeroed(SECRET_BYTES_MAX + 1);
    let mut len = 0;
    let failed = |source| SecretError::Read { id: id.into(), path: path.clone(), source };
    let mut file = std::fs::File::open(&path).map_err(failed)?;
    loop {
        match file.read(&mut secret.bytes_mut()[len..]).map_err(failed)? {
            0 => break,
            read => len += read,
        }
        if len > SECRET_BYTES_MAX {
            return Err(SecretError::TooLong { id: id.into() });
        }
    }
    Ok(Secret::new(secret.bytes()[..len].to_vec()))
}

/// The bytes of base64 text. White space is left out, as QEMU does.
fn decoded(text: &[u8]) -> Option<Secret> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    base64::decode(Secret::new(digits).bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Option<Secret> {
        Some(Secret::new(text.as_bytes().to_vec()))
    }

    #[test]
    fn base64_is_decoded_and_nothing_else_is() {
        let table = [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v\n", Some("foo")),
            ("Zm9vYmFy", Some("foobar")),
            ("Zm9", None),
            ("Zm9=", None),
            ("Z===", None),
            ("Zm-v", None),
        ];
        for (text, expected) in table {
            let found = decoded(text.as_bytes()).map(|secret| secret.bytes().to_vec());
            assert_eq!(found, expected.map(|text| text.as_bytes().to_vec()), "{text:?}");
        }
    }

    #[test]
    fn a_secret_is_given_once_and_in_one_way() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("password");
        std::fs::write(&file, "abc123\n").unwrap();
        let secrets = Secrets::new();
        let given = |options| secrets.add("sec0", options).map_err(|error| error.to_string());
        assert_eq!(
            given(SecretOptions::default()),
            Err("secret \"sec0\" needs data=TEXT or file=PATH, one of them".into())
        );
        assert!(
            given(SecretOptions { data: data("YWJj*"), base64: true, ..SecretOptions::default() }).is_err()
        );
        assert!(given(SecretOptions { data: data("x"), keyid: true, ..SecretOptions::default() }).is_err());
        // Every byte of the file is the password's, as QEMU has it.
        given(SecretOptions { file: Some(file), ..SecretOptions::default() }).unwrap();
        assert_eq!(secrets.get("sec0").unwrap().bytes(), b"abc123\n");
        let twice = given(SecretOptions { data: data("x"), ..SecretOptions::default() });
        assert_eq!(twice, Err("there is a secret \"sec0\" already".into()));
        assert_eq!(format!("{secrets:?}"), "{\"sec0\"}");
        assert!(secrets.remove("sec0") && !secrets.remove("sec0"));
        assert!(matches!(secrets.get("sec0"), Err(SecretError::Missing { .. })));
    }
}
