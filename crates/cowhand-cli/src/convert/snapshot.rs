//! A snapshot in place of the disk.

use std::sync::Arc;

use block::Block;
use graph::Disk;
use qcow2::snapshot::SnapshotName;
use tool::failure::Failure;
use tool::output::tell;
use tool::voice;

/// What options begin with: an id or a name alone does not.
const OPTIONS: &str = "snapshot.";

/// What `-l` takes: `snapshot.id=ID`, `snapshot.name=NAME`, both with a comma between, or an id or a name alone.
pub fn parse(text: &str) -> Result<SnapshotName, String> {
    if !text.starts_with(OPTIONS) {
        return Ok(SnapshotName::IdOrName(text.to_owned()));
    }
    let (mut id, mut name) = (None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("snapshot.id", value)) => id = Some(value.to_owned()),
            Some(("snapshot.name", value)) => name = Some(value.to_owned()),
            _ => {
                let wrong = format!("{part:?} is neither snapshot.id=ID nor snapshot.name=NAME");
                if voice::is_qemu() {
                    // As there, the option has a message of its own, and the argument another one.
                    tell(format_args!("{}: {wrong}", voice::name()));
                }
                return Err(wrong);
            }
        }
    }
    match (id, name) {
        (Some(id), Some(name)) => Ok(SnapshotName::IdAndName { id, name }),
        (Some(id), None) => Ok(SnapshotName::Id(id)),
        (None, Some(name)) => Ok(SnapshotName::Name(name)),
        (None, None) => Ok(SnapshotName::IdOrName(text.to_owned())),
    }
}

/// The only one of `disks`, as it was at the snapshot. It is read through the disk's files: the disk must
/// stay open.
///
/// # Errors
/// When there are several, or it has no such snapshot.
pub async fn view(disks: &[Arc<Disk>], name: &SnapshotName) -> Result<Arc<dyn Block>, Failure> {
    let [disk] = disks else {
        return Err(Failure::new("-l: several disks joined have no snapshot in common; give one"));
    };
    let Some(image) = disk.image() else {
        let what = format!("-l: {} is a raw disk, which has no snapshots", disk.root().name());
        return Err(Failure::new(what));
    };
    let view = image.at_snapshot(name).await;
    Ok(Arc::new(view.map_err(|error| Failure::because("cannot read a snapshot", &error))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_as_qemu_img_has_it() {
        assert_eq!(parse("1"), Ok(SnapshotName::IdOrName("1".into())));
        assert_eq!(parse("a,b"), Ok(SnapshotName::IdOrName("a,b".into())));
        assert_eq!(parse("snapshot.id=1"), Ok(SnapshotName::Id("1".into())));
        assert_eq!(parse("snapshot.name=a=b"), Ok(SnapshotName::Name("a=b".into())));
        let both = SnapshotName::IdAndName { id: "1".into(), name: "a".into() };
        assert_eq!(parse("snapshot.id=1,snapshot.name=a"), Ok(both));
        for wrong in ["snapshot.id=1,name=a", "snapshot.foo=bar", "snapshot.", "snapshot.id=1,x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
