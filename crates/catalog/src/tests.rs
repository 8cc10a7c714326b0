//! A driver that is one file and one line of the list ([`super::pattern`]) is found everywhere.

use std::ffi::OsStr;

use serde_json::{Value, json};
use storage::{Hints, IoBuf};

use super::*;
use graph::Graph;
use graph::drive::parse_drive;
use graph::drivers::{format_names, names};
use graph::names::Policy;
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::{Disk, OpenRules, open};

fn options(drive: &str) -> Result<DiskOptions, String> {
    let tree = parse_drive(OsStr::new(drive), |_| false).map_err(|error| error.to_string())?;
    DiskOptions::of_tree(tree).map_err(|error| error.to_string())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(future)
}

async fn all_bytes(disk: &Disk) -> Vec<u8> {
    let (result, buf) = disk.read(0, IoBuf::uninit(disk.size() as usize), Hints::NONE).await;
    result.unwrap();
    buf[..].to_vec()
}

#[test]
fn a_driver_in_the_list_opens_what_its_options_or_its_prefix_name() {
    for drive in [
        "pattern:1024/7",
        "file=pattern:1024/7",
        "file.filename=pattern:1024/7,file.driver=pattern",
        "file.driver=pattern,file.length=1k,file.every=7,driver=raw",
        r#"json:{"file":{"driver":"pattern","length":1024,"every":7}}"#,
    ] {
        let mut options = options(drive).unwrap_or_else(|error| panic!("{drive}: {error}"));
        options.layer.read_only = true;
        let disk = run(open(&options, &OpenRules::default())).unwrap();
        assert_eq!(run(all_bytes(&disk)), vec![7; 1024], "{drive}");
    }
    let mut written = options("pattern:1024/7").unwrap();
    written.layer.format = Some(Format::Raw);
    let refused = run(open(&written, &OpenRules::default())).unwrap_err().to_string();
    assert_eq!(refused, "cannot open pattern:1024/7: a pattern is only read");
}

#[test]
fn what_no_driver_takes_is_refused_by_name_with_what_there_is() {
    let no_storage = format!(
        "option file.driver is \"floppy\"; allowed: {}",
        STORAGE.iter().map(|driver| driver.name).collect::<Vec<_>>().join(", ")
    );
    let no_format = format!("option driver is \"floppy\"; allowed: {}", format_names());
    for (drive, refused) in [
        ("floppy:a", None),
        (
            "floppy://a",
            Some(
                "\"floppy://a\" looks like a URL, and only local files can be opened (a file of that name: write ./floppy://a)",
            ),
        ),
        ("file.driver=floppy", Some(&no_storage)),
        ("file=x,driver=floppy", Some(&no_format)),
        ("pattern:x", Some("option file.filename is \"pattern:x\"; allowed: pattern:LENGTH/BYTE")),
        (
            "file=pattern:512/0,file.length=3",
            Some(
                "options file.length and file.filename contradict each other: the file's name says it already; give one of them",
            ),
        ),
        (
            "file.driver=pattern,file.locking=off",
            Some("option file.locking is for files of this machine, and driver pattern has none"),
        ),
        ("file.driver=pattern,file.lenght=1", Some("unknown option file.lenght; did you mean file.length?")),
        // A path, whatever it is called, if the driver is one of paths.
        ("file.driver=file,file.filename=pattern:512/0", None),
    ] {
        assert_eq!(options(drive).map(drop).err().as_deref(), refused, "{drive}");
    }
}

/// A name in an image must not make this program connect anywhere, whatever drivers it has.
#[test]
fn a_name_in_an_image_leads_to_no_driver_unless_it_is_allowed_and_an_option_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("overlay");
    std::fs::File::create(&path).unwrap();
    let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
    let created = qcow2::CreateOptions {
        size: 1024,
        backing_file: Some("pattern:1024/7".to_owned()),
        backing_format: Some("raw".to_owned()),
        ..qcow2::CreateOptions::default()
    };
    run(qcow2::create(&file, None, &created)).unwrap();
    drop(file);
    let by_name = run(open(&DiskOptions::of_path(&path), &OpenRules::default())).unwrap_err().to_string();
    assert!(by_name.contains("pattern: inside an image is not followed unless it is allowed"), "{by_name}");
    let policy = Policy::default().allowing(&["pattern:1024/7".to_owned()]).unwrap();
    let rules = OpenRules { policy, ..OpenRules::default() };
    let allowed = run(open(&DiskOptions::of_path(&path), &rules)).unwrap();
    assert_eq!(run(all_bytes(&allowed)), vec![7; 1024]);
    drop(allowed);
    let drive = format!("file={},backing.file=pattern:1024/9", path.display());
    let disk = run(open(&options(&drive).unwrap(), &OpenRules::default())).unwrap();
    assert_eq!(run(all_bytes(&disk)), vec![9; 1024]);
}

#[test]
fn nodes_find_drivers_in_the_list_too() {
    let graph = Graph::new(OpenRules::default());
    let add = |options: Value| {
        let added = run(async { graph.add(&graph.change().await, options.as_object().unwrap()).await });
        added.map(|node| node.name()).map_err(|error| error.to_string())
    };
    let pattern = json!({ "driver": "pattern", "node-name": "p", "length": 512, "every": 5 });
    assert_eq!(add(pattern), Ok("p".to_owned()));
    let over = json!({ "driver": "raw", "node-name": "d", "read-only": true, "file": "p" });
    assert_eq!(add(over), Ok("d".to_owned()));
    assert_eq!(run(all_bytes(&graph.disk("d").unwrap().disk)), vec![5; 512]);
    let known = format!("known: {}", names().collect::<Vec<_>>().join(", "));
    assert!(
        known.contains("qcow2, raw, luks")
            && known.contains("pattern, copy-before-write")
            && known.ends_with(", throttle"),
        "{known}"
    );
    let refused = Err(format!("there is no driver \"floppy\"; {known}"));
    assert_eq!(add(json!({ "driver": "floppy", "node-name": "f" })), refused);
    let over = json!({ "driver": "raw", "node-name": "f", "file": { "driver": "floppy" } });
    assert_eq!(add(over), refused);
}

#[test]
fn no_two_drivers_have_one_name_or_answer_to_one_file_name() {
    let mut known: Vec<&str> = names().collect();
    known.sort_unstable();
    assert!(known.windows(2).all(|pair| pair[0] != pair[1]), "{known:?}");
    let prefixes: Vec<&str> = STORAGE.iter().flat_map(|driver| driver.prefixes).copied().collect();
    for (at, prefix) in prefixes.iter().enumerate() {
        assert!(prefix.ends_with(':'), "{prefix}");
        assert!(!prefixes[at + 1..].contains(prefix), "{prefix} twice");
    }
}
