//! Result lines, to the letter as qemu-io writes them: scripts read them.

use std::io::{self, Write};
use std::time::Duration;

/// What a request was about, for its result line.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// What was done: `read`, `wrote`, `discard`.
    pub verb: &'static str,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Moved {
    /// Two lines for people.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { verb, offset, bytes, elapsed } = *self;
        #[expect(clippy::cast_precision_loss, reason = "three digits behind the point are shown")]
        let rate = units(bytes as f64 / seconds(elapsed));
        writeln!(out, "{verb} {bytes}/{bytes} bytes at offset {offset}")?;
        let operations = 1.0 / seconds(elapsed);
        writeln!(out, "{}, 1 ops; {} ({rate}/sec and {operations:.4} ops/sec)", size(bytes), time(elapsed))
    }

    /// One line for programs (`-C`): bytes, operations, time, bytes and operations per second.
    pub fn write_machine(&self, out: &mut dyn Write) -> io::Result<()> {
        #[expect(clippy::cast_precision_loss, reason = "three digits behind the point are shown")]
        let rate = self.bytes as f64 / seconds(self.elapsed);
        let (time, operations) = (clock(self.elapsed), 1.0 / seconds(self.elapsed));
        writeln!(out, "{},1,{time},{rate:.3},{operations:.3}", self.bytes)
    }
}

/// Never zero: rates are divided by it.
fn seconds(elapsed: Duration) -> f64 {
    elapsed.max(Duration::from_nanos(1)).as_secs_f64()
}

fn time(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        0..60 => format!("{:02}.{:02} sec", elapsed.as_secs(), elapsed.subsec_millis() / 10),
        _ => clock(elapsed),
    }
}

fn clock(elapsed: Duration) -> String {
    let (seconds, hundredths) = (elapsed.as_secs(), elapsed.subsec_millis() / 10);
    format!("{}:{:02}:{:02}.{hundredths:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// A number of bytes with its unit: `64 KiB`, `3.812 MiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits behind the point are shown")]
pub fn size(bytes: u64) -> String {
    units(bytes as f64)
}

fn units(value: f64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (value, None);
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, Some(name));
    }
    match unit {
        Some(unit) => {
            let shown = format!("{value:.3}");
            format!("{} {unit}", shown.strip_suffix(".000").unwrap_or(&shown))
        }
        None => {
            let shown = format!("{value:.6}");
            format!("{} bytes", shown.strip_suffix(".000000").unwrap_or(&shown))
        }
    }
}

/// Bytes in rows of 16 (`-v`), each with its offset and which letters and digits they are.
pub fn dump(out: &mut dyn Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    for (row, bytes) in bytes.chunks(16).enumerate() {
        write!(out, "{:08x}:  ", offset + row as u64 * 16)?;
        bytes.iter().try_for_each(|byte| write!(out, "{byte:02x} "))?;
        let text =
            bytes.iter().map(|byte| if byte.is_ascii_alphanumeric() { char::from(*byte) } else { '.' });
        writeln!(out, " {}", text.collect::<String>())?;
    }
    Ok(())
}

/// The system's words for an error number.
pub fn words_of(number: i32) -> String {
    let text = io::Error::from_raw_os_error(number).to_string();
    text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned()
}

/// Why a request failed, in the system's words.
pub fn reason(error: &block::Error) -> String {
    let by_kind = || match error {
        block::Error::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => libc::EFBIG,
        block::Error::Io { .. } if error.is_no_space() => libc::ENOSPC,
        block::Error::Io { source, .. } if source.kind() == io::ErrorKind::Unsupported => libc::ENOTSUP,
        block::Error::Io { source, .. } if source.kind() == io::ErrorKind::OutOfMemory => libc::ENOMEM,
        block::Error::Unsupported { .. } => libc::ENOTSUP,
        block::Error::Invalid { .. } => libc::EINVAL,
        block::Error::Io { .. }
        | block::Error::Corrupt { .. }
        | block::Error::Refused { .. }
        | block::Error::PastEnd { .. } => libc::EIO,
    };
    words_of(error.raw_os_error().unwrap_or_else(by_kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        write(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn sizes_have_three_digits_behind_the_point_or_none() {
        let table = [
            (0, "0 bytes"),
            (512, "512 bytes"),
            (5632, "5.500 KiB"),
            (65536, "64 KiB"),
            (0x3d0000, "3.812 MiB"),
            (1 << 62, "4 EiB"),
        ];
        for (bytes, shown) in table {
            assert_eq!(size(bytes), shown);
        }
        assert_eq!(units(5.1024451), "5.102445 bytes");
    }

    #[test]
    fn a_result_has_qemu_ios_lines() {
        let moved = Moved { verb: "read", offset: 5, bytes: 65536, elapsed: Duration::from_micros(2000) };
        let human = "read 65536/65536 bytes at offset 5\n64 KiB, 1 ops; 00.00 sec (31.250 MiB/sec and 500.0000 ops/sec)\n";
        assert_eq!(text(|out| moved.write_human(out)), human);
        assert_eq!(text(|out| moved.write_machine(out)), "65536,1,0:00:00.00,32768000.000,500.000\n");
        let long = Moved { bytes: 1, elapsed: Duration::from_millis(3_723_450), ..moved };
        assert!(text(|out| long.write_human(out)).contains("1 ops; 1:02:03.45 ("));
    }

    #[test]
    fn bytes_are_shown_in_rows() {
        let bytes: Vec<u8> = (0x3a..0x3a + 18).collect();
        let rows = "\
00000005:  3a 3b 3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49  .......ABCDEFGHI
00000015:  4a 4b  JK
";
        assert_eq!(text(|out| dump(out, 5, &bytes)), rows);
    }
}
