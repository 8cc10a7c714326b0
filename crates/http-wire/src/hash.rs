//! Hashes of bodies, and escaped names.

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

/// Escapes what is no letter, digit or one of `-._~` (and `/` in a path), as signatures want it.
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
