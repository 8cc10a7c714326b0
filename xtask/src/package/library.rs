//! The library's packages: what programs load, and what they are built with. `packaging/debian` says what is in each.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree::{Holds, Tree, documents, packaging, read};
use super::{debian, failed, output};
use crate::workspace::root;

/// The packages, by name.
const PACKAGES: [(&str, Holds); 2] =
    [("libcowhand0", Holds::Library), ("libcowhand-dev", Holds::Development)];

/// Files of a package's control archive beside the stanza.
const CONTROL_FILES: [&str; 2] = ["shlibs", "triggers"];

/// Lays out both packages below `directory`, of the library that is in `built`.
pub fn lay_out(directory: &Path, built: &Path) -> Result<[Tree; 2], String> {
    let made = make(directory, built)?;
    let multiarch = multiarch()?;
    let [library, development] =
        PACKAGES.map(|(name, holds)| fill(directory, &made, &multiarch, name, holds));
    Ok([library?, development?])
}

/// Lays out one of the packages, of what was made.
fn fill(
    directory: &Path,
    made: &Path,
    multiarch: &str,
    name: &'static str,
    holds: Holds,
) -> Result<Tree, String> {
    let tree = Tree { name, root: directory.join(name), holds };
    for line in read(&packaging(&format!("debian/{name}.install")))?.lines() {
        let Some((file, place)) = line.split_once(' ').filter(|_| !line.starts_with('#')) else { continue };
        install(&tree, &made.join(file), &place.replace("@MULTIARCH@", multiarch))?;
    }
    documents(&tree)?;
    Ok(tree)
}

/// Puts a file, or a link as a link, into a directory of the package.
fn install(tree: &Tree, file: &Path, directory: &str) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let place = format!("{directory}/{name}");
    match fs::read_link(file) {
        Err(_) => tree.copy(file, &place, 0o644),
        Ok(target) => {
            let directory = tree.root.join(directory);
            fs::create_dir_all(&directory).map_err(|error| failed(&directory, &error))?;
            let link = tree.root.join(&place);
            symlink(target, &link).map_err(|error| failed(&link, &error))
        }
    }
}

/// Makes everything that the packages hold, in one directory; gives that.
fn make(directory: &Path, built: &Path) -> Result<PathBuf, String> {
    let (made, sources) = (directory.join("library"), root().join("crates").join("capi"));
    let archive = built.join("libcowhand.a");
    let version = debian::VERSION;
    output(Command::new(sources.join("link-shared.sh")).arg(&archive).arg(&made).arg(version))?;
    let shared = made.join(format!("libcowhand.so.{version}"));
    strip(&["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note"], &shared)?;
    let copy = |from: &Path, name: &str| {
        fs::copy(from, made.join(name)).map(drop).map_err(|error| failed(from, &error))
    };
    copy(&archive, "libcowhand.a")?;
    strip(&["--strip-debug", "--enable-deterministic-archives"], &made.join("libcowhand.a"))?;
    copy(&sources.join("include").join("cowhand.h"), "cowhand.h")?;
    let form = read(&sources.join("cowhand.pc.in"))?;
    let filled = form
        .replace("@PREFIX@", "/usr")
        .replace("@LIBDIR@", &format!("/usr/lib/{}", multiarch()?))
        .replace("@VERSION@", version);
    let place = made.join("cowhand.pc");
    fs::write(&place, filled).map_err(|error| failed(&place, &error))?;
    Ok(made)
}

fn strip(options: &[&str], file: &Path) -> Result<(), String> {
    output(Command::new("strip").args(options).arg(file)).map(drop)
}

/// Debian's name of this machine's kind, under which libraries are.
pub fn multiarch() -> Result<String, String> {
    let name = output(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?;
    Ok(name.trim().to_owned())
}

/// The shared library in its package.
pub fn shared(tree: &Tree) -> Result<PathBuf, String> {
    Ok(tree.root.join("usr/lib").join(multiarch()?).join(format!("libcowhand.so.{}", debian::VERSION)))
}

/// What the control archive of a package of the library has beside its stanza.
pub fn control_files(tree: &Tree) -> Result<(), String> {
    for name in CONTROL_FILES {
        let file = packaging(&format!("debian/{}.{name}", tree.name));
        if file.exists() {
            tree.copy(&file, &format!("DEBIAN/{name}"), 0o644)?;
        }
    }
    Ok(())
}
