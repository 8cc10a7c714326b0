//! What each drive is called by clients.

use image::options::DiskOptions;

use crate::failure::Failure;

/// Bytes of an export's name at most (the NBD protocol's limit on strings).
pub const EXPORT_NAME_BYTES_MAX: usize = 4096;

/// The names of the drives' exports, in their order.
///
/// A name is, in this order: `--export` (for a single drive), `id=`, the file's name without its
/// extension.
pub fn export_names(drives: &[DiskOptions], asked: Option<&str>) -> Result<Vec<String>, Failure> {
    if let (Some(asked), 2..) = (asked, drives.len()) {
        return Err(Failure::new(format!(
            "--export {asked} names one export, and there are {} drives; give each its id= instead",
            drives.len()
        )));
    }
    let mut names: Vec<String> = Vec::with_capacity(drives.len());
    for drive in drives {
        let name = name_of(drive, asked);
        check_name(&name)?;
        if names.contains(&name) {
            return Err(Failure::new(format!(
                "two drives would be export {name:?}; give one of them another name with id="
            )));
        }
        names.push(name);
    }
    Ok(names)
}

fn name_of(drive: &DiskOptions, asked: Option<&str>) -> String {
    if let Some(name) = asked.or(drive.id.as_deref()) {
        return name.to_owned();
    }
    let stem = drive.filename.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
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
    fn names_that_clients_could_not_tell_apart_are_refused() {
        let error = names(&[drive("/a/disk.qcow2", None), drive("/b/disk.raw", None)], None).unwrap_err();
        assert_eq!(error, "two drives would be export \"disk\"; give one of them another name with id=");
        assert!(names(&[drive("a", None), drive("b", None)], Some("x")).is_err());
        assert!(names(&[drive(&"a".repeat(5000), None)], None).is_err());
    }
}
