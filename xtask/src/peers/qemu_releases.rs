//! QEMU of other releases than the system's, each with its own loader and libraries: unpacked into the build's directory, never installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::own_lists::OwnLists;
use crate::stage::output;
use crate::workspace::target_directory;

/// A release of Debian, and what QEMU is compared as.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// What tables call it: the major and minor number that this release is expected to have.
    pub name: &'static str,
    /// The suite that has it.
    suite: &'static str,
    /// The suites that have what it depends on.
    with: &'static [&'static str],
}

/// The releases that cowhand is compared with, the older first.
pub const RELEASES: [Release; 2] = [
    Release {
        name: "10.0",
        suite: "bookworm-backports",
        with: &["bookworm", "bookworm-updates", "bookworm-backports"],
    },
    Release { name: "11.1", suite: "sid", with: &["sid"] },
];

/// The packages that have the tools, the storage daemon and the drivers of remote disks.
const PACKAGES: [&str; 3] = ["qemu-utils", "qemu-system-common", "qemu-block-extra"];

/// Where these drivers are, below the directory that a release is unpacked into.
const MODULES: &str = "usr/lib/x86_64-linux-gnu/qemu";
const RBD: &str = "block-rbd.so";

/// The programs that are compared.
const PROGRAMS: [&str; 4] = ["qemu-img", "qemu-io", "qemu-nbd", "qemu-storage-daemon"];

/// The link to the loader that each program of a 64-bit x86 Debian names.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Programs of one release, ready to run.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Which release.
    pub release: Release,
    /// The package's version.
    pub version: String,
    /// The directory of the programs.
    pub programs: PathBuf,
}

impl Unpacked {
    /// QEMU's own version: that of the package without Debian's parts (`1:11.1.3+ds-1` is `11.1.3`).
    pub fn upstream(&self) -> &str {
        let version = self.version.split_once(':').map_or(&self.version[..], |(_, rest)| rest);
        version.split(['+', '-', '~']).next().unwrap_or(version)
    }
}

/// Unpacks what is not there yet.
///
/// # Errors
/// With what failed.
pub fn ensure() -> Result<Vec<Unpacked>, String> {
    RELEASES.into_iter().map(ensure_one).collect()
}

/// Unpacks the older release where the system's QEMU is older still: tests need what came with version 10.0.
///
/// # Errors
/// With what failed.
pub fn ensure_one_for_tests() -> Result<(), String> {
    let version = output(Command::new("qemu-img").arg("--version"))?;
    match major(&version).is_some_and(|major| major >= 10) {
        true => Ok(()),
        false => ensure_one(RELEASES[0]).map(drop),
    }
}

/// The major number in what `qemu-img --version` prints.
fn major(version: &str) -> Option<u32> {
    version.split_whitespace().nth(2)?.split('.').next()?.parse().ok()
}

fn ensure_one(release: Release) -> Result<Unpacked, String> {
    let into = target_directory().join("peers").join(format!("qemu-{}", release.suite));
    let (programs, version) = (into.join("bin"), into.join("version"));
    // One that was unpacked before has no drivers of remote disks.
    if !version.is_file() || !into.join("root").join(MODULES).join(RBD).exists() {
        println!("unpacking QEMU of {}", release.suite);
        unpack(release, &into)?;
    }
    let version = fs::read_to_string(&version).map_err(|error| format!("{}: {error}", version.display()))?;
    Ok(Unpacked { release, version: version.trim().to_owned(), programs })
}

/// Unpacks a release into the directory `into`. The file `version` is the last that is written there.
fn unpack(release: Release, into: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", into.display());
    let work = into.with_extension("download");
    if into.exists() {
        fs::remove_dir_all(into).map_err(failed)?;
    }
    let (root, programs) = (into.join("root"), into.join("bin"));
    fs::create_dir_all(&root).map_err(failed)?;
    fs::create_dir_all(&programs).map_err(failed)?;
    let lists = OwnLists::fetch(&work, release.with)?;
    let archives = lists.download_with_needs(release.suite, &PACKAGES)?;
    let mut version = String::new();
    for package in fs::read_dir(&archives).map_err(failed)?.flatten().map(|entry| entry.path()) {
        if package.extension().is_none_or(|end| end != "deb") {
            continue;
        }
        output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
        if package.file_name().is_some_and(|name| name.to_string_lossy().starts_with("qemu-utils_")) {
            version = output(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Version"))?;
        }
    }
    for program in PROGRAMS {
        write_wrapper(&root, &programs.join(program), program)?;
        output(Command::new(programs.join(program)).arg("--version"))?;
    }
    lists.remove()?;
    fs::write(into.join("version"), version).map_err(failed)
}

/// Writes a script that runs `program` of `root` with the loader, the libraries and the modules of that.
fn write_wrapper(root: &Path, path: &Path, program: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let loader = ["lib64", "usr/lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
    let loader = loader.iter().map(|place| root.join(place).join(LOADER)).find(|path| path.exists());
    let loader = loader.ok_or_else(|| format!("{}: no {LOADER} in it", root.display()))?;
    let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
    let libraries: Vec<String> =
        libraries.iter().map(|place| root.join(place).display().to_string()).collect();
    let script = format!(
        "#!/bin/sh\nexport QEMU_MODULE_DIR='{modules}'\nexec '{loader}' --argv0 {program} --library-path '{libraries}' '{binary}' \"$@\"\n",
        modules = root.join(MODULES).display(),
        loader = loader.display(),
        libraries = libraries.join(":"),
        binary = root.join("usr/bin").join(program).display(),
    );
    fs::write(path, script).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_number_is_found() {
        assert_eq!(major("qemu-img version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright"), Some(7));
        assert_eq!(major("qemu-img version 10.0.2"), Some(10));
    }

    #[test]
    fn qemus_version_is_the_packages_without_debians_parts() {
        for (version, upstream) in
            [("1:11.1.3+ds-1", "11.1.3"), ("1:10.0.2+ds-2~bpo12+1", "10.0.2"), ("9.2.0", "9.2.0")]
        {
            let unpacked =
                Unpacked { release: RELEASES[0], version: version.to_owned(), programs: PathBuf::new() };
            assert_eq!(unpacked.upstream(), upstream);
        }
    }
}
