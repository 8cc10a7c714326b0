//! What a sealed layer is called on disk.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::files::files;

/// Hexadecimal digits of an id.
const DIGITS: usize = 16;

/// 64 random bits: the layer's file is `layers/ID.qcow2`. A copy of a lineage keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId(u64);

impl LayerId {
    /// A new one.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new() -> io::Result<Self> {
        files().random().map(Self)
    }

    /// The one with exactly 16 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = text.len() == DIGITS && text.bytes().all(is_digit);
        is_id.then(|| u64::from_str_radix(text, 16).ok().map(Self)).flatten()
    }

    /// The layer whose file is called so.
    pub fn of_file_name(name: &str) -> Option<Self> {
        Self::parse(name.strip_suffix(".qcow2")?)
    }

    /// What its file is called.
    pub fn file_name(self) -> String {
        format!("{self}.qcow2")
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TryFrom<String> for LayerId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("the id is {text:?}; must be 16 hexadecimal digits"))
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_16_digits_and_nothing_else() {
        let id = LayerId::new().unwrap();
        assert_eq!(LayerId::of_file_name(&id.file_name()), Some(id));
        assert_eq!(
            LayerId::parse("00000000000000ff").map(|id| id.to_string()),
            Some("00000000000000ff".into())
        );
        for wrong in [
            "",
            "00000000000000fF",
            "+0000000000000ff",
            "0000000000000ff",
            "../../0000000000",
            "00000000000000ff0",
        ] {
            assert_eq!(LayerId::parse(wrong), None, "{wrong}");
        }
        assert_eq!(LayerId::of_file_name("00000000000000ff.qcow2.new"), None);
    }
}
