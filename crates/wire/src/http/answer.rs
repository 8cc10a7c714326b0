//! The head of an answer.

use crate::http::date;
use crate::http::validator::Validator;

/// Bytes of a head at most.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Fields of a head at most.
const FIELDS_MAX: usize = 100;
/// Bytes of a value that is kept, at most.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// The fields of an object that say which upload made it: at S3, Google Cloud Storage and Azure.
pub const UPLOAD_FIELDS: [&str; 3] =
    ["x-amz-meta-cowhand-upload", "x-goog-meta-cowhand-upload", "x-ms-meta-cowhand_upload"];
/// Bytes of a validator at most: it is sent with each request.
const VALIDATOR_BYTES_MAX: usize = 1 << 10;

/// Why bytes are no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// They are no head of HTTP/1.
    #[error("no HTTP answer: {0}")]
    Syntax(httparse::Error),
    /// A head that does not end.
    #[error("the head of its answer has more than {HEAD_BYTES_MAX} bytes")]
    TooLong,
    /// A field that says nothing that can be true.
    #[error("{name} is {found:?}; allowed: {allowed}")]
    Field {
        /// Which.
        name: &'static str,
        /// Its value, cut.
        found: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A field that stands there twice, with different values.
    #[error("{0} stands there twice, with different values")]
    Twice(&'static str),
}

/// Which part of a file a body is (RFC 9110, 14.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRange {
    /// These bytes of so many; `None`: the server does not know how many.
    Bytes {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
        /// Bytes of the file.
        total: Option<u64>,
    },
    /// None: the file has so many.
    Unsatisfied {
        /// Bytes of the file.
        total: u64,
    },
}

/// Where a body ends (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After so many bytes.
    Bytes(u64),
    /// It comes in pieces (`Transfer-Encoding`).
    Pieces,
    /// With the connection.
    UntilClosed,
}

/// What the head of an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 100 to 599.
    pub status: u16,
    /// Of its body.
    pub length: Length,
    /// Which part of the file it is.
    pub content_range: Option<ContentRange>,
    /// The version of the file.
    pub version: Validator,
    /// `Location`: where the file is instead.
    pub location: Option<String>,
    /// `Retry-After`, where it is in seconds.
    pub retry_after_s: Option<u32>,
    /// `Content-Encoding`, where the body is not the file's bytes.
    pub encoding: Option<String>,
    /// `x-amz-bucket-region`: where a bucket is, if it is not where it was looked for.
    pub bucket_region: Option<String>,
    /// `Date`: when the server answered, in seconds since 1970.
    pub date_s: Option<u64>,
    /// [`UPLOAD_FIELDS`]: which upload made the object.
    pub upload: Option<String>,
    /// `x-goog-generation`: the version of the object, as conditions name it at Google Cloud Storage.
    pub generation: Option<String>,
    /// The server takes no further request over the connection.
    pub closes: bool,
}

impl Answer {
    /// Reads the head in front of `bytes`, and says how many bytes it has. `None` if it does not end there.
    ///
    /// # Errors
    /// When it is none, or says what cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Option<(usize, Self)>, AnswerError> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut fields);
        let bytes_of_head = match parsed.parse(bytes).map_err(AnswerError::Syntax)? {
            httparse::Status::Complete(count) => count,
            httparse::Status::Partial if bytes.len() >= HEAD_BYTES_MAX => return Err(AnswerError::TooLong),
            httparse::Status::Partial => return Ok(None),
        };
        if bytes_of_head > HEAD_BYTES_MAX {
            return Err(AnswerError::TooLong);
        }
        let found = Fields(parsed.headers);
        let closes = found.has_word("Connection", "close")
            || (parsed.version == Some(0) && !found.has_word("Connection", "keep-alive"));
        let answer = Self {
            status: parsed.code.unwrap_or_default(),
            length: found.length()?,
            content_range: found.content_range()?,
            version: Validator {
                etag: found.validator("ETag")?,
                last_modified: found.validator("Last-Modified")?,
            },
            location: found.text("Location")?,
            retry_after_s: found.text("Retry-After")?.and_then(|seconds| seconds.parse().ok()),
            encoding: found.text("Content-Encoding")?.filter(|how| !how.eq_ignore_ascii_case("identity")),
            bucket_region: found.text("x-amz-bucket-region")?.filter(|region| is_word(region)),
            // Two of them are no reason to refuse the file.
            date_s: found.text("Date").ok().flatten().and_then(|date| date::of_field(&date)),
            upload: found.first_text(&UPLOAD_FIELDS)?,
            generation: found.text("x-goog-generation")?.filter(|generation| whole(generation).is_some()),
            closes,
        };
        Ok(Some((bytes_of_head, answer)))
    }

    /// Whether it is before the answer that counts (RFC 9110, 15.2).
    pub fn is_informational(&self) -> bool {
        (100..200).contains(&self.status)
    }

    /// Whether the file is said to be elsewhere.
    pub fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308) && self.location.is_some()
    }
}

