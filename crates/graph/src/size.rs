//! Sizes as people write them: `65536`, `64k`, `1.5G`.
//!
//! Suffixes are binary (k = 1024), as everywhere in QEMU. Arithmetic is exact: no float in between.

use thiserror::Error;

/// Suffixes by power of 1024. `B` says "bytes" aloud.
const SUFFIXES: [(char, u32); 7] = [('b', 0), ('k', 1), ('m', 2), ('g', 3), ('t', 4), ('p', 5), ('e', 6)];

/// Digits after the point that still matter: 2^60 has 19 digits.
const FRACTION_DIGITS_MAX: usize = 18;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// Nothing to read.
    #[error("size is empty; write a number of bytes, or one with a suffix k, M, G, T, P or E")]
    Empty,
    /// Sizes do not go below zero.
    #[error("size {0:?} is negative; must be 0 or more")]
    Negative(String),
    /// Not digits, or the point is in the wrong place.
    #[error("size {0:?} is not a number; write digits, then at most one of k, M, G, T, P, E (1.5G is 1536M)")]
    NotANumber(String),
    /// A letter that names no power of 1024.
    #[error("size {found:?} ends in {suffix:?}; allowed are k, M, G, T, P, E (powers of 1024) and B")]
    Suffix {
        /// The whole text.
        found: String,
        /// What stands after the number.
        suffix: String,
    },
    /// There are no half bytes.
    #[error("size {0:?} is not a whole number of bytes")]
    PartOfAByte(String),
    /// Beyond 64 bits.
    #[error("size {0:?} is too large; must be below 16E (2^64 bytes)")]
    TooLarge(String),
}

/// Reads a size in bytes.
///
/// A fraction needs a suffix (`1.5k`), and is rounded to the nearest byte.
///
/// # Errors
/// When the text is not a size, or is 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let found = text.trim();
    if found.is_empty() {
        return Err(SizeError::Empty);
    }
    if found.starts_with('-') {
        return Err(SizeError::Negative(found.into()));
    }
    if let Some(hex) = found.strip_prefix("0x").or_else(|| found.strip_prefix("0X")) {
        return parse_hex(found, hex);
    }
    // As the C library reads numbers: a sign, and a point at either end.
    let unsigned = found.strip_prefix('+').unwrap_or(found);
    let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let scale = scale_of(found, number, suffix)?;
    let (whole, fraction) = match number.split_once('.') {
        None => (number, ""),
        Some((whole, fraction)) => (whole, fraction),
    };
    let not_a_number = || SizeError::NotANumber(found.into());
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(not_a_number());
    }
    if scale == 1 && fraction.bytes().any(|digit| digit != b'0') {
        return Err(SizeError::PartOfAByte(found.into()));
    }
    let too_large = || SizeError::TooLarge(found.into());
    let whole = if whole.is_empty() { "0" } else { whole };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let bytes = u128::from(whole) * u128::from(scale) + fraction_bytes(fraction, scale);
    u64::try_from(bytes).map_err(|_| too_large())
}

fn parse_hex(found: &str, digits: &str) -> Result<u64, SizeError> {
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(SizeError::NotANumber(found.into()));
    }
    u64::from_str_radix(digits, 16).map_err(|_| SizeError::TooLarge(found.into()))
}

fn scale_of(found: &str, number: &str, suffix: &str) -> Result<u64, SizeError> {
    if number.is_empty() {
        return Err(SizeError::NotANumber(found.into()));
    }
    if suffix.is_empty() {
        return Ok(1);
    }
    let mut letters = suffix.chars();
    let letter = letters.next().unwrap_or_default().to_ascii_lowercase();
    match SUFFIXES.iter().find(|(known, _)| *known == letter) {
        Some((_, power)) if letters.next().is_none() => Ok(1024u64.pow(*power)),
        _ => Err(SizeError::Suffix { found: found.into(), suffix: suffix.into() }),
    }
}

/// `0.fraction * scale`, rounded to the nearest byte.
fn fraction_bytes(fraction: &str, scale: u64) -> u128 {
    let kept = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
    let Ok(digits) = kept.parse::<u128>() else { return 0 };
    let denominator = 10u128.pow(u32::try_from(kept.len()).unwrap_or(0));
    (digits * u128::from(scale) * 2 + denominator) / (denominator * 2)
}

/// `bytes` for people: three significant digits and a binary unit, as in `1.5 GiB`.
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    // A value that would round to 1000 or more is written in the next unit, as qemu-img does.
    while unit + 1 < UNITS.len() && u128::from(bytes) >= (1000u128 << (10 * unit)) {
        unit += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let value = bytes as f64 / (1u128 << (10 * unit)) as f64;
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// As C's `%0.3g` for 0 and for values from 0.1 to below 1000.
fn three_digits(value: f64) -> String {
    let places = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    let places = if value < 0.9995 && value > 0.0 { 3 } else { places };
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_what_its_digits_and_suffix_say() {
        let table = [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("1024.0", 1024),
            ("1024.00b", 1024),
            ("1k", 1024),
            ("1K", 1024),
            ("64k", 65536),
            ("+5", 5),
            (".5G", 1 << 29),
            ("5.G", 5 << 30),
            ("1.", 1),
            ("1.5k", 1536),
            ("2M", 2 << 20),
            ("1.5G", 3 << 29),
            ("20G", 20 << 30),
            ("3T", 3 << 40),
            ("1P", 1 << 50),
            ("7E", 7 << 60),
            ("0.5E", 1 << 59),
            ("0x10000", 65536),
            ("18446744073709551615", u64::MAX),
            ("15.999999999999999999E", u64::MAX),
            (" 4k ", 4096),
            ("0.0004882812k", 0),
            ("0.00048828125k", 1),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_by_reason() {
        let suffix =
            |found: &str, suffix: &str| SizeError::Suffix { found: found.into(), suffix: suffix.into() };
        let table = [
            ("", SizeError::Empty),
            ("  ", SizeError::Empty),
            ("-1", SizeError::Negative("-1".into())),
            ("k", SizeError::NotANumber("k".into())),
            ("1..5G", SizeError::NotANumber("1..5G".into())),
            (".", SizeError::NotANumber(".".into())),
            ("+", SizeError::NotANumber("+".into())),
            ("++5", SizeError::NotANumber("++5".into())),
            ("0xg", SizeError::NotANumber("0xg".into())),
            ("0x", SizeError::NotANumber("0x".into())),
            ("1.5", SizeError::PartOfAByte("1.5".into())),
            ("1.5B", SizeError::PartOfAByte("1.5B".into())),
            ("1KiB", suffix("1KiB", "KiB")),
            ("1q", suffix("1q", "q")),
            ("1 k", suffix("1 k", " k")),
            ("16E", SizeError::TooLarge("16E".into())),
            ("18446744073709551616", SizeError::TooLarge("18446744073709551616".into())),
            ("99999999999999999999999", SizeError::TooLarge("99999999999999999999999".into())),
            ("0x10000000000000000", SizeError::TooLarge("0x10000000000000000".into())),
        ];
        for (text, error) in table {
            assert_eq!(parse_size(text), Err(error), "{text}");
        }
    }

    #[test]
    fn human_sizes_have_three_digits_and_a_binary_unit() {
        let table = [
            (0, "0 B"),
            (512, "512 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (417792, "408 KiB"),
            (10 << 20, "10 MiB"),
            (1 << 30, "1 GiB"),
            (20 << 30, "20 GiB"),
            ((1 << 60) * 2, "2 EiB"),
        ];
        for (bytes, text) in table {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }
}
