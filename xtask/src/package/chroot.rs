//! The packages in a Debian that has nothing else: installed, run, purged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{container, debian, directory, failed, library, output, remove};

/// Seconds that any one step may take: a mirror may be slow.
const STEP_SECONDS: &str = "600";

/// What a first user does. Each line must succeed.
const SESSION: [&str; 14] = [
    "cowhand --version",
    "cowhand create /tmp/disk.qcow2 1G",
    "cowhand check /tmp/disk.qcow2",
    "cowhand show /tmp/disk.qcow2",
    "cowhand convert -O raw /tmp/disk.qcow2 /tmp/disk.raw",
    "cowhand compare /tmp/disk.qcow2 /tmp/disk.raw",
    "cowhand serve --quiet --socket /tmp/nbd --qmp /tmp/qmp /tmp/disk.qcow2 > /tmp/log 2>&1 & \
     trap \"kill $! 2>/dev/null || true\" EXIT; \
     i=0; while [ ! -S /tmp/qmp ]; do i=$((i + 1)); [ $i -lt 100 ]; sleep 0.1; done; \
     cowhand status /tmp/qmp; kill $!; wait $!",
    "bash -n /usr/share/bash-completion/completions/cowhand",
    "test -s /usr/share/man/man1/cowhand-convert.1.gz && gzip -t /usr/share/man/man1/*.gz",
    "test -s /usr/lib/systemd/system/cowhand@.service && test -d /etc/cowhand",
    "PATH=/usr/lib/cowhand/compat:$PATH qemu-img --version",
    "ldconfig -p | grep libcowhand.so.0 && test -s /usr/include/cowhand.h",
    "dpkg --verify cowhand cowhand-compat cowhand-extras cowhand-dbgsym libcowhand0 libcowhand-dev | (! grep .)",
    "rm -r /tmp/*",
];

/// What apt and dpkg write down about their own work.
const OF_PACKAGING: [&str; 5] = ["/var/lib/apt", "/var/lib/dpkg", "/var/cache", "/var/log", "/tmp"];

/// Runs it.
pub fn test(packages: &[PathBuf]) -> Result<(), String> {
    let root = directory().join("chroot");
    remove(&root)?;
    in_clean_debian(&root, packages)?;
    container::test(&root, packages)?;
    remove(&root)
}

fn in_clean_debian(root: &Path, packages: &[PathBuf]) -> Result<(), String> {
    let mut debian = apart("mmdebstrap");
    output(debian.args(["--variant=apt"]).arg(release()?).arg(root))?;
    let before = files(root)?;
    for package in packages {
        let name = package.file_name().unwrap_or_default();
        let to = root.join("tmp").join(name);
        std::fs::copy(package, &to).map_err(|error| failed(&to, &error))?;
    }
    let apt = "DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 --yes";
    inside(
        root,
        &format!("{apt} update && {apt} install --no-install-recommends /tmp/*.deb && rm /tmp/*.deb"),
    )?;
    verify_units(root)?;
    for line in SESSION {
        println!("# {line}");
        print!("{}", inside(root, line)?);
    }
    compile_and_run(root)?;
    inside(
        root,
        &format!(
            "{apt} purge cowhand cowhand-compat cowhand-extras cowhand-dbgsym libcowhand0 libcowhand-dev && {apt} autoremove --purge"
        ),
    )?;
    let after = files(root)?;
    let left: Vec<_> = after.difference(&before).cloned().collect();
    let gone: Vec<_> = before.difference(&after).cloned().collect();
    match left.is_empty() && gone.is_empty() {
        true => Ok(()),
        false => Err(format!("purged, and yet there is more {left:?} or less {gone:?} than before")),
    }
}

/// A program in C, built with the installed header, library and pkg-config file by the compiler of this machine, and run inside.
fn compile_and_run(root: &Path) -> Result<(), String> {
    let (libraries, source) = (root.join("usr/lib").join(library::multiarch()?), root.join("tmp/version.c"));
    std::fs::write(&source, VERSION_OF_LIBRARY).map_err(|error| failed(&source, &error))?;
    let mut flags = limited("pkg-config");
    flags.env("PKG_CONFIG_SYSROOT_DIR", root).env("PKG_CONFIG_LIBDIR", libraries.join("pkgconfig"));
    let flags = output(flags.args(["--cflags", "--libs", "cowhand"]))?;
    let mut compiler = limited("cc");
    compiler.args(["-Wall", "-Werror", "-o"]).arg(source.with_extension("")).arg(&source);
    output(compiler.args(flags.split_whitespace()))?;
    println!("# a program in C");
    let said = inside(root, "/tmp/version && rm /tmp/version*")?;
    print!("{said}");
    match said.trim() == debian::VERSION {
        true => Ok(()),
        false => Err(format!("the library says version {said:?}, and its package {}", debian::VERSION)),
    }
}

/// Prints the version of the library.
const VERSION_OF_LIBRARY: &str = "#include <cowhand.h>\n#include <stdio.h>\n\
    int main(void) { puts(cowhand_version()); return 0; }\n";

/// The release that this machine is of.
pub fn release() -> Result<String, String> {
    let text = super::tree::read(Path::new("/etc/os-release"))?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_owned).ok_or_else(|| "/etc/os-release does not name the release".to_owned())
}

/// A program with mounts and processes of its own: whatever ends it, none of them stays.
pub fn apart(program: &str) -> Command {
    let mut command = limited("unshare");
    command.args(["--mount", "--propagation=private", "--pid", "--fork", "--kill-child", program]);
    command
}

fn limited(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([STEP_SECONDS, program]);
    command
}

pub fn inside(root: &Path, line: &str) -> Result<String, String> {
    let mut command = apart("sh");
    // Nothing of this machine's environment is in there.
    let enter = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -ec \"$1\"";
    output(command.args(["-ec", enter]).arg(root).arg(line))
}

/// The units, by the systemd of this machine: the one inside has none.
fn verify_units(root: &Path) -> Result<(), String> {
    let mut verify = limited("systemd-analyze");
    verify.arg(format!("--root={}", root.display())).args(["--recursive-errors=no", "--man=no", "verify"]);
    output(verify.args(["cowhand@vm1.service", "cowhand@vm1.socket"]))?;
    let unit = root.join("usr/lib/systemd/system/cowhand@.service");
    let mut security = limited("systemd-analyze");
    security.args(["security", "--offline=yes", "--no-pager", &format!("--threshold={EXPOSURE_MAX}")]);
    let reported = output(security.arg(unit))?;
    reported.lines().last().into_iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Tenths of systemd's measure of what a service can reach that it need not: 10 is everything. The network, devices and the
/// files of disks are what this one is for.
const EXPOSURE_MAX: u32 = 25;

/// Every file of the system but those that packaging is about.
fn files(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut find = Command::new("find");
    let listed = output(find.arg(root).args(["-xdev", "-printf", "/%P\\n"]))?;
    let of_packaging = |file: &str| OF_PACKAGING.iter().any(|begin| file.starts_with(begin));
    Ok(listed.lines().filter(|file| !of_packaging(file)).map(str::to_owned).collect())
}
