//! The head of a request.

use std::fmt;

use crate::http::url::Url;
use crate::http::validator::Validator;

/// What a client calls itself.
const USER_AGENT: &str = concat!("cowhand/", env!("CARGO_PKG_VERSION"));

/// A value that no field can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value of {name} has a line break or another control character")]
pub struct FieldError {
    /// Of which field.
    pub name: String,
}

/// Fields of a request, in their order. Their values are not shown: some are credentials.
#[derive(Clone, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Adds a field.
    ///
    /// # Errors
    /// When the value would end its line.
    pub fn add(&mut self, name: &str, value: impl Into<String>) -> Result<(), FieldError> {
        let value = value.into();
        if value.chars().any(|letter| letter.is_control() && letter != '\t') {
            return Err(FieldError { name: name.to_owned() });
        }
        self.0.push((name.to_owned(), value));
        Ok(())
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// A request for the bytes `first..=last` of a file.
#[derive(Clone, Copy, Debug)]
pub struct Get<'a> {
    /// The file.
    pub url: &'a Url,
    /// Its first byte that is asked for.
    pub first: u64,
    /// Its last one.
    pub last: u64,
    /// The version that it must be.
    pub version: Option<&'a Validator>,
}

impl Get<'_> {
    /// What it says besides its server and its file.
    pub fn fields(&self) -> Fields {
        let mut fields = vec![("Range".to_owned(), format!("bytes={}-{}", self.first, self.last))];
        if let Some((name, value)) = self.version.and_then(Validator::condition) {
            fields.push((name.to_owned(), value.to_owned()));
        }
        Fields(fields)
    }
}

/// What follows the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Nothing.
    Nothing,
    /// So many bytes, whose hash is known.
    Hashed {
        /// How many.
        len: u64,
        /// SHA-256 in hexadecimal digits.
        hash: &'a str,
    },
    /// So many bytes, which no peer changes on their way: the connection is encrypted.
    Unsigned {
        /// How many.
        len: u64,
    },
}

impl Payload<'_> {
    /// Bytes of it.
    pub fn len(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Hashed { len, .. } | Self::Unsigned { len } => *len,
        }
    }

    /// Whether nothing follows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, ...
    pub method: &'a str,
    /// The file.
    pub url: &'a Url,
    /// What it says besides.
    pub fields: &'a Fields,
    /// What follows.
    pub payload: Payload<'a>,
}

impl Request<'_> {
    /// The fields that a signature covers.
    pub fn signed(&self) -> Fields {
        let host = ("Host".to_owned(), self.url.origin().authority());
        Fields(std::iter::once(host).chain(self.fields.0.iter().cloned()).collect())
    }

    /// The bytes of the head, with `more` fields behind its own.
    pub fn head(&self, more: &Fields) -> Vec<u8> {
        self.head_to(&self.url.target(), more)
    }

    /// As [`Request::head`], with another name of the file in the first line.
    pub fn head_to(&self, target: &str, more: &Fields) -> Vec<u8> {
        let mut head = format!("{} {target} HTTP/1.1\r\n", self.method);
        for (name, value) in self.signed().iter().chain(more.iter()) {
            head.extend([name, ": ", value, "\r\n"]);
        }
        // A server refuses what has a body as a rule and does not say how long it is.
        if matches!(self.method, "PUT" | "POST") {
            head.extend(["Content-Length: ", &self.payload.len().to_string(), "\r\n"]);
        }
        // Bytes as they lie there: a range of what was compressed is no range of the file.
        head.extend(["User-Agent: ", USER_AGENT, "\r\nAccept-Encoding: identity\r\n\r\n"]);
        head.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(get: &Get<'_>, more: &Fields) -> String {
        let fields = get.fields();
        let request = Request { method: "GET", url: get.url, fields: &fields, payload: Payload::Nothing };
        String::from_utf8(request.head(more)).unwrap()
    }

    #[test]
    fn what_is_sent_says_how_long_it_is_even_if_it_is_empty() {
        let (url, fields) = (Url::parse("http://h/x").unwrap(), Fields::default());
        for (method, payload, length) in [
            ("PUT", Payload::Unsigned { len: 7 }, Some("\r\nContent-Length: 7\r\n")),
            ("POST", Payload::Nothing, Some("\r\nContent-Length: 0\r\n")),
            ("DELETE", Payload::Nothing, None),
        ] {
            let head = Request { method, url: &url, fields: &fields, payload }.head(&Fields::default());
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with(&format!("{method} /x HTTP/1.1\r\nHost: h\r\n")), "{head}");
            assert_eq!(length.is_some_and(|length| head.contains(length)), head.contains("Content-Length"));
        }
    }

    #[test]
    fn a_request_names_its_range_and_the_version_that_it_wants() {
        let url = Url::parse("http://h:8080/a%20b?c").unwrap();
        let version = Validator { etag: Some("\"7\"".into()), last_modified: None };
        let mut more = Fields::default();
        more.add("Cookie", "a=b").unwrap();
        let head = head(&Get { url: &url, first: 512, last: 1023, version: Some(&version) }, &more);
        let expected = format!(
            "GET /a%20b?c HTTP/1.1\r\nHost: h:8080\r\nRange: bytes=512-1023\r\nIf-Match: \"7\"\r\nCookie: a=b\r\n\
             User-Agent: {USER_AGENT}\r\nAccept-Encoding: identity\r\n\r\n"
        );
        assert_eq!(head, expected);
    }

    #[test]
    fn a_weak_etag_is_no_condition_and_a_date_is() {
        let url = Url::parse("http://h/x").unwrap();
        let of_version = |etag: &str, date: Option<&str>| {
            let version = Validator { etag: Some(etag.into()), last_modified: date.map(ToOwned::to_owned) };
            head(&Get { url: &url, first: 0, last: 0, version: Some(&version) }, &Fields::default())
        };
        assert!(!of_version("W/\"7\"", None).contains("If-"));
        assert!(of_version("W/\"7\"", Some("D")).contains("\r\nIf-Unmodified-Since: D\r\n"));
    }

    #[test]
    fn no_value_ends_its_line_and_none_is_shown() {
        let mut fields = Fields::default();
        assert!(fields.add("Cookie", "a\r\nX: y").is_err());
        fields.add("Cookie", "hush").unwrap();
        assert_eq!(format!("{fields:?}"), "[\"Cookie\"]");
    }
}
