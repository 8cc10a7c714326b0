//! User and password in a request (RFC 7617).

use memory::secret::Secret;

/// The value of `Authorization` for a user and a password.
pub fn basic_authorization(user: &str, password: &[u8]) -> Secret {
    let mut pair = Secret::copy_of(&[user.as_bytes(), b":", password].concat());
    let value = format!("Basic {}", base64(pair.bytes()));
    pair.bytes_mut().fill(0);
    Secret::new(value.into_bytes())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let group = three.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = usize::try_from(group >> (18 - 6 * place) & 63).unwrap_or_default();
            let digit = DIGITS.get(digit).copied().map(char::from);
            text.push(digit.filter(|_| place <= three.len()).unwrap_or('='));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_a_password_are_as_rfc_7617_has_them() {
        let value = basic_authorization("Aladdin", b"open sesame");
        assert_eq!(value.bytes(), b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        for (bytes, text) in [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v")] {
            assert_eq!(base64(bytes), text);
        }
        assert!(!format!("{value:?}").contains("QWxh"));
    }
}
