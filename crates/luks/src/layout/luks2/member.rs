//! Members of the JSON area: each is taken with its type and its limits, or refused by its full name.

use serde_json::{Map, Value};

use crate::layout::error::shortened;
use crate::layout::{LuksError, Secret, base64};

/// A value of the metadata, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    path: String,
    /// `None`: it is not there.
    value: Option<&'a Value>,
}

impl<'a> Member<'a> {
    /// All of it.
    pub(super) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value: Some(value) }
    }

    /// Its member `name`; of what is no object there is none.
    pub(super) fn get(&self, name: &str) -> Member<'a> {
        let path = match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        Member { path: shortened(&path), value: self.value.and_then(|value| value.get(name)) }
    }

    pub(super) fn is_there(&self) -> bool {
        self.value.is_some()
    }

    /// Where it stands.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn refused(&self, allowed: &str) -> LuksError {
        LuksError::Member { member: self.path.clone(), found: self.shown(), allowed: allowed.to_owned() }
    }

    pub(super) fn not_supported(&self, instead: &str) -> LuksError {
        LuksError::NotSupported {
            member: self.path.clone(),
            found: self.shown(),
            instead: instead.to_owned(),
        }
    }

    /// What stands there, for a message: not all of it.
    fn shown(&self) -> String {
        match self.value {
            None => "missing".to_owned(),
            Some(Value::Object(_)) => "an object".to_owned(),
            Some(Value::Array(_)) => "a list".to_owned(),
            Some(Value::String(text)) => shortened(&format!("{text:?}")),
            Some(other) => shortened(&other.to_string()),
        }
    }

    pub(super) fn object(&self) -> Result<&'a Map<String, Value>, LuksError> {
        self.value.and_then(Value::as_object).ok_or_else(|| self.refused("an object"))
    }

    pub(super) fn text(&self) -> Result<&'a str, LuksError> {
        self.value.and_then(Value::as_str).ok_or_else(|| self.refused("a text"))
    }

    /// Texts of a list; one that is not there is empty.
    pub(super) fn texts(&self) -> Result<Vec<&'a str>, LuksError> {
        let refused = || self.refused("a list of texts");
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|text| text.as_str().ok_or_else(refused)).collect(),
            Some(_) => Err(refused()),
        }
    }

    /// A JSON number.
    pub(super) fn number(&self, min: u64, max: u64) -> Result<u64, LuksError> {
        let number = self.value.and_then(Value::as_u64);
        let inside = number.filter(|number| (min..=max).contains(number));
        inside.ok_or_else(|| self.refused(&format!("{min} to {max}")))
    }

    /// A number of 64 bits, which stands there as text.
    pub(super) fn number_as_text(&self) -> Result<u64, LuksError> {
        let text = self.text()?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten();
        number.ok_or_else(|| self.refused("a number of 64 bits in a text"))
    }

    /// Bytes, which stand there as base64.
    pub(super) fn bytes(&self, min: usize, max: usize) -> Result<Vec<u8>, LuksError> {
        let text = self.text()?;
        // Nothing longer is decoded.
        let bytes = (text.len() <= max * 2).then(|| base64::decode(text.as_bytes())).flatten();
        let bytes: Option<Secret> = bytes.filter(|bytes| (min..=max).contains(&bytes.bytes().len()));
        let refused = || self.refused(&format!("{min} to {max} bytes in base64"));
        bytes.map(|bytes| bytes.bytes().to_vec()).ok_or_else(refused)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_is_refused_by_its_full_name() {
        let value = json!({"a": {"b": "12", "n": 7, "l": ["x"], "long": "y".repeat(500)}});
        let a = Member::root(&value).get("a");
        assert_eq!((a.get("b").number_as_text(), a.get("n").number(1, 7)), (Ok(12), Ok(7)));
        assert_eq!(a.get("l").texts(), Ok(vec!["x"]));
        let reported = |error: Result<u64, LuksError>| error.unwrap_err().to_string();
        assert_eq!(reported(a.get("n").number(1, 6)), "a.n of the LUKS2 header is 7; allowed: 1 to 6");
        assert_eq!(
            reported(a.get("c").get("d").number(1, 6)),
            "a.c.d of the LUKS2 header is missing; allowed: 1 to 6"
        );
        for wrong in ["+1", "-1", "", " 1", "1x", "18446744073709551616"] {
            let value = json!({ "n": wrong });
            assert!(Member::root(&value).get("n").number_as_text().is_err(), "{wrong}");
        }
        assert!(reported(a.get("long").number(0, 1)).len() < 200);
    }
}
