//! Passwords by id, as `--object secret` and object-add give them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use luks::{Secret, base64, read_key};
use parking_lot::Mutex;
use thiserror::Error;

/// Bytes of a secret at most: passwords are short, and a wrong file is not read whole.
pub const SECRET_BYTES_MAX: usize = 2 << 20;

/// Where systemd puts the credentials of a unit.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// A password file is read into so much room at first: most have less.
const FILE_BYTES_FIRST: usize = 4096;

/// A source of passwords that a user types.
pub trait Ask: fmt::Debug + Send + Sync {
    /// The password of the image called `image`. Blocks the thread for as long as the user takes.
    ///
    /// # Errors
    /// When no password is entered.
    fn password(&self, image: &str) -> io::Result<Secret>;
}

/// Secrets by id. Clones are the same table; the default is the process's.
#[derive(Clone)]
pub struct Secrets(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    /// By the id that was given.
    by_id: BTreeMap<String, Secret>,
    /// Asks for a password that has no id.
    asked: Option<Arc<dyn Ask>>,
    /// Passwords that were entered, by the image's name: an image that is opened again is not asked for
    /// again.
    answers: BTreeMap<String, Secret>,
    /// An image that is not encrypted opens, though a secret was given for it.
    unneeded: bool,
}

/// A secret that is not there, or cannot be made.
#[derive(Debug, Error)]
pub enum SecretError {
    /// No secret of that id was given.
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
        source: io::Error,
    },
    /// A key of the kernel's keyrings cannot be read.
    #[error("cannot read secret {id:?} from key {serial} of the kernel's keyrings: {source}")]
    Key {
        /// Which.
        id: String,
        /// The key's number.
        serial: i32,
        /// Why not.
        source: io::Error,
    },
    /// A password was asked for, and none was entered.
    #[error("no password was given for {image}: {source}")]
    NoAnswer {
        /// The image.
        image: String,
        /// Why not.
        source: io::Error,
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
    #[error("secret {id:?} needs data=TEXT or file=PATH, one of them (a secret_keyring: serial=NUMBER)")]
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

/// How a secret is given (QEMU's objects `secret` and `secret_keyring`).
#[derive(Clone, Default)]
pub struct SecretOptions {
    /// `data`: itself.
    pub data: Option<Secret>,
    /// `file`: the file that holds it, all its bytes.
    pub file: Option<PathBuf>,
    /// `serial` of `secret_keyring`: the kernel's key that holds it, read now.
    pub serial: Option<i32>,
    /// `format=base64`: its bytes in base64.
    pub base64: bool,
    /// `keyid`: the secret is encrypted with another one. Refused.
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
        f.debug_set().entries(self.0.lock().by_id.keys()).finish()
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
        let table = &mut self.0.lock().by_id;
        if table.contains_key(id) {
            return Err(SecretError::Twice { id: id.into() });
        }
        table.insert(id.into(), secret);
        Ok(())
    }

    /// Forgets it. Disks that were opened with it stay open. Says whether it was there.
    pub fn remove(&self, id: &str) -> bool {
        self.0.lock().by_id.remove(id).is_some()
    }

    /// What `look` makes of the first secret of which it makes something.
    pub fn find<T>(&self, look: impl FnMut(&Secret) -> Option<T>) -> Option<T> {
        self.0.lock().by_id.values().find_map(look)
    }

    /// From now on `asked` asks for the password of an image that has none by id. With `None` no password is
    /// asked for.
    pub fn ask(&self, asked: Option<Arc<dyn Ask>>) {
        self.0.lock().asked = asked;
    }

    /// From now on an image that is not encrypted opens although a secret was given for it, as in QEMU. Otherwise that is an error: the
    /// caller expects an encrypted image.
    pub fn allow_unneeded(&self) {
        self.0.lock().unneeded = true;
    }

    /// The secret called `id`, given for an image that is not encrypted; `None` where that is no error.
    ///
    /// # Errors
    /// When there is no such secret.
    pub fn unneeded(&self, id: &str) -> Result<Option<Secret>, SecretError> {
        let allowed = self.0.lock().unneeded;
        if allowed { Ok(None) } else { self.get(id).map(Some) }
    }

    /// The password of the image called `image`: the secret called `id`, or the password that is entered on
    /// request. `None` if there is neither an id nor an [`Ask`].
    ///
    /// # Errors
    /// When there is no such secret, or no answer.
    pub fn password(&self, image: &str, id: Option<&str>) -> Result<Option<Secret>, SecretError> {
        if let Some(id) = id {
            return self.get(id).map(Some);
        }
        let (asked, answer) = {
            let known = self.0.lock();
            (known.asked.clone(), known.answers.get(image).cloned())
        };
        let (Some(asked), None) = (asked, &answer) else { return Ok(answer) };
        let answered = asked.password(image);
        let password = answered.map_err(|source| SecretError::NoAnswer { image: image.into(), source })?;
        self.0.lock().answers.insert(image.into(), password.clone());
        Ok(Some(password))
    }

    /// The secret called `id`; if none was given, the systemd credential of that name.
    ///
    /// # Errors
    /// When there is neither.
    pub fn get(&self, id: &str) -> Result<Secret, SecretError> {
        if let Some(secret) = self.0.lock().by_id.get(id) {
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
            let what = "it is encrypted with another one (keyid), which is not supported; give file=PATH or a systemd credential";
            return Err(SecretError::Unsupported { id: id.into(), what });
        }
        let secret = match (self.data, self.file, self.serial) {
            (Some(data), None, None) => data,
            (None, Some(path), None) => read_file(id, path)?,
            (None, None, Some(serial)) => read_key(serial, SECRET_BYTES_MAX)
                .map_err(|source| SecretError::Key { id: id.into(), serial, source })?,
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
    let mut secret = Secret::zeroed(FILE_BYTES_FIRST);
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
        if len == secret.bytes().len() {
            let mut longer = Secret::zeroed(2 * len);
            longer.bytes_mut()[..len].copy_from_slice(secret.bytes());
            secret = longer;
        }
    }
    secret.truncate(len);
    Ok(secret)
}

/// The bytes of base64 text. White space is left out, as QEMU does.
fn decoded(text: &[u8]) -> Option<Secret> {
    let mut digits = Secret::zeroed(text.len());
    let kept = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    let kept = digits.bytes_mut().iter_mut().zip(kept).map(|(digit, byte)| *digit = *byte).count();
    digits.truncate(kept);
    base64::decode(digits.bytes())
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
            Err(
                "secret \"sec0\" needs data=TEXT or file=PATH, one of them (a secret_keyring: serial=NUMBER)"
                    .into()
            )
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
        assert_eq!(secrets.get("sec0").unwrap().bytes(), b"abc123\n");
        assert!(secrets.remove("sec0") && !secrets.remove("sec0"));
        assert!(matches!(secrets.get("sec0"), Err(SecretError::Missing { .. })));
    }

    #[test]
    fn a_long_file_is_read_whole_and_one_that_is_too_long_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("password");
        for (len, fits) in [
            (4095, true),
            (4096, true),
            (100_000, true),
            (SECRET_BYTES_MAX, true),
            (SECRET_BYTES_MAX + 1, false),
        ] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            std::fs::write(&file, &bytes).unwrap();
            let options = SecretOptions { file: Some(file.clone()), ..SecretOptions::default() };
            match options.read("long") {
                Ok(secret) => assert!(fits && secret.bytes() == bytes, "{len}"),
                Err(error) => {
                    assert!(!fits && matches!(error, SecretError::TooLong { .. }), "{len}: {error}")
                }
            }
        }
    }

    #[derive(Debug, Default)]
    struct Answers(std::sync::atomic::AtomicUsize);

    impl Ask for Answers {
        fn password(&self, image: &str) -> io::Result<Secret> {
            let asked = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            match image {
                "mute" => Err(io::ErrorKind::UnexpectedEof.into()),
                image => Ok(Secret::new(format!("{image} {asked}").into_bytes())),
            }
        }
    }

    #[test]
    fn an_image_is_asked_for_once_and_only_where_somebody_can_be_asked() {
        let secrets = Secrets::new();
        assert!(secrets.password("a", None).unwrap().is_none());
        let answers = Arc::new(Answers::default());
        secrets.ask(Some(Arc::clone(&answers) as Arc<dyn Ask>));
        let password = |image| secrets.password(image, None).map(|secret| secret.unwrap().bytes().to_vec());
        for (image, expected) in [("a", "a 0"), ("b", "b 1"), ("a", "a 0")] {
            assert_eq!(password(image).unwrap(), expected.as_bytes());
        }
        assert!(matches!(secrets.password("a", Some("x")), Err(SecretError::Missing { .. })));
        assert!(matches!(password("mute"), Err(SecretError::NoAnswer { .. })));
        secrets.ask(None);
        assert_eq!(password("b").unwrap(), b"b 1");
        assert!(secrets.password("c", None).unwrap().is_none());
    }
}