/// The head of a piece of a body that comes in pieces (RFC 9112, 7.1): how many bytes the head has, and the piece behind it. `None` if it
/// does not end in `bytes`.
///
/// # Errors
/// When it is none.
pub fn next_piece(bytes: &[u8]) -> Result<Option<(usize, u64)>, AnswerError> {
    match httparse::parse_chunk_size(bytes) {
        Ok(httparse::Status::Complete(found)) => Ok(Some(found)),
        Ok(httparse::Status::Partial) if bytes.len() > VALUE_BYTES_MAX => Err(AnswerError::TooLong),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(_) => Err(refused("a piece", bytes, "its length in hexadecimal digits, and a line break")),
    }
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Fields as they came.
struct Fields<'a>(&'a [httparse::Header<'a>]);

impl Fields<'_> {
    fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s [u8]> {
        self.0.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// The value of a field that is there once, or always the same.
    fn text(&self, name: &'static str) -> Result<Option<String>, AnswerError> {
        let mut values = self.all(name);
        let Some(first) = values.next() else { return Ok(None) };
        if values.any(|value| value != first) {
            return Err(AnswerError::Twice(name));
        }
        let text = std::str::from_utf8(first).ok().filter(|text| text.len() <= VALUE_BYTES_MAX);
        let wrong = || refused(name, first, "UTF-8 text of at most 8 KiB");
        Ok(Some(text.ok_or_else(wrong)?.trim().to_owned()))
    }

    /// The value of the first of these fields that is there.
    fn first_text(&self, names: &[&'static str]) -> Result<Option<String>, AnswerError> {
        names.iter().find_map(|name| self.text(name).transpose()).transpose()
    }

    fn has_word(&self, name: &str, word: &str) -> bool {
        let is_it = |part: &[u8]| part.trim_ascii().eq_ignore_ascii_case(word.as_bytes());
        self.all(name).any(|value| value.split(|byte| *byte == b',').any(is_it))
    }

    fn length(&self) -> Result<Length, AnswerError> {
        let said = self.text("Content-Length")?;
        let is_in_pieces = self.all("Transfer-Encoding").next().is_some();
        match said {
            // Two ends: who believes the other one reads something else (RFC 9112, 6.3).
            Some(said) if is_in_pieces => {
                Err(refused("Content-Length", said.as_bytes(), "none beside Transfer-Encoding"))
            }
            Some(said) => match whole(&said) {
                Some(bytes) => Ok(Length::Bytes(bytes)),
                None => Err(refused("Content-Length", said.as_bytes(), "a count of bytes")),
            },
            None if is_in_pieces => Ok(Length::Pieces),
            None => Ok(Length::UntilClosed),
        }
    }

    fn content_range(&self) -> Result<Option<ContentRange>, AnswerError> {
        let Some(said) = self.text("Content-Range")? else { return Ok(None) };
        let allowed = "bytes FIRST-LAST/TOTAL, bytes FIRST-LAST/* or bytes */TOTAL";
        let range = content_range(&said);
        range.map(Some).ok_or_else(|| refused("Content-Range", said.as_bytes(), allowed))
    }

    /// A value that requests repeat.
    fn validator(&self, name: &'static str) -> Result<Option<String>, AnswerError> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        let is_plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        match is_plain && !value.is_empty() && value.len() <= VALIDATOR_BYTES_MAX {
            true => Ok(Some(value)),
            false => Err(refused(name, value.as_bytes(), "ASCII of at most 1 KiB")),
        }
    }
}

fn content_range(said: &str) -> Option<ContentRange> {
    let (unit, said) = said.split_once(' ')?;
    let (range, total) = said.trim().split_once('/')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    if range == "*" {
        return Some(ContentRange::Unsatisfied { total: whole(total)? });
    }
    let (first, last) = range.split_once('-')?;
    let (first, last) = (whole(first)?, whole(last)?);
    let total = if total == "*" { None } else { Some(whole(total)?) };
    let fits = first <= last && total.is_none_or(|total| last < total);
    fits.then_some(ContentRange::Bytes { first, last, total })
}

/// Digits alone: `parse` would take a sign, too.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn refused(name: &'static str, found: &[u8], allowed: &'static str) -> AnswerError {
    const SHOWN: usize = 80;
    let found = String::from_utf8_lossy(found.get(..SHOWN).unwrap_or(found)).into_owned();
    AnswerError::Field { name, found, allowed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(fields: &str) -> Result<Answer, String> {
        let head = format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\n");
        Answer::parse(head.as_bytes()).map(|found| found.unwrap().1).map_err(|error| error.to_string())
    }

    #[test]
    fn a_head_says_which_bytes_of_which_version_follow() {
        let answer = parsed(
            "Content-Length: 512\r\nContent-Range: bytes 512-1023/4096\r\nETag: \"7\"\r\nLast-Modified: D\r\nconnection: Close\r\n",
        )
        .unwrap();
        assert_eq!(answer.length, Length::Bytes(512));
        let range = ContentRange::Bytes { first: 512, last: 1023, total: Some(4096) };
        assert_eq!(answer.content_range, Some(range));
        let version = Validator { etag: Some("\"7\"".into()), last_modified: Some("D".into()) };
        assert_eq!(answer.version, version);
        assert!(answer.closes);
        assert_eq!(Answer::parse(b"HTTP/1.1 206 Partial Content\r\nConte"), Ok(None));
    }

    #[test]
    fn fields_that_cannot_be_true_are_refused_with_what_is_allowed() {
        for (fields, refused) in [
            ("Content-Length: +5\r\n", "Content-Length is \"+5\"; allowed: a count of bytes"),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length stands there twice"),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "none beside Transfer-Encoding"),
            ("Content-Length: 18446744073709551616\r\n", "a count of bytes"),
            ("Content-Range: bytes 5-4/9\r\n", "Content-Range is \"bytes 5-4/9\""),
            ("Content-Range: bytes 5-9/9\r\n", "Content-Range"),
            ("Content-Range: lines 1-2/9\r\n", "Content-Range"),
            ("ETag: \"\x7f\"\r\n", "no HTTP answer"),
        ] {
            let error = parsed(fields).unwrap_err();
            assert!(error.contains(refused), "{fields:?}: {error}");
        }
        assert_eq!(parsed("Content-Length: 5\r\nContent-Length: 5\r\n").unwrap().length, Length::Bytes(5));
        let range = |fields: &str| parsed(fields).unwrap().content_range;
        assert_eq!(range("Content-Range: bytes */9\r\n"), Some(ContentRange::Unsatisfied { total: 9 }));
    }

    #[test]
    fn a_piece_begins_with_its_length() {
        assert_eq!(next_piece(b"1a;x=y\r\nrest"), Ok(Some((8, 26))));
        assert_eq!(next_piece(b"0\r\n"), Ok(Some((3, 0))));
        assert_eq!(next_piece(b"1"), Ok(None));
        assert!(next_piece(b"xyz\r\n").is_err() && next_piece(b"fffffffffffffffff\r\n").is_err());
    }

    #[test]
    fn a_head_without_an_end_is_refused_at_its_limit() {
        let endless =
            ["HTTP/1.1 200 OK\r\n", &"a: b\r\n".repeat(90), "c: ", &"d".repeat(HEAD_BYTES_MAX)].concat();
        assert_eq!(Answer::parse(endless.as_bytes()), Err(AnswerError::TooLong));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(Answer::parse(many.as_bytes()), Err(AnswerError::Syntax(httparse::Error::TooManyHeaders)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Answer::parse(&tail);
            let _ = Answer::parse(&[b"HTTP/1.1 206 P\r\n", &tail[..], b"\r\n\r\n"].concat());
            let _ = Answer::parse(&[b"HTTP/1.1 206 P\r\nContent-Range: bytes ", &tail[..], b"\r\n\r\n"].concat());
        }
    }
}
