//! Which version of a file an answer is of.

/// What a server says of a file's version (RFC 9110, 8.8): one of the two at least, to be of use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validator {
    /// `ETag`, with its quotes; it may be a weak one (`W/"..."`).
    pub etag: Option<String>,
    /// `Last-Modified`, as it came.
    pub last_modified: Option<String>,
}

impl Validator {
    /// Whether a change of the file could be seen by it.
    pub fn is_empty(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }

    /// An ETag that is the same for the same bytes only: what `If-Match` takes (RFC 9110, 13.1.1).
    pub fn strong_etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.starts_with("W/"))
    }

    /// What a request says so that another version is not sent.
    pub fn condition(&self) -> Option<(&'static str, &str)> {
        let etag = self.strong_etag().map(|etag| ("If-Match", etag));
        let unmodified = self.last_modified.as_deref().map(|date| ("If-Unmodified-Since", date));
        etag.or(unmodified)
    }

    /// What `found` has otherwise, in words; `None` for the same version. An ETag decides alone where there is one.
    pub fn difference(&self, found: &Self) -> Option<String> {
        let (what, was, is) = match &self.etag {
            Some(_) => ("ETag", &self.etag, &found.etag),
            None => ("Last-Modified", &self.last_modified, &found.last_modified),
        };
        let words = |value: &Option<String>| value.as_deref().unwrap_or("none").to_owned();
        (was != is).then(|| format!("its {what} is {} and was {} when it was opened", words(is), words(was)))
    }
}
