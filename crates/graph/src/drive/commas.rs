//! Text of options: parts between commas.

/// The parts between single commas; a doubled comma stands for one inside a part.
pub fn split_commas(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let mut bytes = rest.take()?;
        let mut part = Vec::new();
        loop {
            let Some(comma) = bytes.iter().position(|&byte| byte == b',') else {
                part.extend_from_slice(bytes);
                return Some(part);
            };
            part.extend_from_slice(&bytes[..comma]);
            bytes = &bytes[comma + 1..];
            let Some(after) = bytes.strip_prefix(b",") else {
                rest = Some(bytes);
                return Some(part);
            };
            part.push(b',');
            bytes = after;
        }
    })
}

/// As [`split_commas`], of text.
pub fn split_text(text: &str) -> impl Iterator<Item = String> {
    // A comma is no part of another letter: what was text before stays text.
    split_commas(text.as_bytes()).map(|part| String::from_utf8_lossy(&part).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubled_comma_stands_for_one_and_any_other_ends_a_part() {
        for (text, parts) in [
            ("", &[""][..]),
            ("a,b", &["a", "b"]),
            ("a,,b,c", &["a,b", "c"]),
            ("a,,,b", &["a,", "b"]),
            (",a,", &["", "a", ""]),
            ("größe,,ö,ü", &["größe,ö", "ü"]),
        ] {
            assert_eq!(split_text(text).collect::<Vec<_>>(), parts, "{text}");
        }
    }
}
