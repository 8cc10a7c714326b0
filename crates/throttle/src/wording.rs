//! Numbers as people write them.

use crate::{Flow, Measure};

/// "100 IOPS" or "10 MiB/s".
pub(crate) fn rate(flow: Flow, per_second: u64) -> String {
    match flow.measure() {
        Measure::Operations => format!("{per_second} IOPS"),
        Measure::Bytes => format!("{}/s", bytes(per_second)),
    }
}

/// "2000 requests" or "10 MiB". `units` may be a fraction.
pub(crate) fn units(flow: Flow, units: f64) -> String {
    match flow.measure() {
        Measure::Operations if units == 1.0 => "1 request".to_owned(),
        Measure::Operations => format!("{} requests", decimal(units)),
        Measure::Bytes => bytes(units as u64),
    }
}

/// "4 KiB", "1.5 MiB", "1000 bytes".
pub(crate) fn bytes(count: u64) -> String {
    let unit = |factor: f64, name| format!("{} {name}", decimal(count as f64 / factor));
    match count {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{count} bytes"),
        0x400..0x10_0000 => unit(1024.0, "KiB"),
        0x10_0000..0x4000_0000 => unit(1024.0 * 1024.0, "MiB"),
        0x4000_0000..0x100_0000_0000 => unit(1024.0 * 1024.0 * 1024.0, "GiB"),
        _ => unit(1024.0 * 1024.0 * 1024.0 * 1024.0, "TiB"),
    }
}

/// "1200 s", "63.2 s", "100 ms".
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds >= 1.0 || seconds == 0.0 {
        format!("{} s", decimal(seconds))
    } else if seconds >= 0.001 {
        format!("{} ms", decimal(seconds * 1e3))
    } else {
        format!("{} µs", decimal(seconds * 1e6))
    }
}

/// At most one digit after the point, none that is zero.
pub(crate) fn decimal(number: f64) -> String {
    let rounded = format!("{number:.1}");
    rounded.strip_suffix(".0").map(str::to_owned).unwrap_or(rounded)
}

/// "a 4 KiB", "an 8 KiB".
pub(crate) fn with_article(words: &str) -> String {
    let number: String = words.chars().take_while(char::is_ascii_digit).collect();
    let vowel = number.starts_with('8') || number == "11" || number == "18";
    format!("{} {words}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(
            [bytes(1), bytes(1000), bytes(1536), bytes(10 << 20)],
            ["1 byte", "1000 bytes", "1.5 KiB", "10 MiB"]
        );
        assert_eq!([seconds(1200.0), seconds(63.157), seconds(0.1)], ["1200 s", "63.2 s", "100 ms"]);
        assert_eq!(
            [with_article("8 KiB"), with_article("18 KiB"), with_article("16 KiB")],
            ["an 8 KiB", "an 18 KiB", "a 16 KiB"]
        );
    }
}
