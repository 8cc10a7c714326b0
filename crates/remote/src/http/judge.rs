//! What an answer to a request for a range means.

use std::time::Duration;

use wire::http::{Answer, ContentRange, Length, Url, UrlError, Validator};

use crate::http::errors::Error;

/// The longest pause that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// The file as it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Its bytes.
    pub(crate) length: u64,
    /// Its version.
    pub(crate) version: Validator,
}

/// A request for `len` bytes from `first` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeRequest<'a> {
    pub(crate) url: &'a Url,
    pub(crate) first: u64,
    pub(crate) len: u64,
    /// `None` of the first request, which finds out: its answer may be shorter.
    pub(crate) pinned: Option<&'a Pinned>,
}

/// What an answer means.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// So many bytes of the file follow, which is this one.
    Bytes { len: u64, file: Pinned },
    /// The file is at another place.
    Elsewhere(Url),
    /// Not now.
    Later { status: u16, after: Option<Duration> },
    /// Not at all, for a reason that its body may say.
    Refused { status: u16 },
    /// Not at all.
    Wrong(Error),
}

/// Judges the head of an answer.
pub(crate) fn judge(asked: RangeRequest<'_>, answer: &Answer) -> Verdict {
    let broken = |what: String| Verdict::Wrong(Error::Broken { url: asked.url.clone(), what });
    let changed = |what: String| Verdict::Wrong(Error::Changed { url: asked.url.clone(), what });
    match answer.status {
        206 => part(asked, answer),
        200 if asked.pinned.is_none() && answer.length == Length::Bytes(0) => empty(answer),
        200 => Verdict::Wrong(Error::NoRanges { url: asked.url.clone(), status: 200 }),
        412 => match asked.pinned {
            Some(_) => changed("the server does not have the version any more that was opened".to_owned()),
            None => Verdict::Refused { status: 412 },
        },
        416 => match (asked.pinned, answer.content_range) {
            (None, Some(ContentRange::Unsatisfied { total: 0 })) => empty(answer),
            (None, _) => Verdict::Refused { status: 416 },
            (Some(pinned), _) => changed(format!("it ends before byte {} of {}", asked.first, pinned.length)),
        },
        _ if answer.is_redirect() => {
            let location = answer.location.as_deref().unwrap_or_default();
            match asked.url.join(location) {
                Ok(url) => Verdict::Elsewhere(url),
                Err(UrlError::Scheme) => Verdict::Wrong(Error::other_scheme(asked.url, location)),
                Err(allowed) => broken(format!(
                    "it is said to be at another place, which is no file there; allowed: {allowed}"
                )),
            }
        }
        status if may_come_back(status) => Verdict::Later { status, after: pause_asked_for(answer) },
        status => Verdict::Refused { status },
    }
}

/// Whether a server that answers so may answer otherwise soon.
pub(crate) fn may_come_back(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// The pause that the server asks for, cut.
pub(crate) fn pause_asked_for(answer: &Answer) -> Option<Duration> {
    answer.retry_after_s.map(|seconds| Duration::from_secs(seconds.into()).min(RETRY_AFTER_MAX))
}

/// A file without bytes: no range of it can be asked for.
fn empty(answer: &Answer) -> Verdict {
    Verdict::Bytes { len: 0, file: Pinned { length: 0, version: answer.version.clone() } }
}

fn part(asked: RangeRequest<'_>, answer: &Answer) -> Verdict {
    let broken = |what: String| Verdict::Wrong(Error::Broken { url: asked.url.clone(), what });
    let changed = |what: String| Verdict::Wrong(Error::Changed { url: asked.url.clone(), what });
    if let Some(encoding) = &answer.encoding {
        let encoding: String = encoding.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        return broken(format!("the answer is encoded ({encoding}); allowed: the file's bytes as they are"));
    }
    let Some(ContentRange::Bytes { first, last, total: Some(total) }) = answer.content_range else {
        return broken("the answer does not say which bytes of how many it has (Content-Range)".to_owned());
    };
    if let Some(pinned) = asked.pinned {
        if let Some(what) = pinned.version.difference(&answer.version) {
            return changed(what);
        }
        if total != pinned.length {
            return changed(format!("it has {total} bytes and had {}", pinned.length));
        }
    }
    let wanted_last = (asked.first + asked.len.max(1) - 1).min(total.saturating_sub(1));
    if (first, last) != (asked.first, wanted_last) {
        let (from, to) = (asked.first, wanted_last);
        return broken(format!("the answer has the bytes {first}-{last}; asked for were {from}-{to}"));
    }
    let len = last - first + 1;
    match answer.length {
        Length::Bytes(said) if said == len => {
            Verdict::Bytes { len, file: Pinned { length: total, version: answer.version.clone() } }
        }
        Length::Bytes(said) => broken(format!("the answer has {said} bytes for a range of {len}")),
        Length::Pieces | Length::UntilClosed => {
            broken("the answer does not say how long it is (Content-Length)".to_owned())
        }
    }
}

/// What a status means that is the end of it.
pub(crate) fn words(status: u16) -> &'static str {
    match status {
        400 => "the request is not understood",
        401 => "it wants a user and a password: username, password-secret",
        403 => "it is not allowed",
        404 => "there is no such file",
        407 => "a proxy wants a password",
        410 => "the file is gone",
        412 | 416 => "it refuses the range",
        429 | 503 => "too many requests",
        500 | 502 | 504 => "it is in trouble",
        _ => "",
    }
}

