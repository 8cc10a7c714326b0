//! AWS's signature of version 4, as S3 and its likes check it.
//!
//! "Authenticating Requests (AWS Signature Version 4)" of the S3 documentation: a canonical request is hashed, the hash is signed with
//! a key that is made of the secret key, the day, the region and the service.

use std::fmt;

use ring::digest::{Context, SHA256, digest};
use ring::hmac;
use secret::Secret;

/// The hash of a body that is empty.
pub const EMPTY_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// What stands in the place of a body's hash where the connection keeps the body from being changed.
pub const UNSIGNED_BODY: &str = "UNSIGNED-PAYLOAD";

/// Who signs. Shown without its secrets.
#[derive(Clone)]
pub struct Credentials {
    /// The access key id.
    pub access_key: String,
    /// The secret access key.
    pub secret_key: Secret,
    /// The session token of credentials that end.
    pub session_token: Option<Secret>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials { .. }")
    }
}

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, ...
    pub method: &'a str,
    /// The path, escaped as it is sent.
    pub path: &'a str,
    /// The query, escaped as it is sent.
    pub query: &'a str,
    /// The hash of its body in hexadecimal digits.
    pub body_hash: &'a str,
}

/// For whom a signature is good.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The region.
    pub region: &'a str,
    /// The service: `s3`.
    pub service: &'a str,
    /// Seconds since 1970.
    pub now_s: u64,
}

/// The value of `Authorization`. `fields` are all fields that are signed, `host` and `x-amz-date` among them.
pub fn authorization<'f>(
    request: &Request<'_>,
    fields: impl Iterator<Item = (&'f str, &'f str)>,
    credentials: &Credentials,
    scope: &Scope<'_>,
) -> String {
    let mut fields: Vec<(String, String)> =
        fields.map(|(name, value)| (name.to_ascii_lowercase(), one_space(value))).collect();
    fields.sort();
    let signed = fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
    let lines: String = fields.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let Request { method, path, body_hash, .. } = request;
    let query = canonical_query(request.query);
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{signed}\n{body_hash}");
    let Scope { region, service, now_s } = scope;
    let time = timestamp(*now_s);
    let day = time.get(..8).unwrap_or_default();
    let place = format!("{day}/{region}/{service}/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{place}\n{}", hash(canonical.as_bytes()));
    let mut key = Secret::copy_of(&[b"AWS4", credentials.secret_key.bytes()].concat());
    for part in [day, region, service, "aws4_request"] {
        key = Secret::copy_of(sign(key.bytes(), part).as_ref());
    }
    let signature = hex(sign(key.bytes(), &text).as_ref());
    let access = &credentials.access_key;
    format!("AWS4-HMAC-SHA256 Credential={access}/{place}, SignedHeaders={signed}, Signature={signature}")
}

/// The hash of bytes, in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The hash of bytes that lie in parts.
pub fn hash_of_parts<'p>(parts: impl Iterator<Item = &'p [u8]>) -> String {
    let mut context = Context::new(&SHA256);
    parts.for_each(|part| context.update(part));
    hex(context.finish().as_ref())
}

/// `x-amz-date`: seconds since 1970 as `20130524T000000Z`.
pub fn timestamp(now_s: u64) -> String {
    let (days, second) = (now_s / 86_400, now_s % 86_400);
    let (year, month, day) = crate::date::day(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{:02}Z", second % 60)
}

/// Escapes what is no letter, digit or one of `-._~` (and `/` in a path), as the signature wants it.
pub fn escaped(text: &str, keeps_slash: bool) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        match is_plain || (keeps_slash && byte == b'/') {
            true => escaped.push(char::from(byte)),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn sign(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Without space around it, and with one where several are.
fn one_space(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// Sorted by name, with an equals sign behind each.
fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    pairs.sort();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2013-05-24 and 2015-08-30 12:36:00, of AWS's examples.
    const IN_2013: u64 = 1_369_353_600;
    const IN_2015: u64 = 1_440_938_160;

    fn credentials(access_key: &str, secret_key: &str) -> Credentials {
        let secret_key = Secret::copy_of(secret_key.as_bytes());
        Credentials { access_key: access_key.to_owned(), secret_key, session_token: None }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (now_s, time) in [
            (0, "19700101T000000Z"),
            (IN_2013, "20130524T000000Z"),
            (IN_2015, "20150830T123600Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(timestamp(now_s), time);
        }
    }

    /// The examples of the S3 documentation ("Examples: Signature Calculations").
    #[test]
    fn signatures_are_those_of_the_s3_documentation() {
        let who = credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let scope = Scope { region: "us-east-1", service: "s3", now_s: IN_2013 };
        let put = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        for (method, path, query, body_hash, more, signature) in [
            (
                "GET",
                "/test.txt",
                "",
                EMPTY_BODY,
                vec![("Range", "bytes=0-9")],
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test%24file.text",
                "",
                put,
                vec![
                    ("Date", "Fri, 24 May 2013 00:00:00 GMT"),
                    ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ],
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/",
                "lifecycle",
                EMPTY_BODY,
                vec![],
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/",
                "max-keys=2&prefix=J",
                EMPTY_BODY,
                vec![],
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let common = [
                ("Host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", body_hash),
                ("x-amz-date", "20130524T000000Z"),
            ];
            let request = Request { method, path, query, body_hash };
            let found = authorization(&request, common.into_iter().chain(more), &who, &scope);
            assert!(found.ends_with(&format!("Signature={signature}")), "{method} {path}?{query}: {found}");
        }
    }

    /// `get-vanilla` and `get-header-value-trim` of AWS's test suite.
    #[test]
    fn signatures_are_those_of_the_test_suite() {
        let who = credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
        let scope = Scope { region: "us-east-1", service: "service", now_s: IN_2015 };
        let request = Request { method: "GET", path: "/", query: "", body_hash: EMPTY_BODY };
        let common = [("Host", "example.amazonaws.com"), ("X-Amz-Date", "20150830T123600Z")];
        assert_eq!(
            authorization(&request, common.into_iter(), &who, &scope),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        );
        let more = [("My-Header1", " value1"), ("My-Header2", " \"a   b   c\" ")];
        let found = authorization(&request, common.into_iter().chain(more), &who, &scope);
        assert!(
            found.ends_with("acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"),
            "{found}"
        );
    }

    #[test]
    fn credentials_are_not_shown() {
        let shown = format!("{:?}", credentials("AKIDEXAMPLE", "hush"));
        assert_eq!(shown, "Credentials { .. }");
    }
}
