//! Text that people read, without credentials.

use std::borrow::Cow;

/// Words before a value that is hidden. `password-secret` and the like name a secret, and are others.
const HIDDEN: [&str; 4] = ["cookie", "password", ":key", "secret-key"];
/// What is a URL with one slash, too: paths of such names are made so.
const SCHEMES: [&str; 4] = ["http", "s3", "nbd", "ssh"];
/// What stands for what is left out.
const MARK: &str = "(hidden)";

/// `text` without users and passwords of URLs, queries of `http` and `https` (which may be signatures), cookies, passwords and keys, in
/// whichever form they were written: the last gate before a message, a log or an answer, for names that nothing could parse.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let may_tell = text.contains("rbd")
        || text.contains(":/")
        || text.contains(":\\")
        || HIDDEN.iter().any(|word| text.contains(word));
    if !may_tell {
        return Cow::Borrowed(text);
    }
    let hidden = of_urls(text);
    // Of an object store it is a name.
    let of_rbd = text.contains("rbd").then_some(&"\"key");
    let hidden = HIDDEN.iter().chain(of_rbd).fold(hidden, |text, word| of_word(&text, word));
    if hidden == text { Cow::Borrowed(text) } else { Cow::Owned(hidden) }
}

fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`')
}

/// The first part of `text` that has no end of a word in it, and the rest.
fn word(text: &str) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

fn of_urls(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(colon) = rest.find(':') {
        let (before, behind) = rest.split_at(colon);
        let scheme =
            before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '+').next().unwrap_or_default();
        let slashes = behind.get(1..).unwrap_or_default();
        let count = slashes.bytes().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
        if scheme.is_empty() || count == 0 {
            let (colon, behind) = behind.split_at(1);
            out.push_str(before);
            out.push_str(colon);
            rest = behind;
            continue;
        }
        let (start, behind) = behind.split_at(1 + count);
        let (url, behind) = word(behind);
        out.push_str(before);
        out.push_str(start);
        let scheme = scheme.to_ascii_lowercase();
        let url = without_user(url, count > 1 || SCHEMES.iter().any(|known| scheme.starts_with(known)));
        let has_query = scheme.starts_with("http");
        match url.find(['?', '#']).filter(|_| has_query) {
            // A name that says only that there is one.
            Some(at) if url.get(at + 1..).is_some_and(|query| query.starts_with("(hidden")) => {
                out.push_str(url)
            }
            Some(at) => {
                out.push_str(url.get(..at).unwrap_or_default());
                out.push('?');
                out.push_str(MARK);
                out.extend(url.chars().next_back().filter(|last| matches!(last, ':' | ',' | ';' | ')')));
            }
            None => out.push_str(url),
        }
        rest = behind;
    }
    out + rest
}

/// Without user and password. A path with a colon and a slash in it may have an @, too: there both must be given.
fn without_user(url: &str, is_surely_one: bool) -> &str {
    let authority = url.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    let behind = |part: &str| url.get(part.rfind('@')? + 1..);
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let found = match authority.rsplit_once('@') {
        Some((user, _)) if is_surely_one || user.contains(':') => behind(authority),
        Some(_) => None,
        // A slash in the password.
        None => match authority.split_once(':') {
            Some((_, port)) if !is_port(port) && !authority.starts_with('[') => behind(url),
            _ => None,
        },
    };
    found.unwrap_or(url)
}

/// `text` without the values behind `name`: `NAME=VALUE`, `"NAME": "VALUE"`, `NAME is "VALUE"`, and these in quotation marks themselves.
fn of_word(text: &str, name: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(name) {
        let (before, behind) = rest.split_at(at + name.len());
        out.push_str(before);
        let Some((value, len)) = value(behind) else {
            rest = behind;
            continue;
        };
        out.push_str(behind.get(..behind.len() - value.len()).unwrap_or_default());
        if len > 0 {
            out.push_str(MARK);
        }
        rest = value.get(len..).unwrap_or_default();
    }
    out + rest
}

/// What begins with the value of the name before it, and the value's bytes. A sentence about passwords has none.
fn value(behind: &str) -> Option<(&str, usize)> {
    let (_, unquoted) = quotation_mark(behind).unwrap_or((0, behind));
    let (is_assigned, value) = match unquoted.strip_prefix('=') {
        Some(value) => (true, value),
        None => (false, [" is ", ": ", ":", " = "].iter().find_map(|link| unquoted.strip_prefix(link))?),
    };
    let value = value.strip_prefix('[').unwrap_or(value);
    match quotation_mark(value) {
        Some((backslashes, quoted)) => Some((quoted, quoted_len(quoted, backslashes))),
        None if is_assigned => {
            Some((value, value.find(|c| is_end(c) || matches!(c, ',' | ':' | '}')).unwrap_or(value.len())))
        }
        None => None,
    }
}

/// A quotation mark, how many backslashes stand before it, and what is behind it.
fn quotation_mark(text: &str) -> Option<(usize, &str)> {
    let behind = text.trim_start_matches('\\');
    Some((text.len() - behind.len(), behind.strip_prefix('"')?))
}

/// Bytes before the quotation mark at the end, with as many backslashes before it as before the first one.
fn quoted_len(text: &str, backslashes: usize) -> usize {
    let before = |at: usize| {
        let before = text.get(..at).unwrap_or_default();
        before.len() - before.trim_end_matches('\\').len()
    };
    let mut marks = text.match_indices('"').map(|(at, _)| at);
    marks.find(|at| before(*at) <= backslashes).map_or(text.len(), |at| at - before(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message had the URL as it was typed, because nothing could be made of it: with the password.
    #[test]
    fn nothing_that_lets_in_is_left_in_whichever_form_it_was_typed() {
        for (text, expected) in [
            ("cannot open http://user:hush@h:1/x: no", "cannot open http://h:1/x: no"),
            ("HTTPS://hush@h/x@y", "HTTPS://h/x@y"),
            ("\"s3://A:hush@b/k\"", "\"s3://b/k\""),
            ("chunked:http://u:hush@h/x", "chunked:http://h/x"),
            ("/tmp/http:/u:hush@h/x is there", "/tmp/http:/h/x is there"),
            (r"https:\\u:hush@h/x", r"https:\\h/x"),
            ("http://u:hu/sh@h/x", "http://h/x"),
            ("http://u:hush@", "http://"),
            ("nbd+unix://u:hush@/x?socket=/s", "nbd+unix:///x?socket=/s"),
            ("http://h/x?sig=hush: gone", "http://h/x?(hidden): gone"),
            ("http://h/x#hush", "http://h/x?(hidden)"),
            ("rbd:p/i:id=a:key=hush==:conf=/c", "rbd:p/i:id=a:key=(hidden):conf=/c"),
            ("file.cookie=c=hush,file.x=1", "file.cookie=(hidden),file.x=1"),
            (r#"{"cookie": "c=\"hush", "a": 1}"#, r#"{"cookie": "(hidden)", "a": 1}"#),
            (
                r#"names "json:{\"cookie\": [\"c=\\\"hush\"], \"a\": 1}": no"#,
                r#"names "json:{\"cookie\": [\"(hidden)\"], \"a\": 1}": no"#,
            ),
            ("/tmp/http:/hush@h/x", "/tmp/http:/h/x"),
            (r#"{"driver":"rbd","key":"hush"}"#, r#"{"driver":"rbd","key":"(hidden)"}"#),
            (
                r#""json:{\"driver\":\"rbd\",\"key\":\"hush\"}""#,
                r#""json:{\"driver\":\"rbd\",\"key\":\"(hidden)\"}""#,
            ),
            (r#"{"cookie":["c=hush"]}"#, r#"{"cookie":["(hidden)"]}"#),
            (r#"option file.password is "hush"; none"#, r#"option file.password is "(hidden)"; none"#),
            ("a http://u:hush@h/ b http://v:hush@i/", "a http://h/ b http://i/"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    #[test]
    fn what_lets_nobody_in_stays_as_it_is() {
        for text in [
            "",
            "disk.qcow2,cache=none",
            "nbd://h:10809/x?socket=a",
            "nbds://h/x?tls-creds=id",
            "http://[::1]:80/a@b",
            "http://h:80/a@b:c",
            "http://h/x?(hidden:0a1b2c3d)",
            "/srv/a:/b@c/d.qcow2",
            "password-secret=p,cookie-secret=c,key-secret=k",
            r#"{"driver":"rbd","key-secret":"k"}"#,
            r#"{"driver":"s3","key":"disk.qcow2"}"#,
            "the password is wrong",
            "s3://bucket/what?.qcow2",
            "rbd:p/i@snap:conf=/etc/ceph.conf",
            "12:30: a@b",
            "at 10:/x",
            "é://ü:/",
        ] {
            let hidden = without_credentials(text);
            assert_eq!(hidden, text);
        }
    }
}
