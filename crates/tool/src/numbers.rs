//! Whole numbers as arguments, read as C's `strtol` reads them: QEMU's tools take what it takes.

/// A number with white space or `+` before it, if one likes, and `0x` or `0` for the base.
///
/// # Errors
/// When it is none, or too large.
pub fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let digits = text.trim_start();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let octal = digits.strip_prefix('0').filter(|digits| !digits.is_empty());
    let (digits, radix) = match (hexadecimal, octal) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return Err("a whole number is needed".to_owned());
    }
    let number = u64::from_str_radix(digits, radix).map_err(|error| error.to_string())?;
    T::try_from(number).map_err(|_| format!("{number} is too large"))
}

/// Reads a number, as [`whole`], from `min` to `max`.
pub fn between<T: TryFrom<u64>>(
    min: u64,
    max: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| match whole(text)? {
        number if (min..=max).contains(&number) => T::try_from(number).map_err(|_| "too large".to_owned()),
        number => Err(format!("{number} is not in {min}..={max}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        let table = [(" 2", Some(2)), ("0x10", Some(16)), ("010", Some(8)), ("0", Some(0)), ("+3", Some(3))];
        for (text, expected) in table {
            assert_eq!(whole::<u32>(text).ok(), expected, "{text:?}");
        }
        for text in ["", " ", "-1", "2 ", "0x", "x", "+-1", "4294967296"] {
            assert!(whole::<u32>(text).is_err(), "{text:?}");
        }
        let read = between::<u8>(1, 16);
        assert_eq!([read("1"), read(" 0x10")], [Ok(1), Ok(16)]);
        assert_eq!(read("0"), Err("0 is not in 1..=16".to_owned()));
        assert!(read("17").is_err() && read("256").is_err());
    }
}
