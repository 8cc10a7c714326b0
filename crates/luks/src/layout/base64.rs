//! Bytes as base64 text (RFC 4648, 4): salts and digests of LUKS2 headers, and secrets.

use crate::layout::Secret;

/// The bytes of `text`: whole groups of four digits, the last one padded. `None` if it is anything else.
pub fn decode(text: &[u8]) -> Option<Secret> {
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if padding > 2 || !text.len().is_multiple_of(4) {
        return None;
    }
    let (digits, _) = text.split_at(text.len() - padding);
    let mut bytes = Secret::zeroed(digits.len() * 6 / 8);
    let (mut held, mut bits, mut at) = (0_u32, 0, 0);
    for digit in digits {
        held = (held << 6 | u32::from(value(*digit)?)) & 0xfff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.bytes_mut()[at] = (held >> bits) as u8;
            at += 1;
        }
    }
    (held & ((1 << bits) - 1) == 0).then_some(bytes)
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_and_nothing_else_is() {
        let table = [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9vYmFy", Some("foobar")),
            ("Zm9", None),
            ("Zm9=", None),
            ("Z===", None),
            ("Zm-v", None),
            ("Zm9v\n", None),
        ];
        for (text, expected) in table {
            let found = decode(text.as_bytes()).map(|secret| secret.bytes().to_vec());
            assert_eq!(found, expected.map(|text| text.as_bytes().to_vec()), "{text:?}");
        }
    }
}
