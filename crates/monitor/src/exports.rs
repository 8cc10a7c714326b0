//! What each drive is called by clients.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use graph::names::directory_of;
use graph::options::DiskOptions;
use tool::failure::Failure;

/// Bytes of an export's name at most (the NBD protocol's limit on strings).
pub const EXPORT_NAME_BYTES_MAX: usize = 4096;

/// The names of the drives' exports, in their order.
///
/// A name is, in this order: `--export` (for a single drive), `id=`, the file's name without its
/// extension. Where that would be the name of several, it is as much of each one's path as tells them apart: `aa/disk` and
/// `bb/disk`, `disk.qcow2` and `disk.raw`. Neither the order of the drives nor where the server was started makes a difference.
pub fn export_names(drives: &[DiskOptions], asked: Option<&str>) -> Result<Vec<String>, Failure> {
    if let (Some(asked), 2..) = (asked, drives.len()) {
        return Err(Failure::new(format!(
            "--export {asked} names one export, and there are {} drives; give each its id= instead",
            drives.len()
        )));
    }
    let mut names: Vec<Name> = drives.iter().map(|drive| Name::new(drive, asked)).collect();
    // Each round shows more of the paths, which end.
    loop {
        let groups = ambiguous(&names);
        if groups.is_empty() {
            break;
        }
        groups.iter().try_for_each(|group| tell_apart(&mut names, group))?;
    }
    let names: Vec<String> = names.iter().map(Name::text).collect();
    names.iter().try_for_each(|name| check_name(name))?;
    Ok(names)
}

/// A path that stays the same wherever the server is started: its directory without symbolic links, and the name in it as it was given.
pub fn stable_path(path: &Path) -> PathBuf {
    match (directory_of(path).canonicalize(), path.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        // It cannot be opened either.
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}

/// A name in the making.
struct Name {
    /// Given by the user: it is never changed.
    given: Option<String>,
    path: PathBuf,
    with_extension: bool,
    /// How many directories of the path stand before the file's name.
    directories: usize,
}

impl Name {
    fn new(drive: &DiskOptions, asked: Option<&str>) -> Self {
        Self {
            given: asked.or(drive.id.as_deref()).map(str::to_owned),
            path: stable_path(&drive.filename),
            with_extension: false,
            directories: 0,
        }
    }

    fn text(&self) -> String {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let file = if self.with_extension { self.path.file_name() } else { self.path.file_stem() };
        let parents: Vec<_> = self.parents().collect();
        let shown = parents[parents.len().saturating_sub(self.directories)..].iter().cloned();
        let parts: Vec<_> = shown.chain([file.unwrap_or_default().to_string_lossy()]).collect();
        parts.join("/")
    }

    fn parents(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let directory = self.path.parent().unwrap_or(Path::new(""));
        directory.iter().filter(|part| *part != "/").map(OsStr::to_string_lossy)
    }
}

/// The indices of drives with the same name, for each name that several have.
fn ambiguous(names: &[Name]) -> Vec<Vec<usize>> {
    let mut called: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        called.entry(name.text()).or_default().push(index);
    }
    called.into_values().filter(|group| group.len() > 1).collect()
}

/// Makes names longer that are equal, all of them by the same rule.
fn tell_apart(names: &mut [Name], group: &[usize]) -> Result<(), Failure> {
    let refused = cannot_tell_apart(names, group);
    // A name that was given stays as it is.
    let ours: Vec<usize> = group.iter().copied().filter(|&index| names[index].given.is_none()).collect();
    let different = |part: fn(&Path) -> Option<&OsStr>| {
        ours.iter().map(|&index| part(&names[index].path)).collect::<BTreeSet<_>>().len() == ours.len()
    };
    // Equal paths stay equal however much of them is shown.
    if ours.is_empty() || !different(|path| Some(path.as_os_str())) {
        return Err(refused);
    }
    if different(Path::file_name) && ours.iter().any(|&index| !names[index].with_extension) {
        ours.iter().for_each(|&index| names[index].with_extension = true);
        return Ok(());
    }
    let longer =
        ours.iter().copied().filter(|&index| names[index].directories < names[index].parents().count());
    let longer: Vec<usize> = longer.collect();
    longer.iter().for_each(|&index| names[index].directories += 1);
    if longer.is_empty() { Err(refused) } else { Ok(()) }
}

