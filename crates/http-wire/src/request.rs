//! The head of a request.

use std::fmt;

use crate::url::Url;
use crate::validator::Validator;

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
    /// Its own fields, which a signature covers.
    pub fn fields(&self) -> Fields {
        let mut fields = vec![
            ("Host".to_owned(), self.url.origin().authority()),
            ("Range".to_owned(), format!("bytes={}-{}", self.first, self.last)),
        ];
        if let Some((name, value)) = self.version.and_then(Validator::condition) {
            fields.push((name.to_owned(), value.to_owned()));
        }
        Fields(fields)
    }

    /// The bytes of the head, with `more` fields behind its own.
    pub fn head(&self, more: &Fields) -> Vec<u8> {
        let mut head = format!("GET {} HTTP/1.1\r\n", self.url.target());
        for (name, value) in self.fields().iter().chain(more.iter()) {
            head.extend([name, ": ", value, "\r\n"]);
        }
        // Bytes as they lie there: a range of what was compressed is no range of the file.
        head.extend(["User-Agent: ", USER_AGENT, "\r\nAccept-Encoding: identity\r\n\r\n"]);
        head.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_range_and_the_version_that_it_wants() {
        let url = Url::parse("http://h:8080/a%20b?c").unwrap();
        let version = Validator { etag: Some("\"7\"".into()), last_modified: None };
        let mut more = Fields::default();
        more.add("Cookie", "a=b").unwrap();
        let head = Get { url: &url, first: 512, last: 1023, version: Some(&version) }.head(&more);
        let expected = format!(
            "GET /a%20b?c HTTP/1.1\r\nHost: h:8080\r\nRange: bytes=512-1023\r\nIf-Match: \"7\"\r\nCookie: a=b\r\n\
             User-Agent: {USER_AGENT}\r\nAccept-Encoding: identity\r\n\r\n"
        );
        assert_eq!(String::from_utf8(head).unwrap(), expected);
    }

    #[test]
    fn a_weak_etag_is_no_condition_and_a_date_is() {
        let url = Url::parse("http://h/x").unwrap();
        let head = |etag: &str, date: Option<&str>| {
            let version = Validator { etag: Some(etag.into()), last_modified: date.map(ToOwned::to_owned) };
            let get = Get { url: &url, first: 0, last: 0, version: Some(&version) };
            String::from_utf8(get.head(&Fields::default())).unwrap()
        };
        assert!(!head("W/\"7\"", None).contains("If-"));
        assert!(head("W/\"7\"", Some("D")).contains("\r\nIf-Unmodified-Since: D\r\n"));
    }

    #[test]
    fn no_value_ends_its_line_and_none_is_shown() {
        let mut fields = Fields::default();
        assert!(fields.add("Cookie", "a\r\nX: y").is_err());
        fields.add("Cookie", "hush").unwrap();
        assert_eq!(format!("{fields:?}"), "[\"Cookie\"]");
    }
}
