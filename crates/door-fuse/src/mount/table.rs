//! The kernel's table of mounts (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// MAJOR:MINOR.
    pub(super) device: String,
    pub(super) file_system: String,
}

/// The mount at `path` that lies over all others there.
pub(super) fn top(path: &Path) -> Option<Entry> {
    top_in(&std::fs::read("/proc/self/mountinfo").ok()?, path)
}

fn top_in(table: &[u8], path: &Path) -> Option<Entry> {
    // Later ones lie over earlier ones.
    table.split(|&byte| byte == b'\n').rev().find_map(|line| entry(line, path))
}

/// What a line says, if it is about `path`.
fn entry(line: &[u8], path: &Path) -> Option<Entry> {
    let mut words = line.split(|&byte| byte == b' ');
    let device = words.nth(2)?;
    let place = words.nth(1)?;
    if unescaped(place).as_bytes() != path.as_os_str().as_bytes() {
        return None;
    }
    let file_system = words.skip_while(|word| *word != b"-").nth(1)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Entry { device: text(device), file_system: text(file_system) })
}

/// Blanks, tabs, line ends and backslashes stand there as a backslash and three octal digits.
fn unescaped(mut word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    while let Some((&byte, rest)) = word.split_first() {
        let digits =
            rest.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        let code =
            digits.map(|digits| digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0')));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(code) => {
                bytes.push(code);
                word = rest.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                word = rest;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = br"22 1 0:20 / / rw,noatime shared:1 - ext4 /dev/vda1 rw
40 22 0:33 / /a\040b rw,nosuid,nodev - fuse.cowhand cowhand rw,user_id=0,group_id=0
41 22 0:34 / /c rw master:1 propagate_from:2 - fuse.cowhand cowhand rw
42 41 0:35 / /c rw - tmpfs tmpfs rw
";

    #[test]
    fn the_last_mount_at_a_place_is_the_one_that_is_seen() {
        let top = |path: &str| top_in(TABLE, Path::new(path));
        let entry =
            |device: &str, kind: &str| Some(Entry { device: device.into(), file_system: kind.into() });
        assert_eq!(top("/a b"), entry("0:33", "fuse.cowhand"));
        assert_eq!(top("/c"), entry("0:35", "tmpfs"));
        assert_eq!(top("/"), entry("0:20", "ext4"));
        assert_eq!(top("/a"), None);
    }

    #[test]
    fn only_three_octal_digits_are_an_escape() {
        assert_eq!(unescaped(br"a\134b\011c\04"), OsString::from("a\\b\tc\\04"));
        assert_eq!(unescaped(br"\777\08x"), OsString::from(r"\777\08x"));
    }
}
