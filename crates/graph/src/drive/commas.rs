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
