//! Laws of the table of options: each entry is taken in every spelling, with its default and its extreme values, and refused just
//! outside; each is either changed at reopen or refused by name.
//!
//! An option stood in up to fourteen lists: some were accepted on the drive line and unknown to QMP, some had no hint, and help
//! named a third of them.

use std::ffi::OsStr;

use super::*;
use crate::drive::{OptionTree, parse_drive};
use crate::drivers;
use crate::probe::Format;

/// What must be said beside an option's value for it to be allowed.
fn beside(name: &str, value: &str) -> &'static str {
    match (name, value) {
        ("detect-zeroes", "unmap") => ",discard=unmap",
        ("force-share", "on") => ",read-only=on",
        ("throttling.iops-size", _) => ",throttling.iops-total=1",
        ("file.password-secret", _) => ",file.username=u",
        ("file.tls-hostname", _) => ",file.tls-creds=t",
        ("bitmap.node", _) => ",bitmap.name=b",
        ("bitmap.name", _) => ",bitmap.node=n",
        _ => "",
    }
}

/// A limit for which a burst of that name may be given.
fn burst(name: &str) -> String {
    match name.split_once("-max").filter(|_| name.starts_with("throttling.")) {
        Some((flow, "")) => format!(",{flow}=1"),
        Some((flow, _)) => format!(",{flow}=1,{flow}-max=1"),
        None => String::new(),
    }
}

/// Values that an option takes: the first, the last, and its default.
fn taken(spec: &Spec) -> Vec<String> {
    let mut values = match spec.kind {
        Kind::Switch => vec!["on".to_owned(), "off".to_owned()],
        kind @ (Kind::Choice(_) | Kind::Format | Kind::Storage) => {
            kind.choices().into_iter().map(str::to_owned).collect()
        }
        Kind::Size { multiple_of, max } => {
            vec!["0".to_owned(), (max / multiple_of * multiple_of).to_string()]
        }
        Kind::Whole { min, max } => vec![min.to_string(), max.to_string()],
        Kind::Text { bytes_max } => vec!["a".to_owned(), "a".repeat(bytes_max.unwrap_or(300))],
        Kind::Path | Kind::File => vec!["other".to_owned()],
        Kind::Image => vec![String::new()],
        // What stands in its groups is the driver's.
        Kind::List => Vec::new(),
    };
    if let DefaultValue::Is(value) = spec.default {
        values.push(value.to_owned());
    }
    values
}

/// Values just outside.
fn refused(spec: &Spec) -> Vec<String> {
    match spec.kind {
        Kind::Switch | Kind::Choice(_) | Kind::Format | Kind::Storage => {
            vec!["maybe".to_owned(), String::new()]
        }
        Kind::Size { multiple_of: 1, max } => vec!["-1".to_owned(), (u128::from(max) + 1).to_string()],
        Kind::Size { multiple_of, .. } => vec!["-1".to_owned(), (multiple_of - 1).to_string()],
        Kind::Whole { min, max } => {
            vec![(i128::from(min) - 1).to_string(), (u128::from(max) + 1).to_string()]
        }
        Kind::Text { bytes_max: Some(max) } => vec![String::new(), "a".repeat(max + 1)],
        Kind::Path => vec![String::new()],
        Kind::Text { bytes_max: None } | Kind::File => Vec::new(),
        Kind::Image | Kind::List => vec!["node".to_owned()],
    }
}

fn of_line(line: &str) -> Result<DiskOptions, String> {
    meant(parse_drive(OsStr::new(line), |_| false).map_err(|error| error.to_string())?)
}

/// What options mean, without the notes of which were given.
fn meant(tree: OptionTree) -> Result<DiskOptions, String> {
    let mut options = DiskOptions::of_tree(tree).map_err(|error| error.to_string())?;
    options.layer.of_formats.clear();
    Ok(options)
}

/// The same as an object: nested by its dots, or with a dotted name; numbers and switches as what they are.
fn of_object(line: &str, nested: bool) -> Result<DiskOptions, String> {
    let mut object = serde_json::Map::new();
    for (name, value) in line.split(',').filter_map(|part| part.split_once('=')) {
        let value = match (value, value.parse::<u64>()) {
            (_, Ok(number)) => number.into(),
            ("on", _) => true.into(),
            ("off", _) => false.into(),
            (text, _) => text.into(),
        };
        let whole = |name: &&str| !table::is_flat(name) && nested;
        match name.split_once('.').filter(|(group, _)| whole(group)) {
            Some((group, member)) => {
                let inner = object.entry(group).or_insert_with(|| serde_json::json!({}));
                inner.as_object_mut().unwrap().insert(member.to_owned(), value);
            }
            None => _ = object.insert(name.to_owned(), value),
        }
    }
    meant(OptionTree::of_json(object).map_err(|error| error.to_string())?)
}

/// The option that is the file below, of a driver that is put over one.
fn child_of(driver: &str) -> Option<&'static str> {
    match &drivers::storage(driver)?.kind {
        drivers::StorageKind::Over(over) => Some(over.child),
        _ => None,
    }
}

/// A file of the driver that has the option.
fn file_of(spec: &Spec) -> String {
    match spec.group {
        Group::Storage(driver) => match child_of(driver).filter(|_| spec.kind != Kind::File) {
            Some(child) => format!("file.driver={driver},file.{child}=x"),
            None => format!("file.driver={driver}"),
        },
        Group::Filter(driver) => filter_line(driver, spec.name),
        _ => "file.filename=x".to_owned(),
    }
}

