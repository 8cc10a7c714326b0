//! DRIVE, as a user writes it on the command line, to a tree of options.
//!
//! Three forms are understood, tried in this order:
//!
//! 1. `json:{...}`: a JSON object; nested objects and dotted keys mean the same.
//! 2. The name of something that exists, whatever characters it holds: a path. So is a name with the prefix of a storage driver.
//! 3. `key=value,key=value`: QEMU's drive syntax, if the text before the first `=` is an option's
//!    name. A comma inside a value is written twice; `backing.l2-cache-size=1M` reaches into the chain. The name of a switch alone
//!    is `on`, with `no` before it `off`. Of several values of one option the last counts.
//!
//! Anything else is the path of a file that does not exist yet, unless it looks like a URL or like
//! options with `file=` forgotten: those are refused, because a typing error would create a file.
//!
//! `file=PATH` is short for `file.filename=PATH`, and likewise `backing.file=` and `data-file=`.

mod alone;
mod below;
mod change;
mod commas;
mod path;
mod shown;
mod tree;

pub use self::commas::{split_commas, split_text};
pub(crate) use self::path::{PATH_PROTOCOLS, split_protocol};
pub use self::path::{directory_of, names_device, path_of, place_of, unknown_protocol};
pub use self::shown::shown;
pub use self::tree::{DriveError, Entry, KEY_PARTS_MAX, OptionTree};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use self::path::{called_a_device, called_a_path, first_key};
use crate::drivers::{storage, storage_of};
use crate::options::table::{is_file, is_flat, is_option_name, is_switch};

