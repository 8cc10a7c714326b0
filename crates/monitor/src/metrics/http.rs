//! The part of HTTP/1.1 that a scrape uses: one GET, one answer, the end of the connection.

use percent_encoding::percent_decode_str;

use super::text::{Histograms, Scrape};

/// Bytes of a request's head at most; a scrape's has some hundred.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;

/// A request of a scraper, or why it has no figures as an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The figures; without `body` only what they would come with.
    Metrics {
        /// GET rather than HEAD.
        body: bool,
        /// Which figures.
        wanted: Scrape,
    },
    /// Another page.
    NotFound,
    /// Another method.
    NotAllowed,
    /// A head that is too long.
    TooLong,
    /// Something that is no HTTP/1 request.
    Malformed,
}

/// The request in the bytes received so far; `None` if the head has not ended.
pub fn ask(bytes: &[u8]) -> Option<Request> {
    let head = &bytes[..bytes.len().min(REQUEST_BYTES_MAX)];
    let ended = head.windows(4).any(|window| window == b"\r\n\r\n") || head.windows(2).any(|w| w == b"\n\n");
    if !ended {
        return (bytes.len() >= REQUEST_BYTES_MAX).then_some(Request::TooLong);
    }
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Some(Request::Malformed) };
    let mut words = line.trim_end().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(version), None) = (method, target, version, words.next()) else {
        return Some(Request::Malformed);
    };
    if !version.starts_with("HTTP/1.") {
        return Some(Request::Malformed);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Some(match (method, path) {
        ("GET", "/metrics") => Request::Metrics { body: true, wanted: scrape(query) },
        ("HEAD", "/metrics") => Request::Metrics { body: false, wanted: scrape(query) },
        ("GET" | "HEAD", _) => Request::NotFound,
        _ => Request::NotAllowed,
    })
}

/// What stands behind the question mark.
fn scrape(query: &str) -> Scrape {
    let none = query.split('&').any(|part| part == "histograms=none");
    let histograms = if none { Histograms::None } else { Histograms::Busy };
    let disks = query.split('&').filter_map(|part| part.strip_prefix("disk=")).map(decoded).collect();
    Scrape { histograms, disks }
}

/// A value of a query without its `%XX`. What is none stays as it is: no disk is called so.
fn decoded(value: &str) -> String {
    percent_decode_str(value).decode_utf8_lossy().into_owned()
}

/// The answer, with `body` if it is one that has it.
pub fn answer(asked: &Request, body: &str) -> Vec<u8> {
    let (status, text) = match asked {
        Request::Metrics { .. } => ("200 OK", body),
        Request::NotFound => ("404 Not Found", "the figures are at /metrics\n"),
        Request::NotAllowed => ("405 Method Not Allowed\r\nAllow: GET, HEAD", "only GET is possible\n"),
        Request::TooLong => ("431 Request Header Fields Too Large", "the request is too long\n"),
        Request::Malformed => ("400 Bad Request", "this is no HTTP/1 request\n"),
    };
    let kind = match asked {
        Request::Metrics { .. } => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let text = if matches!(asked, Request::Metrics { body: false, .. }) { "" } else { text };
    [head.as_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_get_of_the_figures_gets_them() {
        let metrics = |body, histograms| {
            Some(Request::Metrics { body, wanted: Scrape { histograms, disks: Vec::new() } })
        };
        let table: [(&[u8], Option<Request>); 12] = [
            (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", metrics(true, Histograms::Busy)),
            (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", metrics(true, Histograms::Busy)),
            (b"GET /metrics?x=1&histograms=none HTTP/1.0\r\n\r\n", metrics(true, Histograms::None)),
            (b"GET /metrics?histograms=nonesuch HTTP/1.0\r\n\r\n", metrics(true, Histograms::Busy)),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", metrics(false, Histograms::Busy)),
            (b"GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
            (b"", None),
            (b"GET / HTTP/1.1\r\n\r\n", Some(Request::NotFound)),
            (b"POST /metrics HTTP/1.1\r\n\r\n", Some(Request::NotAllowed)),
            (b"GET /metrics\r\n\r\n", Some(Request::Malformed)),
            (b"\xff\xff\r\n\r\n", Some(Request::Malformed)),
            (b"PRI * HTTP/2.0\r\n\r\n", Some(Request::Malformed)),
        ];
        for (bytes, expected) in table {
            assert_eq!(ask(bytes), expected, "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(ask(&[b'x'; REQUEST_BYTES_MAX - 1]), None);
        assert_eq!(ask(&[b'x'; REQUEST_BYTES_MAX + 9]), Some(Request::TooLong));
    }

    #[test]
    fn disks_are_named_as_often_as_there_are_some() {
        let names = |query| scrape(query).disks;
        assert_eq!(names("disk=a&histograms=none&disk=%23block%30%300"), ["a", "#block000"]);
        assert_eq!(names("disk=&disk=%&disk=%2&disk=%zz%+1&disks=a"), ["", "%", "%2", "%zz%+1"]);
        assert_eq!(names("x=disk=a"), [""; 0]);
    }

    #[test]
    fn an_answer_says_how_long_it_is() {
        let text = |asked: &Request| String::from_utf8(answer(asked, "abc")).unwrap();
        let metrics = |body| Request::Metrics { body, wanted: scrape("") };
        assert!(text(&metrics(true)).ends_with("Content-Length: 3\r\nConnection: close\r\n\r\nabc"));
        assert!(text(&metrics(false)).ends_with("Content-Length: 3\r\nConnection: close\r\n\r\n"));
        assert!(text(&Request::NotAllowed).contains("\r\nAllow: GET, HEAD\r\n"));
    }
}
