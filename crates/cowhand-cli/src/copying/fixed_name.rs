//! Files whose name no other file can get: what is there can only be written in place. Seen before the copy, not at its end.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use graph::drive::place_of;
use graph::names::directory_of;
use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags, accessat, statx};
use rustix::process::geteuid;
use tool::failure::Failure;

/// The bit of a directory in which only owners take names away.
const STICKY: u32 = 0o1000;

/// Why a file keeps its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FixedName {
    /// The file is mounted there, as into a container.
    MountPoint,
    /// Names in its directory are not ours to change.
    Directory,
}

impl FixedName {
    /// The failure of replacing the file called `name`.
    pub(super) fn refused(self, name: &Path) -> Failure {
        let why = match self {
            Self::MountPoint => "it is a mount point, and no other file can get its name",
            Self::Directory => "its directory does not let us replace it",
        };
        Failure::explained(format!("cannot replace {}", name.display()), why).with_hint(
            "cowhand convert -n writes to the file that is there; a copy that fails then leaves a part of it",
        )
    }
}

/// Why the file called `name` cannot be replaced. `None` if it can, if it does not exist, and if the system
/// does not tell: then the replacing fails.
pub(super) fn fixed_name(name: &Path) -> Option<FixedName> {
    let place = place_of(name).ok()?;
    let found = place.metadata().ok().filter(|found| found.is_file())?;
    if is_mount_point(&place) {
        return Some(FixedName::MountPoint);
    }
    let directory = directory_of(&place);
    let writable = accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    let owner = directory.metadata().ok()?;
    let (ours, is_sticky) = (geteuid().as_raw(), owner.mode() & STICKY != 0);
    let keeps_names = is_sticky && ours != 0 && ![found.uid(), owner.uid()].contains(&ours);
    (!writable || keeps_names).then_some(FixedName::Directory)
}

fn is_mount_point(place: &Path) -> bool {
    let found = statx(CWD, place, AtFlags::empty(), StatxFlags::BASIC_STATS);
    let Ok(found) = found else { return false };
    // Kernels before 5.8 do not say it.
    found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        && found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}