fn cannot_tell_apart(names: &[Name], group: &[usize]) -> Failure {
    let places: Vec<_> = group.iter().map(|&index| names[index].path.display().to_string()).collect();
    let name = group.first().map(|&index| names[index].text()).unwrap_or_default();
    Failure::new(format!(
        "two drives would be export {name:?} ({}); give one of them another name with id=",
        places.join(", ")
    ))
}

/// A disk's serial number as guests see it, made of its export's name: virtio has 20 bytes for it.
pub fn shown_serial(name: &str) -> &str {
    &name[..name.floor_char_boundary(20)]
}

/// What the protocol takes as a name.
pub fn check_name(name: &str) -> Result<(), Failure> {
    if name.len() > EXPORT_NAME_BYTES_MAX {
        return Err(Failure::new(format!(
            "the name of an export is {} bytes; at most {EXPORT_NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    if name.contains('\0') {
        return Err(Failure::new(format!("the name of an export, {name:?}, holds a zero byte")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(path: &str, id: Option<&str>) -> DiskOptions {
        DiskOptions { id: id.map(str::to_owned), ..DiskOptions::of_path(path) }
    }

    fn names(drives: &[DiskOptions], asked: Option<&str>) -> Result<Vec<String>, String> {
        export_names(drives, asked).map_err(|failure| failure.to_string())
    }

    #[test]
    fn an_export_is_called_as_asked_or_by_id_or_by_file() {
        assert_eq!(names(&[drive("/a/disk.qcow2", None)], None).unwrap(), ["disk"]);
        assert_eq!(names(&[drive("/a/disk.qcow2", Some("d0"))], None).unwrap(), ["d0"]);
        assert_eq!(names(&[drive("/a/disk.qcow2", Some("d0"))], Some("x")).unwrap(), ["x"]);
        assert_eq!(names(&[drive("a.b.img", None), drive("c", Some("z"))], None).unwrap(), ["a.b", "z"]);
        assert_eq!(names(&[drive("a", None)], Some("")).unwrap(), [""]);
    }

    #[test]
    fn files_of_one_name_are_kept_apart_by_their_paths_whatever_their_order() {
        let paths =
            ["/v/aa/disk.qcow2", "/v/bb/disk.qcow2", "/v/bb/disk.raw", "/w/aa/disk.qcow2", "/v/other.img"];
        let expected = ["v/aa/disk", "bb/disk.qcow2", "bb/disk.raw", "w/aa/disk", "other"];
        for turn in 0..paths.len() {
            let turned =
                |list: [&'static str; 5]| list.iter().cycle().skip(turn).take(5).copied().collect::<Vec<_>>();
            let drives: Vec<_> = turned(paths).into_iter().map(|path| drive(path, None)).collect();
            assert_eq!(names(&drives, None).unwrap(), turned(expected));
        }
        let two = [drive("/a/disk.qcow2", None), drive("/b/disk.raw", None)];
        assert_eq!(names(&two, None).unwrap(), ["disk.qcow2", "disk.raw"]);
        // A name that the user gave wins.
        let given = [drive("/a/disk.qcow2", None), drive("/b/x.qcow2", Some("disk"))];
        assert_eq!(names(&given, None).unwrap(), ["disk.qcow2", "disk"]);
    }

    #[test]
    fn names_that_clients_could_not_tell_apart_are_refused() {
        let same = [drive("/a/disk.qcow2", None), drive("/a/disk.qcow2", None)];
        let error = names(&same, None).unwrap_err();
        assert!(error.contains("two drives would be export \"disk\""), "{error}");
        assert!(error.contains("/a/disk.qcow2, /a/disk.qcow2") && error.contains("id="), "{error}");
        assert!(names(&[drive("a", Some("x")), drive("b", Some("x"))], None).is_err());
        assert!(names(&[drive("a", None), drive("b", None)], Some("x")).is_err());
        assert!(names(&[drive(&"a".repeat(5000), None)], None).is_err());
    }
}
