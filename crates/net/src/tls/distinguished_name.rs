//! The name of a certificate's subject as text (RFC 4514), in the order of the certificate: `CN=host,O=Company`.
//!
//! The certificate was verified before; nothing here is allocated in proportion to a length that its bytes do not have.

/// Attribute types with a short name: the encoded object identifier (X.520; RFC 4519), and the name.
const TYPES: [(&[u8], &str); 13] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "surName"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "EMAIL"),
];

/// Tags of DER (X.690, 8.1.2).
mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const OBJECT_IDENTIFIER: u8 = 0x06;
    pub const UTF8: u8 = 0x0c;
    pub const PRINTABLE: u8 = 0x13;
    pub const IA5: u8 = 0x16;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
    /// The version of a certificate (RFC 5280, 4.1).
    pub const VERSION: u8 = 0xa0;
}

/// The subject of the certificate `der`; `None` when it is no certificate.
pub fn subject(der: &[u8]) -> Option<String> {
    let mut certificate = Reader(Reader(der).expect(tag::SEQUENCE)?);
    let mut signed = Reader(certificate.expect(tag::SEQUENCE)?);
    if signed.0.first() == Some(&tag::VERSION) {
        signed.expect(tag::VERSION)?;
    }
    signed.expect(tag::INTEGER)?;
    // Algorithm, issuer, times of validity.
    for _ in 0..3 {
        signed.expect(tag::SEQUENCE)?;
    }
    name(signed.expect(tag::SEQUENCE)?)
}

/// A name as text (RFC 5280, 4.1.2.4).
fn name(der: &[u8]) -> Option<String> {
    let (mut parts, mut names) = (Vec::new(), Reader(der));
    while !names.0.is_empty() {
        let (mut values, mut set) = (Vec::new(), Reader(names.expect(tag::SET)?));
        while !set.0.is_empty() {
            let mut attribute = Reader(set.expect(tag::SEQUENCE)?);
            let kind = attribute.expect(tag::OBJECT_IDENTIFIER)?;
            let (tag, value) = attribute.next()?;
            values.push(format!("{}={}", type_name(kind), shown(tag, value)));
        }
        parts.push(values.join("+"));
    }
    Some(parts.join(","))
}

fn type_name(kind: &[u8]) -> String {
    let known = TYPES.iter().find(|(encoded, _)| *encoded == kind);
    known.map_or_else(|| dotted(kind), |(_, name)| (*name).to_owned())
}

/// An object identifier in numbers (X.690, 8.19).
fn dotted(encoded: &[u8]) -> String {
    let (mut numbers, mut number) = (Vec::new(), 0u64);
    for byte in encoded {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(number);
            number = 0;
        }
    }
    let first = numbers.first().copied().unwrap_or(0);
    let top = (first / 40).min(2);
    let all = [top, first - top * 40].into_iter().chain(numbers.into_iter().skip(1));
    all.map(|number| number.to_string()).collect::<Vec<_>>().join(".")
}

/// A value with what RFC 4514 escapes (2.4). What is no text is shown in hexadecimal digits.
fn shown(tag: u8, value: &[u8]) -> String {
    let is_text = [tag::UTF8, tag::PRINTABLE, tag::IA5].contains(&tag);
    let Some(text) = std::str::from_utf8(value).ok().filter(|_| is_text) else {
        return value.iter().fold("#".to_owned(), |shown, byte| shown + &format!("{byte:02x}"));
    };
    let last = text.chars().count().saturating_sub(1);
    let mut shown = String::with_capacity(text.len());
    for (at, char) in text.chars().enumerate() {
        let at_edge = (at == 0 && "# ".contains(char)) || (at == last && char == ' ');
        if at_edge || "\"+,;<>\\".contains(char) {
            shown.push('\\');
        }
        shown.push(char);
    }
    shown
}

/// Elements one after another.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The content of the next element, which must have this tag.
    fn expect(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }

    /// Tag and content of the next element (X.690, 8.1).
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        let len = if len < 0x80 { vec![len] } else { vec![0x81, len] };
        [&[tag], &len[..], content].concat()
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let both = [element(tag::OBJECT_IDENTIFIER, kind), element(tag, value)].concat();
        element(tag::SET, &element(tag::SEQUENCE, &both))
    }

    fn certificate(subject: &[u8]) -> Vec<u8> {
        let empty = element(tag::SEQUENCE, &[]);
        let version = element(tag::VERSION, &element(tag::INTEGER, &[2]));
        let number = element(tag::INTEGER, &[1]);
        let signed =
            [version, number, empty.clone(), empty.clone(), empty, element(tag::SEQUENCE, subject)].concat();
        element(tag::SEQUENCE, &element(tag::SEQUENCE, &signed))
    }

    #[test]
    fn a_subject_is_shown_in_its_own_order_with_what_must_be_escaped() {
        let name = [
            attribute(&[0x55, 4, 3], tag::UTF8, b"a,b "),
            attribute(&[0x55, 4, 10], tag::PRINTABLE, b"#x"),
            attribute(&[0x2b, 6, 1, 4, 1, 0x82, 0x37], tag::IA5, b"y"),
            attribute(&[0x55, 4, 6], 0x1e, &[0, 0x41]),
        ]
        .concat();
        let shown = subject(&certificate(&name)).unwrap();
        assert_eq!(shown, "CN=a\\,b\\ ,O=\\#x,1.3.6.1.4.1.311=y,C=#0041");
    }

    #[test]
    fn what_is_no_certificate_has_no_name_wherever_it_is_cut() {
        let whole = certificate(&attribute(&[0x55, 4, 3], tag::UTF8, b"a"));
        assert_eq!(subject(&whole).as_deref(), Some("CN=a"));
        for len in 0..whole.len() {
            assert_eq!(subject(&whole[..len]), None, "{len}");
        }
        assert_eq!(subject(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