/// Reads a DRIVE. `exists` says whether a path names something that is there.
///
/// # Errors
/// When the text is none of the three forms, or contradicts itself.
pub fn parse_drive(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Result<OptionTree, DriveError> {
    parse_as_written(text, exists)?.with_format()
}

/// The driver of storage of which a DRIVE is made with no format over it (`driver=nbd,...`), if it is: `parse_drive` adds the raw format.
pub fn bare_driver(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Option<&'static str> {
    let driver = parse_as_written(text, exists).ok()?.driver()?;
    storage(&driver).map(|driver| driver.name)
}

fn parse_as_written(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Result<OptionTree, DriveError> {
    let bytes = text.as_bytes();
    if bytes.is_empty() {
        return Err(DriveError::Empty);
    }
    if let Some(json) = bytes.strip_prefix(b"json:") {
        let json = std::str::from_utf8(json).map_err(|_| DriveError::NotUtf8 { what: "json:" })?;
        return parse_json(json);
    }
    if exists(Path::new(text)) || storage_of(Path::new(text)).is_some() {
        return Ok(OptionTree::of_path(text));
    }
    if let Some(path) = called_a_path(text) {
        return Ok(OptionTree::of_path(path));
    }
    if let Some((driver, path)) = called_a_device(text) {
        let mut tree = OptionTree::of_path(path);
        tree.insert("file.driver", Entry::Value(driver.into()))?;
        return Ok(tree);
    }
    if first_key(bytes).is_some_and(is_option_name) {
        return parse_keyed(bytes);
    }
    let text_lossy = || text.to_string_lossy().into_owned();
    if looks_like_url(bytes) {
        return Err(DriveError::Url { text: text_lossy() });
    }
    if has_option_behind_comma(bytes) {
        return Err(DriveError::FileForgotten { text: text_lossy() });
    }
    Ok(OptionTree::of_path(text))
}

/// Reads `key=value,key=value`.
fn parse_keyed(bytes: &[u8]) -> Result<OptionTree, DriveError> {
    let mut tree = OptionTree::default();
    for part in split_commas(bytes) {
        let (key, value) = key_and_value(&part)?;
        tree.insert_last(key, value)?;
    }
    Ok(tree)
}

/// One part between commas. The name of a switch alone is on; with `no` before it, off.
fn key_and_value(part: &[u8]) -> Result<(&str, &OsStr), DriveError> {
    let Some(equals) = part.iter().position(|&byte| byte == b'=') else {
        return switch_alone(part)
            .ok_or_else(|| DriveError::NoValue { part: String::from_utf8_lossy(part).into_owned() });
    };
    let key =
        std::str::from_utf8(&part[..equals]).map_err(|_| DriveError::NotUtf8 { what: "an option's name" })?;
    Ok((key, OsStr::from_bytes(&part[equals + 1..])))
}

/// What the name of a switch means without a value.
fn switch_alone(part: &[u8]) -> Option<(&str, &'static OsStr)> {
    let part = std::str::from_utf8(part).ok()?;
    match part.strip_prefix("no") {
        _ if is_switch(part) => Some((part, OsStr::new("on"))),
        Some(rest) if is_switch(rest) => Some((rest, OsStr::new("off"))),
        _ => None,
    }
}

impl OptionTree {
    /// A drive that a JSON object (or another structured file, as JSON) describes.
    ///
    /// # Errors
    /// When an option is given twice, is a list, or has a malformed name.
    pub fn of_json(object: serde_json::Map<String, serde_json::Value>) -> Result<Self, DriveError> {
        let mut tree = Self::default();
        insert_object(&mut tree, "", object)?;
        Ok(tree)
    }

    /// Sets the option with the dotted name `key`.
    ///
    /// # Errors
    /// When it is set already, or its name is malformed or nested beyond [`KEY_PARTS_MAX`].
    pub fn insert(&mut self, key: &str, entry: Entry) -> Result<(), DriveError> {
        match self.insert_or_replace(key, entry, false)? {
            Some(key) => Err(DriveError::Twice { key }),
            None => Ok(()),
        }
    }

    /// Sets the option with the dotted name `key`. What a user said of it before in the same text counts no more, and is warned of.
    ///
    /// # Errors
    /// When something else is under that name, or it is malformed or nested beyond [`KEY_PARTS_MAX`].
    fn insert_last(&mut self, key: &str, value: &OsStr) -> Result<(), DriveError> {
        if let Some(key) = self.insert_or_replace(key, Entry::Value(value.to_owned()), true)? {
            tracing::warn!("option {key} is given twice in DRIVE; the last one counts");
        }
        Ok(())
    }

    /// Gives the full name of the option where it was set already; that is left as it is unless it is to be replaced.
    fn insert_or_replace(
        &mut self,
        key: &str,
        entry: Entry,
        replaces: bool,
    ) -> Result<Option<String>, DriveError> {
        let parts: Vec<&str> = key.split('.').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(DriveError::EmptyKeyPart { key: key.into() });
        }
        // A path where a file is expected.
        if let Entry::Value(path) = &entry
            && is_short_for_filename(&parts)
        {
            let path = called_a_path(path).unwrap_or_else(|| path.clone());
            return self.insert_or_replace(&format!("{key}.filename"), Entry::Value(path), replaces);
        }
        if parts.len() > KEY_PARTS_MAX {
            return Err(DriveError::TooDeep { key: key.into(), found: parts.len() });
        }
        let twice = || DriveError::Twice { key: key.into() };
        let (tree, name) = self.place_of(&parts).ok_or_else(twice)?;
        match tree.entries.get(&name) {
            Some(Entry::Tree(_)) => return Err(twice()),
            Some(_) if !replaces => return Ok(Some(key.to_owned())),
            _ => {}
        }
        Ok(tree.entries.insert(name, entry).map(|_| key.to_owned()))
    }

    /// The tree in which the option with the name `parts` stands, and under which name; `None`: a group's name has a value.
    fn place_of(&mut self, parts: &[&str]) -> Option<(&mut Self, String)> {
        let (first, rest) = parts.split_first()?;
        if rest.is_empty() || is_flat(first) {
            return Some((self, parts.join(".")));
        }
        match self.entries.entry((*first).to_owned()).or_insert_with(|| Entry::Tree(Self::default())) {
            Entry::Tree(inner) => inner.place_of(rest),
            Entry::Value(_) | Entry::Null => None,
        }
    }
}

/// `file=PATH` is short for `file.filename=PATH`.
fn is_short_for_filename(parts: &[&str]) -> bool {
    parts.last().is_some_and(|last| is_file(last))
}

/// `scheme://...`
fn looks_like_url(bytes: &[u8]) -> bool {
    let Some(colon) = bytes.windows(3).position(|window| window == b"://") else { return false };
    colon > 0 && bytes[..colon].iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

fn has_option_behind_comma(bytes: &[u8]) -> bool {
    split_commas(bytes).skip(1).any(|part| first_key(&part).is_some_and(is_option_name))
}

fn parse_json(text: &str) -> Result<OptionTree, DriveError> {
    match serde_json::from_str(&in_double_quotes(text))? {
        serde_json::Value::Object(object) => OptionTree::of_json(object),
        other => Err(DriveError::NotAnObject { found: json_kind(&other) }),
    }
}

fn insert_object(
    tree: &mut OptionTree,
    prefix: &str,
    object: serde_json::Map<String, serde_json::Value>,
) -> Result<(), DriveError> {
    use serde_json::Value;
    for (name, value) in object {
        let key = format!("{prefix}{name}");
        let text = match value {
            Value::Object(inner) => {
                insert_object(tree, &format!("{key}."), inner)?;
                continue;
            }
            Value::Null => {
                tree.insert(&key, Entry::Null)?;
                continue;
            }
            Value::Array(list) => {
                insert_list(tree, &key, list)?;
                continue;
            }
            Value::Bool(true) => "on".into(),
            Value::Bool(false) => "off".into(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => text,
        };
        tree.insert(&key, Entry::Value(text.into()))?;
    }
    Ok(())
}

/// A list of objects stands as numbered groups; no option takes another one.
fn insert_list(tree: &mut OptionTree, key: &str, list: Vec<serde_json::Value>) -> Result<(), DriveError> {
    for (number, value) in list.into_iter().enumerate() {
        match value {
            serde_json::Value::Object(inner) => insert_object(tree, &format!("{key}.{number}."), inner)?,
            _ => return Err(DriveError::List { key: key.to_owned() }),
        }
    }
    Ok(())
}

fn json_kind(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a boolean",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "an object",
    }
}

/// The same JSON where texts stand in single quotes, as people write them between a shell's double ones and QEMU understands them.
fn in_double_quotes(text: &str) -> String {
    let (mut plain, mut quote, mut escaped) = (String::with_capacity(text.len()), None, false);
    for letter in text.chars() {
        let is_quote = matches!(letter, '"' | '\'');
        match quote {
            None if is_quote => {
                quote = Some(letter);
                plain.push('"');
                continue;
            }
            None => {}
            Some(_) if escaped => {
                escaped = false;
                // JSON knows no \' .
                if letter == '\'' {
                    plain.pop();
                }
            }
            Some(open) if letter == open => {
                quote = None;
                plain.push('"');
                continue;
            }
            Some(_) if letter == '"' => plain.push('\\'),
            Some(_) => escaped = letter == '\\',
        }
        plain.push(letter);
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn parse(text: &str) -> Result<OptionTree, String> {
        parse_drive(OsStr::new(text), |_| false).map_err(|error| error.to_string())
    }

    /// Flat view: full names and values, for comparison.
    fn flat(tree: &OptionTree) -> Vec<(String, String)> {
        let mut list = Vec::new();
        for (name, entry) in &tree.entries {
            match entry {
                Entry::Value(value) => list.push((name.clone(), value.to_string_lossy().into_owned())),
                Entry::Null => list.push((name.clone(), "(null)".into())),
                Entry::Tree(inner) => {
                    list.extend(flat(inner).into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
                }
            }
        }
        list
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn each_form_of_a_drive_gives_the_options_it_says() {
        let table: &[(&str, &[(&str, &str)])] = &[
            ("disk.qcow2", &[("file.filename", "disk.qcow2")]),
            ("/a/b=c,d.img", &[("file.filename", "/a/b=c,d.img")]),
            ("a=b.img", &[("file.filename", "a=b.img")]),
            ("dir/file=x", &[("file.filename", "dir/file=x")]),
            ("file=hd.qcow2", &[("file.filename", "hd.qcow2")]),
            ("file=a,,b.img,cache=none", &[("cache", "none"), ("file.filename", "a,b.img")]),
            ("file=a,,,,b", &[("file.filename", "a,,b")]),
            ("file=a=b", &[("file.filename", "a=b")]),
            ("file=a,file=b", &[("file.filename", "b")]),
            (
                "file=a,driver=raw,file.filename=b,driver=qcow2",
                &[("driver", "qcow2"), ("file.filename", "b")],
            ),
            ("file=a,read-only", &[("file.filename", "a"), ("read-only", "on")]),
            (
                "file=a,noread-only,backing.read-only",
                &[("backing.read-only", "on"), ("file.filename", "a"), ("read-only", "off")],
            ),
            ("read-only", &[("file.filename", "read-only")]),
            ("file:a=b", &[("file.filename", "a=b")]),
            ("file:nbd://a", &[("file.filename", "./nbd://a")]),
            ("file:", &[("file.filename", "file:")]),
            ("host_device:/dev/a=b", &[("file.driver", "host_device"), ("file.filename", "/dev/a=b")]),
            ("host_cdrom:x", &[("file.driver", "host_cdrom"), ("file.filename", "x")]),
            ("file=file:a:b", &[("file.filename", "./a:b")]),
            ("file.filename=file:a", &[("file.filename", "file:a")]),
            (
                "file=hd.qcow2,l2-cache-size=2M,cache.direct=on,cache=writeback",
                &[
                    ("cache", "writeback"),
                    ("cache.direct", "on"),
                    ("file.filename", "hd.qcow2"),
                    ("l2-cache-size", "2M"),
                ],
            ),
            (
                "driver=qcow2,file.driver=file,file.filename=x,backing.l2-cache-size=1M,backing.file=y",
                &[
                    ("backing.file.filename", "y"),
                    ("backing.l2-cache-size", "1M"),
                    ("driver", "qcow2"),
                    ("file.driver", "file"),
                    ("file.filename", "x"),
                ],
            ),
            (
                r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"x,y"},"lazy-refcounts":true,"cache.direct":false,"cache-clean-interval":0,"backing":null}"#,
                &[
                    ("backing", "(null)"),
                    ("cache-clean-interval", "0"),
                    ("cache.direct", "off"),
                    ("driver", "qcow2"),
                    ("file.driver", "file"),
                    ("file.filename", "x,y"),
                    ("lazy-refcounts", "on"),
                ],
            ),
            (
                r#"json:{ 'file': {'filename': "it's", 'driver': 'file'}, 'l2-cache-size': '1\'"' }"#,
                &[("file.driver", "file"), ("file.filename", "it's"), ("l2-cache-size", "1'\"")],
            ),
            (
                r#"json:{"file.filename":"x","cache":{"direct":true},"overlap-check":{"template":"all"}}"#,
                &[("cache.direct", "on"), ("file.filename", "x"), ("overlap-check.template", "all")],
            ),
        ];
        for (text, expected) in table {
            let tree = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let mut found = flat(&tree);
            found.sort();
            assert_eq!(found, pairs(expected), "{text}");
        }
    }

    #[test]
    fn what_exists_is_a_path_whatever_it_is_called() {
        for text in ["file=x", "a,cache=none", "floppy://host/x", "cache=none"] {
            let tree = parse_drive(OsStr::new(text), |_| true).unwrap();
            assert_eq!(tree.filename(), Some(PathBuf::from(text)));
        }
    }

    #[test]
    fn a_colon_before_the_first_slash_ends_a_protocol() {
        let unknown = |text| unknown_protocol(OsStr::new(text));
        for (text, protocol) in [
            ("a:b", "a"),
            (":b", ""),
            ("floppy://h/x", "floppy"),
            ("raw:x", "raw"),
            ("file:", "file"),
            ("a=b:c", "a=b"),
        ] {
            assert_eq!(unknown(text).as_deref(), Some(protocol), "{text}");
        }
        for text in [
            "a",
            "./a:b",
            "/a:b",
            "file:a:b",
            "host_device:x",
            "json:{}",
            "null-co://",
            "file=a:b",
            "driver=raw,file=a:b",
        ] {
            assert_eq!(unknown(text), None, "{text}");
        }
    }

    #[test]
    fn a_path_need_not_be_utf8() {
        let text = OsStr::from_bytes(b"/images/\xff.img");
        assert_eq!(parse_drive(text, |_| false).unwrap().filename(), Some(PathBuf::from(text)));
        let keyed = OsStr::from_bytes(b"file=\xff.img,cache=none");
        let tree = parse_drive(keyed, |_| false).unwrap();
        assert_eq!(tree.filename(), Some(PathBuf::from(OsStr::from_bytes(b"\xff.img"))));
    }

    #[test]
    fn what_would_create_a_file_by_mistake_is_refused_with_the_right_spelling() {
        let table = [
            ("", "DRIVE is empty; write the path of an image, or file=PATH with options"),
            (
                "disk.qcow2,cache=none",
                "\"disk.qcow2,cache=none\" is no existing file and has options behind a comma: write \
                 file=disk.qcow2,cache=none (or ./disk.qcow2,cache=none for the file)",
            ),
            (
                "floppy://host/x",
                "\"floppy://host/x\" looks like a URL, and only local files can be opened (a file of that name: \
                 write ./floppy://host/x)",
            ),
            (
                "file=a,offset",
                "\"offset\" in DRIVE has no value; write offset=VALUE (a comma inside a value is written twice)",
            ),
            ("file=a,driver=raw,driver.x=qcow2", "option driver.x is given twice in DRIVE; give it once"),
            ("file=a,backing..file=b", "option name \"backing..file\" in DRIVE has an empty part"),
            ("json:[1]", "json: in DRIVE must hold an object ({...}), not a list"),
            (
                r#"json:{"file":{"filename":"a"},"backing":[1]}"#,
                "option backing in DRIVE is a list; no option takes one",
            ),
        ];
        for (text, error) in table {
            assert_eq!(parse(text), Err(error.to_owned()), "{text}");
        }
        assert!(parse("json:{").unwrap_err().starts_with("json: in DRIVE is not valid JSON: EOF"));
    }

    #[test]
    fn hostile_nesting_is_an_error_and_never_a_deep_stack() {
        let key = "backing.".repeat(100_000);
        let text = format!("file=a,{key}file=b");
        assert!(parse(&text).unwrap_err().contains("nested"));
        let json = format!("json:{}{}", r#"{"backing":"#.repeat(100_000), "}".repeat(100_000));
        assert!(parse(&json).unwrap_err().contains("recursion limit"));
    }
}
