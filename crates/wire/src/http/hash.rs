//! Hashes of bodies, and escaped names.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{Context, SHA256, digest};

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

/// What signatures leave as it is.
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in a path.
const OF_PATHS: AsciiSet = UNRESERVED.remove(b'/');

/// Escapes what is no letter, digit or one of `-._~` (and `/` in a path), as signatures want it.
pub fn escaped(text: &str, keeps_slash: bool) -> String {
    utf8_percent_encode(text, if keeps_slash { &OF_PATHS } else { &UNRESERVED }).to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
