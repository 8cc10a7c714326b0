//! Control files, and packing.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree::{Holds, Tree, packaging, read};
use super::{commit_time, failed, library, output};

/// Who answers for the packages.
const MAINTAINER: &str = "The cowhand developers <cowhand@users.noreply.github.com>";
/// The version of the project.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What lintian warns of and is meant: services are stopped before the program goes, where systemd runs, and only then.
const LINTIAN_ALLOWED: &str = "maintainer-script-calls-systemctl";

/// Packs a tree; gives the package.
pub fn pack(directory: &Path, tree: &Tree) -> Result<PathBuf, String> {
    let architecture = match tree.holds.is_binary() {
        true => output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned(),
        false => "all".to_owned(),
    };
    tree.write("DEBIAN/control", control(directory, tree, &architecture)?.as_bytes())?;
    library::control_files(tree)?;
    tree.write("DEBIAN/md5sums", sums(tree)?.as_bytes())?;
    if tree.holds == Holds::Program {
        for script in ["postinst", "prerm", "postrm"] {
            tree.copy(&packaging(&format!("debian/{script}")), &format!("DEBIAN/{script}"), 0o755)?;
        }
    }
    let package = directory.join(format!("{}_{VERSION}_{architecture}.deb", tree.name));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree.root).arg(&package);
    output(build.env("SOURCE_DATE_EPOCH", commit_time()?))?;
    Ok(package)
}

/// The stanza of a package whose form is a file.
fn stanza(directory: &Path, tree: &Tree, architecture: &str) -> Result<String, String> {
    let mut text = read(&packaging(&format!("debian/{}.control", tree.name)))?;
    if tree.holds == Holds::Library {
        text = text.replace("@LIBRARIES@", &libraries(directory, &library::shared(tree)?)?);
    }
    Ok(text
        .replace("@VERSION@", VERSION)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@KIBIBYTES@", &kibibytes(tree)?))
}

fn kibibytes(tree: &Tree) -> Result<String, String> {
    let kibibytes = output(Command::new("du").args(["--apparent-size", "-sk"]).arg(&tree.root))?;
    Ok(kibibytes.split_whitespace().next().unwrap_or("0").to_owned())
}

fn control(directory: &Path, tree: &Tree, architecture: &str) -> Result<String, String> {
    let kibibytes = kibibytes(tree)?;
    let mut text = format!(
        "Package: {}\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kibibytes}\n",
        tree.name
    );
    text += &match tree.holds {
        // Without authorities no server is reached by https; fusermount3 mounts for users; librbd is loaded when it is there.
        Holds::Program => format!(
            "Depends: {}\nRecommends: ca-certificates\nSuggests: fuse3, librbd1\n",
            libraries(directory, &tree.root.join("usr/bin/cowhand"))?
        ),
        Holds::Names => format!("Depends: cowhand (>= {VERSION})\n"),
        Holds::Extras => "Recommends: cowhand\n".to_owned(),
        Holds::Library | Holds::Development => return stanza(directory, tree, architecture),
        Holds::Symbols => format!("Depends: cowhand (= {VERSION})\n"),
    };
    text += if tree.holds == Holds::Symbols { "Section: debug\n" } else { "Section: admin\n" };
    text += "Priority: optional\nHomepage: https://github.com/cowhand/cowhand\n";
    text += match tree.holds {
        Holds::Program => {
            "Description: qcow2 and raw disks: served, created, copied and repaired\n \
             A disk server (NBD, vhost-user-blk, FUSE, ublk) and image tools for qcow2 and\n \
             raw images, in QEMU's formats and with its options: images are plain qcow2,\n \
             which QEMU opens, and the reverse. The pages are in /usr/share/doc/cowhand.\n"
        }
        Holds::Names => {
            "Description: names of QEMU's disk programs for cowhand\n \
             Links of the names that cowhand runs under in place of QEMU's programs, such\n \
             as qemu-img, in /usr/lib/cowhand/compat, for the PATH of programs that call\n \
             them. QEMU's own packages may be installed beside it.\n"
        }
        Holds::Extras => {
            "Description: what is put around the disk server cowhand\n \
             A dashboard for Grafana and alert rules for Prometheus, made of the figures\n \
             that the server exports, and examples: a pod for Kubernetes, a hook for\n \
             libvirt.\n"
        }
        Holds::Symbols => {
            "Description: debug symbols for cowhand\n \
             Symbols and line numbers of the program, where debuggers and perf look for\n \
             them.\n"
        }
        // Their stanza is a file.
        Holds::Library | Holds::Development => "",
    };
    Ok(text)
}

/// The packages of the libraries that `file` is linked with, and their versions.
fn libraries(directory: &Path, file: &Path) -> Result<String, String> {
    // dpkg-shlibdeps looks for a source package around it.
    let source = directory.join("source");
    let control = source.join("debian").join("control");
    std::fs::create_dir_all(source.join("debian")).map_err(|error| failed(&source, &error))?;
    let text = format!("Source: cowhand\nMaintainer: {MAINTAINER}\n\nPackage: cowhand\nArchitecture: any\n");
    std::fs::write(&control, text).map_err(|error| failed(&control, &error))?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.arg("-O").arg(file).current_dir(&source);
    let line = output(&mut command)?;
    let packages = line.trim().strip_prefix("shlibs:Depends=").map(str::to_owned);
    packages.ok_or_else(|| format!("dpkg-shlibdeps says {line:?}"))
}

/// The sum of each file, as `dpkg --verify` reads them.
fn sums(tree: &Tree) -> Result<String, String> {
    let script = "find . -path ./DEBIAN -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0r md5sum | sed 's, \\./, ,'";
    output(Command::new("sh").args(["-c", script]).current_dir(&tree.root))
}

/// Debian's form of a list of changes; what changed stands in NEWS.md.
pub fn changelog(seconds: &str) -> Result<String, String> {
    let mut date = Command::new("date");
    let date =
        output(date.args(["--utc", "--rfc-email", "--date"]).arg(format!("@{seconds}")).env("LC_ALL", "C"))?;
    let mut text = format!("cowhand ({VERSION}) unstable; urgency=medium\n\n");
    let _ =
        write!(text, "  * /usr/share/doc/cowhand/NEWS.md.gz says what changed.\n\n -- {MAINTAINER}  {date}");
    Ok(text)
}

/// What lintian finds wrong with the packages.
pub fn lint(packages: &[PathBuf]) -> Result<(), String> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags"]);
    output(lintian.arg(LINTIAN_ALLOWED).args(packages)).map(|text| print!("{text}"))
}
