//! The sources of the installed fio, unpacked and configured in the build's directory: an engine that fio loads is compiled with its headers, which
//! no package has.

use std::process::Command;

use super::own_lists::OwnLists;
use crate::stage::output;
use crate::workspace::target_directory;

/// The release whose fio is installed.
const SUITE: &str = "bookworm";

/// What `configure` writes.
const CONFIGURED: &str = "config-host.h";

/// Makes sure that they are there.
///
/// # Errors
/// With what failed.
pub fn ensure() -> Result<(), String> {
    let into = target_directory().join("fio-sources");
    if into.join(CONFIGURED).exists() {
        return Ok(());
    }
    println!("unpacking fio's sources for the tests");
    let work = target_directory().join("fio-download");
    let lists = OwnLists::fetch_of_sources(&work, &[SUITE])?;
    let version =
        output(Command::new("dpkg-query").args(["--show", "--showformat=${source:Version}", "fio"]))?;
    lists.download_source(&format!("fio={}", version.trim()))?;
    let unpack = "rm -rf \"$1\" && mkdir \"$1\" && tar -xf fio_*.orig.tar.?z --strip-components=1 -C \"$1\"";
    output(Command::new("sh").args(["-c", unpack, "sh"]).arg(&into).current_dir(&work))?;
    output(Command::new("./configure").current_dir(&into))?;
    lists.remove()?;
    match into.join(CONFIGURED).exists() {
        true => Ok(()),
        false => Err(format!("{}: configure wrote no {CONFIGURED}", into.display())),
    }
}
