//! A kernel for guests that has the ublk driver: the installed one if it is new enough, or Debian's backport, unpacked into the build's directory
//! and never installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::own_lists::OwnLists;
use crate::stage::output;
use crate::workspace::target_directory;

/// Where the backport is.
const SUITE: &str = "bookworm-backports";

/// Brings the newest kernel of a release.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// The driver, as the kernel's list of modules has it.
const MODULE: &str = "drivers/block/ublk_drv.ko";

/// Makes sure that there is one.
///
/// # Errors
/// With what failed.
pub fn ensure() -> Result<(), String> {
    let into = target_directory().join("guest-kernel");
    if has_module(Path::new("/")) || has_module(&into) {
        return Ok(());
    }
    println!("unpacking a kernel with ublk for the tests");
    let work = target_directory().join("guest-kernel-download");
    let lists = OwnLists::fetch(&work, &[SUITE])?;
    let image = lists.dependencies(PACKAGE)?.into_iter().next();
    let image = image.ok_or_else(|| format!("{PACKAGE} of the backports depends on no kernel"))?;
    lists.download(&image)?;
    let unpack = "dpkg-deb -x linux-image-*.deb \"$1\" && depmod -b \"$1\" \"$(ls \"$1/lib/modules\")\"";
    output(Command::new("sh").args(["-c", unpack, "sh"]).arg(&into).current_dir(&work))?;
    lists.remove()?;
    match has_module(&into) {
        true => Ok(()),
        false => Err(format!("{image} has no {MODULE}")),
    }
}

/// Whether a cloud kernel below `root` has the driver.
fn has_module(root: &Path) -> bool {
    let Ok(releases) = fs::read_dir(root.join("lib/modules")) else { return false };
    let cloud =
        releases.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with("-cloud-amd64"));
    cloud
        .map(|entry| fs::read_to_string(entry.path().join("modules.dep")).unwrap_or_default())
        .any(|list| list.contains(MODULE))
}