/// A filter with all its disks but `except`.
fn filter_line(driver: &str, except: &str) -> String {
    let roles = drivers::filter(driver).unwrap().children.fewest().into_iter();
    let is_other = |role: &String| role.split('.').next() != Some(except);
    let disks = roles.filter(is_other).map(|role| format!(",{role}.file.filename=x"));
    format!("driver={driver}{}", disks.collect::<String>())
}

fn line(spec: &Spec, name: &str, value: &str) -> String {
    let full = spec.full_name();
    let file = match &*full {
        "file" | "file.filename" if !matches!(spec.group, Group::Filter(_)) => String::new(),
        "file.driver" if child_of(value).is_some() => {
            child_of(value).map(|child| format!("file.{child}=x,")).unwrap_or_default()
        }
        "file.driver" if drivers::storage(value).is_some_and(|driver| !driver.is_of_paths()) => String::new(),
        _ => format!("{},", file_of(spec)),
    };
    format!("{file}{name}={value}{}{}", beside(&full, value), burst(&full))
}

#[test]
fn every_option_is_taken_in_every_spelling_with_its_default_and_its_extremes() {
    let mut seen = 0;
    for spec in table::all() {
        let name = spec.full_name();
        for value in taken(spec) {
            let line = line(spec, &name, &value);
            let found = of_line(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            for nested in [false, true] {
                assert_eq!(of_object(&line, nested).as_ref(), Ok(&found), "{line} as an object");
            }
            if let Some(alias) = spec.full_alias() {
                let alias = line.replacen(&format!("{name}="), &format!("{alias}="), 1);
                assert_eq!(of_line(&alias).as_ref(), Ok(&found), "{alias}");
            }
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen}");
}

#[test]
fn every_option_is_refused_just_outside_with_one_error_in_every_spelling() {
    for spec in table::all() {
        let name = spec.full_name();
        for value in refused(spec) {
            let line = line(spec, &name, &value);
            let error = of_line(&line).expect_err(&line);
            assert!(error.contains(&name), "{line}: {error}");
            assert_eq!(of_object(&line, true), Err(error), "{line}");
        }
    }
}

/// The table's default is the value in force where the option is not given.
#[test]
fn the_default_of_the_table_is_what_holds_without_the_option() {
    for spec in table::all() {
        let DefaultValue::Is(value) = spec.default else { continue };
        let name = spec.full_name();
        let without = line(spec, "id", "a");
        let with = format!("{without},{name}={value}");
        assert_eq!(of_line(&with), of_line(&without), "{with}");
    }
}

#[test]
fn a_mistyped_name_finds_every_option() {
    for spec in table::all() {
        let name = spec.full_name();
        let (group, last) =
            name.rsplit_once('.').map_or(("", &*name), |(_, last)| (&name[..name.len() - last.len()], last));
        let mistyped = format!("{group}{last}x");
        let error = of_line(&format!("{},{mistyped}=1", file_of(spec))).expect_err(&mistyped);
        assert!(last.len() < 3 || error.contains(&name), "{mistyped}: {error}");
    }
}

const OPENED: Opened<'_> = Opened {
    node_name: "a",
    format: Format::Qcow2,
    file_driver: &drivers::local::FILE,
    has_backing: false,
    has_data_file: true,
};

/// Two values that are not the same.
fn two_values(spec: &Spec) -> [String; 2] {
    let [one, other] = match (&*spec.full_name(), spec.kind) {
        ("cache", _) => ["writeback", "writethrough"],
        ("discard", _) => ["ignore", "unmap"],
        ("file.locking", _) => ["on", "off"],
        ("driver", _) => ["qcow2", "qcow2"],
        (_, kind @ (Kind::Choice(_) | Kind::Format | Kind::Storage)) => {
            [kind.choices()[0], kind.choices()[1]]
        }
        (_, Kind::Switch) => ["off", "on"],
        (_, Kind::Size { .. } | Kind::Whole { .. }) => ["512", "1024"],
        (_, Kind::Text { .. } | Kind::Path | Kind::File) => ["a", "b"],
        (_, Kind::Image | Kind::List) => ["", ""],
    };
    [one.to_owned(), other.to_owned()]
}

#[test]
fn an_option_changes_at_reopen_if_the_table_says_so_and_is_refused_by_name_if_not() {
    // `encrypt.format` takes one value only.
    let parts = ["driver", "backing", "file", "data-file", "encrypt.format"];
    let of_others = [Group::Format("raw"), Group::Format("luks")];
    let has_two = |spec: &&Spec| {
        let is_file = spec.kind == Kind::File && matches!(spec.group, Group::Filter(_));
        !is_file && !parts.contains(&spec.name) && !of_others.contains(&spec.group) && spec.kind != Kind::List
    };
    for spec in table::all().filter(has_two) {
        let name = spec.full_name();
        let [old, new] = two_values(spec).map(|value| of_line(&line(spec, &name, &value)).unwrap());
        assert_ne!(old, new, "{name}");
        let fixed = first_fixed(&old, &new, &OPENED).unwrap();
        let expected = match (spec.changes, &*name) {
            (Changes::AtReopen | Changes::AsItsParts, _) => None,
            // The path of the image is what the option file says.
            (_, "file.filename") => Some("file".to_owned()),
            (Changes::AtOpen, name) => Some(name.to_owned()),
            (Changes::By(command), _) => Some(format!("throttling (use {command})")),
        };
        assert_eq!(fixed, expected, "{name}");
        let runtime = crate::RuntimeOptions::of(&old.layer) != crate::RuntimeOptions::of(&new.layer);
        let has_none = spec.help.starts_with("no effect");
        assert!(fixed.is_some() || runtime || has_none, "{name} is let through, and nothing changes");
    }
}