/// The word for an error in a body of S3 (`<Code>NoSuchKey</Code>`). Nothing else of it: it may repeat what was signed.
pub(crate) fn code(body: &[u8]) -> Option<String> {
    const CODE_BYTES_MAX: usize = 64;
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_word && code.len() <= CODE_BYTES_MAX).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(head: &str) -> Answer {
        Answer::parse(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).unwrap().unwrap().1
    }

    fn judged(head: &str, pinned: bool) -> Result<u64, String> {
        let url = Url::parse("http://h/x").unwrap();
        let version = Validator { etag: Some("\"7\"".into()), last_modified: None };
        let pin = Pinned { length: 4096, version };
        let asked = RangeRequest { url: &url, first: 512, len: 512, pinned: pinned.then_some(&pin) };
        match judge(asked, &answer(head)) {
            Verdict::Bytes { len, .. } => Ok(len),
            Verdict::Wrong(error) => Err(error.to_string()),
            Verdict::Refused { status } => Err(format!("refused {status}")),
            Verdict::Later { status, after } => Err(format!("later {status} {after:?}")),
            Verdict::Elsewhere(url) => Err(format!("elsewhere {url}")),
        }
    }

    #[test]
    fn bytes_are_taken_of_the_range_and_the_version_that_was_asked_for_and_of_no_other() {
        let part = |range: &str, etag: &str, more: &str| {
            judged(&format!("206 P\r\nContent-Range: bytes {range}\r\nETag: {etag}\r\n{more}"), true)
        };
        assert_eq!(part("512-1023/4096", "\"7\"", "Content-Length: 512"), Ok(512));
        for (range, etag, more, refused) in [
            (
                "512-1023/4096",
                "\"8\"",
                "Content-Length: 512",
                "was changed while it was open: its ETag is \"8\"",
            ),
            ("512-1023/8192", "\"7\"", "Content-Length: 512", "it has 8192 bytes and had 4096"),
            (
                "0-511/4096",
                "\"7\"",
                "Content-Length: 512",
                "the answer has the bytes 0-511; asked for were 512-1023",
            ),
            ("512-1022/4096", "\"7\"", "Content-Length: 511", "asked for were 512-1023"),
            ("512-1023/*", "\"7\"", "Content-Length: 512", "of how many"),
            ("512-1023/4096", "\"7\"", "Content-Length: 511", "511 bytes for a range of 512"),
            ("512-1023/4096", "\"7\"", "Transfer-Encoding: chunked", "does not say how long it is"),
            ("512-1023/4096", "\"7\"", "Content-Length: 512\r\nContent-Encoding: gzip", "encoded (gzip)"),
        ] {
            let error = part(range, etag, more).unwrap_err();
            assert!(error.contains(refused), "{range} {etag} {more}: {error}");
        }
        let no_etag = judged("206 P\r\nContent-Range: bytes 512-1023/4096\r\nContent-Length: 512", true);
        assert!(no_etag.unwrap_err().contains("its ETag is none"));
    }

    #[test]
    fn what_may_come_back_is_tried_again_and_what_is_final_is_not() {
        for (head, pinned, verdict) in [
            ("200 OK\r\nContent-Length: 4096", true, "knows no ranges"),
            ("200 OK\r\nContent-Length: 4096", false, "knows no ranges"),
            ("412 P", true, "does not have the version any more"),
            ("412 P", false, "refused 412"),
            ("416 R\r\nContent-Range: bytes */100", true, "it ends before byte 512 of 4096"),
            ("404 N", true, "refused 404"),
            ("403 F", true, "refused 403"),
            ("503 S", true, "later 503 None"),
            ("429 T\r\nRetry-After: 7", true, "later 429 Some(7s)"),
            ("503 T\r\nRetry-After: 86400", true, "later 503 Some(30s)"),
            ("302 F\r\nLocation: /y", true, "elsewhere http://h/y"),
            ("302 F", true, "refused 302"),
            (
                "302 F\r\nLocation: ftp://h/y",
                true,
                "it redirects to ftp:, and only http and https are followed",
            ),
            ("302 F\r\nLocation: file:///etc/passwd", true, "it redirects to file:, and"),
            ("302 F\r\nLocation: nbd+unix:///?socket=/s", true, "it redirects to nbd+unix:, and"),
            ("302 F\r\nLocation: http://h:0/", true, "no file there"),
        ] {
            let found = judged(head, pinned).unwrap_err();
            assert!(found.contains(verdict), "{head}: {found}");
        }
        assert_eq!(judged("200 OK\r\nContent-Length: 0", false), Ok(0));
        assert_eq!(judged("416 R\r\nContent-Range: bytes */0", false), Ok(0));
    }
}
