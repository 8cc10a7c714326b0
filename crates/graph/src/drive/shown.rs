//! A drive in a message: without the credentials it may contain.

use std::ffi::OsStr;
use std::path::Path;

use crate::drivers::storage_of;

/// What messages call a drive that cannot be used: `text` without cookies, and without user, password and query of URLs.
pub fn shown(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    let may_tell = text.contains("cookie") || text.contains("://") || text.contains("rbd:");
    match text.strip_prefix("json:") {
        Some(_) if may_tell => "json:{...}".to_owned(),
        Some(_) => text.into_owned(),
        None => text.split(',').map(part).collect::<Vec<_>>().join(","),
    }
}

/// An option, or a name by itself.
fn part(part: &str) -> String {
    let (key, value) = match part.split_once('=') {
        Some((key, value)) if !key.contains(':') => (Some(key), value),
        _ => (None, part),
    };
    let value = match key {
        Some(key) if key.ends_with("cookie") => "hidden".to_owned(),
        _ => name(value),
    };
    key.map_or_else(|| value.clone(), |key| format!("{key}={value}"))
}

/// The name of a file.
fn name(value: &str) -> String {
    storage_of(Path::new(value)).map_or_else(|| value.to_owned(), |driver| driver.shown(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_shown_without_what_lets_in() {
        for (drive, expected) in [
            ("disk.qcow2,cache=none", "disk.qcow2,cache=none"),
            ("nbd://host/x?socket=y", "nbd://host/x?socket=y"),
            ("rbd:p/i:conf=/a:key=hush", "rbd:p/i"),
            ("http://me:hush@host/x?hush", "http://host/x"),
            ("file=http://me:hush@host/x,file.cookie=hush", "file=http://host/x,file.cookie=hidden"),
            (r#"json:{"file":{"driver":"http","cookie":"hush"}}"#, "json:{...}"),
            (r#"json:{"file":{"filename":"a"}}"#, r#"json:{"file":{"filename":"a"}}"#),
        ] {
            assert_eq!(shown(OsStr::new(drive)), expected);
        }
    }
}
