//! What qemu-img calls an image: the name of its file, or the options that describe it where no name alone opens it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use graph::drive::{Entry, OptionTree};
use graph::options::DiskOptions;
use serde_json::{Map, Value};

use super::model::ImageInfo;
use super::read::is_relative;

/// Options that decide what is read; those of caches, node names and the like do not. Credentials are none of them.
const DESCRIBING: [&str; 43] = [
    "driver",
    "filename",
    "file",
    "image",
    "backing",
    "data-file",
    "header",
    "children",
    "test",
    "raw",
    "target",
    "config",
    "inject-error",
    "set-state",
    "vote-threshold",
    "blkverify",
    "rewrite-corrupted",
    "read-pattern",
    "throttle-group",
    "offset",
    "size",
    "read-zeroes",
    "key-secret",
    "encrypt",
    "server",
    "host",
    "port",
    "path",
    "export",
    "tls-creds",
    "tls-hostname",
    "url",
    "pool",
    "namespace",
    "snapshot",
    "bottom",
    "align",
    "max-transfer",
    "opt-write-zero",
    "max-write-zero",
    "opt-discard",
    "max-discard",
    "bitmap",
];

/// Options whose members all count.
const RULES: [&str; 2] = ["inject-error", "set-state"];

/// Gives the image at the top of a chain the name that qemu-img has for it, and takes away the place of its backing file where that cannot
/// be found by the options. A file alone (`bare`, its driver) is no image with that below it.
pub fn as_qemu(
    info: &mut ImageInfo,
    options: &DiskOptions,
    mut tree: OptionTree,
    bare: Option<&'static str>,
) {
    if let Some(driver) = bare
        && let Some(file) = info.children.pop()
    {
        *info = ImageInfo { format: driver.to_owned(), medium: info.medium.take(), ..file.info };
        if let Some(Entry::Tree(file)) = tree.take("file") {
            tree = file;
        }
    }
    match options.plain_name(info.backing_filename.is_some()) {
        Some(name) => info.filename = name,
        None => info.filename = json_name(described(&tree, &info.format)),
    }
    // Older names of NBD servers are names of the same.
    if let Some(file) = info.children.first_mut().filter(|file| file.info.format == "nbd") {
        file.info.filename.clone_from(&info.filename);
    }
    if !options.has_directory() && info.backing_filename.as_deref().is_some_and(is_relative) {
        info.full_backing_filename = None;
    }
}

/// The options that decide what is read, the driver first.
fn described(tree: &OptionTree, format: &str) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert("driver".to_owned(), Value::String(format.to_owned()));
    for (name, entry) in tree.clone() {
        let group = name.split('.').next().unwrap_or_default();
        if DESCRIBING.contains(&group) {
            members.insert(name.clone(), value(&name, entry));
        }
    }
    members
}

fn value(name: &str, entry: Entry) -> Value {
    match entry {
        Entry::Null => Value::Null,
        Entry::Value(text) => Value::String(text.to_string_lossy().into_owned()),
        Entry::Tree(tree) if tree.names().all(|name| name.parse::<u32>().is_ok()) => {
            let mut parts: Vec<(u32, Value)> = tree
                .into_iter()
                .filter_map(|(number, part)| Some((number.parse().ok()?, value(name, part))))
                .collect();
            parts.sort_by_key(|(number, _)| *number);
            Value::Array(parts.into_iter().map(|(_, part)| part).collect())
        }
        Entry::Tree(tree) if RULES.contains(&name) => {
            Value::Object(tree.into_iter().map(|(name, part)| (name.clone(), value(&name, part))).collect())
        }
        Entry::Tree(tree) => {
            // Without a driver it is a file; what a format has stands below its own file.
            let driver = tree.driver().unwrap_or_else(|| "file".to_owned());
            let has_driver = tree.driver().is_some() || tree.names().any(|name| name == "filename");
            let mut members = described(&tree, &driver);
            if !has_driver {
                members.shift_remove("driver");
            }
            Value::Object(members)
        }
    }
}

/// Whether the paths lead to one file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// The name that options are, as QEMU writes it.
pub fn json_name(options: Map<String, Value>) -> String {
    format!("json:{}", spaced(&Value::Object(options)))
}

/// On one line, with the spaces that QEMU writes.
fn spaced(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), spaced(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use graph::drive::parse_drive;

    use super::*;

    fn shown(drive: &str, backing: Option<&str>) -> (String, Option<String>) {
        let tree = parse_drive(OsStr::new(drive), |_| false).unwrap();
        let options = DiskOptions::of_tree(tree.clone()).unwrap();
        let full =
            backing.map(|name| if name.starts_with('/') { name.to_owned() } else { format!("d/{name}") });
        let mut info = ImageInfo {
            format: "qcow2".into(),
            backing_filename: backing.map(str::to_owned),
            full_backing_filename: full,
            ..ImageInfo::default()
        };
        as_qemu(&mut info, &options, tree, None);
        (info.filename, info.full_backing_filename)
    }

    #[test]
    fn an_image_is_called_by_its_file_or_by_its_options() {
        catalog::install();
        let rule = "set-state.0.event=read_aio,file.set-state.0.new_state=2";
        for (drive, name) in [
            ("driver=qcow2,file.filename=d/a,cache=none", "d/a"),
            (
                &format!("driver=qcow2,cache=none,file.driver=blkdebug,file.image=d/a,file.{rule}"),
                r#"json:{"driver": "qcow2", "file": {"driver": "blkdebug", "image": {"driver": "file", "filename": "d/a"}, "set-state": [{"event": "read_aio", "new_state": "2"}]}}"#,
            ),
            (
                "file=d/a,encrypt.key-secret=s",
                r#"json:{"driver": "qcow2", "encrypt.key-secret": "s", "file": {"driver": "file", "filename": "d/a"}}"#,
            ),
        ] {
            assert_eq!(shown(drive, Some("b")), (name.to_owned(), Some("d/b".to_owned())), "{drive}");
        }
    }

    #[test]
    fn a_relative_name_has_no_place_below_disks_of_several_directories() {
        catalog::install();
        let quorum = "driver=qcow2,file.driver=quorum,file.vote-threshold=1,file.children.0.file=d/a,file.children.1.file=e/a";
        let (name, full) = shown(quorum, Some("b"));
        let disk = |path: &str| format!(r#"{{"file": {{"driver": "file", "filename": "{path}"}}}}"#);
        let children = [disk("d/a"), disk("e/a")].join(", ");
        let expected = format!(
            r#"json:{{"driver": "qcow2", "file": {{"driver": "quorum", "children": [{children}], "vote-threshold": "1"}}}}"#
        );
        assert_eq!((name, full), (expected, None));
        assert_eq!(shown(quorum, Some("/b")).1.as_deref(), Some("/b"));
    }
}
