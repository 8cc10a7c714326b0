//! Labels of a checkpoint: words of programs that build on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint_name::CheckpointName;

/// The manifest is read and written whole.
const COUNT_MAX: usize = 32;
/// As a label of Kubernetes has, four times.
const VALUE_BYTES_MAX: usize = 256;

/// `KEY=VALUE`: a key is spelled as the name of a checkpoint, a value is text without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Those of arguments of the form `KEY=VALUE`.
    ///
    /// # Errors
    /// When one has another form, a key comes twice, or they are too many.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut labels = BTreeMap::new();
        for argument in arguments {
            let (key, value) =
                argument.split_once('=').ok_or_else(|| format!("label {argument:?}: must be KEY=VALUE"))?;
            if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(format!("label {key:?} is given twice"));
            }
        }
        Self::try_from(labels)
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = String;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Self, String> {
        if labels.len() > COUNT_MAX {
            return Err(format!("there are {} labels; allowed: {COUNT_MAX}", labels.len()));
        }
        for (key, value) in &labels {
            CheckpointName::parse(key).map_err(|_| {
                format!(
                    "label {key:?}: a key has letters, digits and -_.:+ of ASCII, a letter or a digit first"
                )
            })?;
            if value.len() > VALUE_BYTES_MAX || value.chars().any(char::is_control) {
                return Err(format!(
                    "label {key:?}: a value has up to {VALUE_BYTES_MAX} bytes, and no control characters"
                ));
            }
        }
        Ok(Self(labels))
    }
}

impl From<Labels> for BTreeMap<String, String> {
    fn from(labels: Labels) -> Self {
        labels.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_text_that_no_terminal_obeys() {
        let labels = Labels::parse(["owner=me", "note=a = b"]).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("note", "a = b"), ("owner", "me")]);
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        assert!(Labels::parse(many.iter().map(String::as_str)).is_err());
        for wrong in [&["a"][..], &["=v"], &["a=1", "a=2"], &["a=\u{1b}[2J"], &["../a=v"]] {
            assert!(Labels::parse(wrong.iter().copied()).is_err(), "{wrong:?}");
        }
        assert!(Labels::parse([format!("a={}", "x".repeat(257)).as_str()]).is_err());
    }
}
