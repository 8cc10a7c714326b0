//! The programs of others that the tests compare with, and how a Debian machine gets them.

mod fio_sources;
mod guest_kernel;
mod own_lists;
pub mod qemu_releases;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use crate::workspace::target_directory;

/// Arguments of `cargo xtask peers`: none.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Installs and unpacks all of them, and prints the versions of QEMU among them.
pub fn run(_: &Args) -> ExitCode {
    match ensure().and_then(|()| qemu_releases::ensure()) {
        Ok(unpacked) => {
            for qemu in unpacked {
                println!("QEMU {} ({}): {}", qemu.upstream(), qemu.version, qemu.programs.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Something that must be there, and the package that brings it. What counts is the thing, not the
/// package: a machine with QEMU from another source keeps it.
struct Peer {
    package: &'static str,
    found: fn() -> bool,
}

const PEERS: &[Peer] = &[
    Peer { package: "qemu-utils", found: || all(&["qemu-img", "qemu-io", "qemu-nbd"]) },
    // Debian 12 puts it here, later ones too; a backport may bring it with another package.
    Peer { package: "qemu-system-common", found: || all(&["qemu-storage-daemon"]) },
    Peer { package: "cryptsetup-bin", found: || all(&["cryptsetup"]) },
    Peer { package: "libnbd-bin", found: || all(&["nbdinfo", "nbdcopy"]) },
    Peer { package: "python3-libnbd", found: has_libnbd_for_python },
    Peer { package: "nbdkit", found: || all(&["nbdkit"]) },
    Peer { package: "fuse3", found: || all(&["fusermount3"]) },
    Peer { package: "nginx-light", found: || Path::new("/usr/sbin/nginx").exists() },
    Peer { package: "ceph-mon", found: || all(&["ceph-mon", "monmaptool"]) },
    Peer { package: "ceph-osd", found: || all(&["ceph-osd"]) },
    Peer { package: "ceph-common", found: || all(&["ceph", "ceph-authtool", "rbd"]) },
    Peer { package: "radosgw", found: || all(&["radosgw", "radosgw-admin"]) },
    Peer { package: "librbd1", found: || has_library("librbd.so.1") },
    Peer { package: "qemu-block-extra", found: || has_library("qemu/block-rbd.so") },
    Peer { package: "fio", found: || all(&["fio"]) },
    Peer { package: "qemu-system-x86", found: || all(&["qemu-system-x86_64"]) },
    Peer { package: "libvirt-daemon", found: || Path::new("/usr/sbin/libvirtd").exists() },
    Peer {
        package: "libvirt-daemon-driver-qemu",
        found: || has_library("libvirt/connection-driver/libvirt_driver_qemu.so"),
    },
    Peer { package: "libvirt-clients", found: || all(&["virsh"]) },
    // libvirt's daemon does not start without it.
    Peer { package: "dnsmasq-base", found: || Path::new("/usr/sbin/dnsmasq").exists() },
    Peer { package: "linux-image-cloud-amd64", found: has_cloud_kernel },
    Peer { package: "busybox-static", found: has_static_busybox },
    Peer { package: "strace", found: || all(&["strace"]) },
    Peer { package: "cpio", found: || all(&["cpio"]) },
    Peer { package: "e2fsprogs", found: || all(&["mke2fs", "mkfs.ext4", "chattr"]) },
    Peer { package: "xfsprogs", found: || all(&["mkfs.xfs"]) },
    Peer { package: "btrfs-progs", found: || all(&["mkfs.btrfs"]) },
    Peer { package: "mount", found: || all(&["mount", "umount", "losetup"]) },
    Peer { package: "xz-utils", found: || all(&["xz"]) },
    Peer { package: "util-linux", found: || all(&["unshare", "fsfreeze", "partx", "chrt"]) },
    Peer { package: "socat", found: || all(&["socat"]) },
    Peer { package: "python3-prometheus-client", found: || imports("prometheus_client.openmetrics.parser") },
    Peer { package: "gcc", found: || all(&["cc"]) },
    Peer { package: "g++", found: || all(&["c++"]) },
    Peer { package: "binutils", found: || all(&["nm", "readelf"]) },
    Peer { package: "make", found: || all(&["make"]) },
    Peer { package: "pkg-config", found: || all(&["pkg-config"]) },
    Peer { package: "valgrind", found: || all(&["valgrind"]) },
    Peer { package: "golang-go", found: || all(&["go", "gofmt"]) },
    Peer { package: "python3-cffi", found: || imports("cffi") },
    Peer { package: "python3-pip", found: || imports("pip") },
    Peer { package: "python3-venv", found: || imports("ensurepip") },
];

/// Whether a file is where Debian has libraries of this machine's kind.
fn has_library(name: &str) -> bool {
    let place = format!("{}-linux-gnu", std::env::consts::ARCH);
    Path::new("/usr/lib").join(place).join(name).exists()
}

/// What packages are made and tested with.
const PACKAGING: &[Peer] = &[
    Peer { package: "binutils", found: || all(&["strip"]) },
    Peer { package: "gcc", found: || all(&["cc"]) },
    Peer { package: "pkg-config", found: || all(&["pkg-config"]) },
    Peer { package: "dpkg-dev", found: || all(&["dpkg-shlibdeps"]) },
    Peer { package: "lintian", found: || all(&["lintian"]) },
    Peer { package: "mmdebstrap", found: || all(&["mmdebstrap"]) },
    Peer { package: "systemd", found: || all(&["systemd-analyze"]) },
];

/// QEMU's QMP client for Python, which Debian does not package: from PyPI, this version, into the build's directory.
const QMP_CLIENT: &str = "qemu.qmp==0.0.6";

/// An S3-compatible store in memory, and what makes it a server: from PyPI into a directory of the build.
const MOTO: [&str; 3] = ["moto[s3]==5.2.5", "flask", "flask-cors"];

/// What wheels of our packages for Python are built, installed and checked with: from PyPI into a directory of the build, as wheels.
const WHEELS: [&str; 4] = ["mypy==1.18.2", "types-cffi==2.1.0.20260827", "cffi", "setuptools>=61"];

/// Makes sure that everything is there: installs what is missing where that is allowed.
///
/// # Errors
/// With what is missing, and what to do about it.
pub fn ensure() -> Result<(), String> {
    ensure_packages(PEERS, "the tests compare with", "test")?;
    guest_kernel::ensure()?;
    fio_sources::ensure()?;
    qemu_releases::ensure_one_for_tests()?;
    let (python, moto) = (python_packages(), moto_packages());
    ensure_from_pypi(
        &["install", "--no-deps", "--target"],
        &[QMP_CLIENT],
        &python,
        &python.join("qemu").join("qmp"),
    )?;
    ensure_from_pypi(&["install", "--no-cache-dir", "--target"], &MOTO, &moto, &moto.join("moto"))?;
    let wheels = target_directory().join("wheels");
    ensure_from_pypi(&["download", "--only-binary=:all:", "--dest"], &WHEELS, &wheels, &wheels)
}

/// The same for what packages are made and tested with.
///
/// # Errors
/// With what is missing, and what to do about it.
pub fn ensure_packaging() -> Result<(), String> {
    ensure_packages(PACKAGING, "packages are made with", "package")
}

/// Makes sure that `peers`, which `purpose` says what they are for, are there for a command of xtask.
fn ensure_packages(peers: &[Peer], purpose: &str, command: &str) -> Result<(), String> {
    let missing = || missing(peers);
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    let packages = packages.join(" ");
    if !is_root() || find("apt-get").is_none() {
        return Err(format!(
            "{purpose} programs that are not installed; packages missing: {packages}\n\
             run `cargo xtask {command}` as root on Debian, or install them: apt-get install {packages}"
        ));
    }
    apt(&["update"])?;
    // A second round: where packages of one source come together with those of another (QEMU's tools from a backport,
    // its emulator from the release), apt removes what does not fit, and that has to be installed again.
    for _ in 0..2 {
        install(&missing())?;
        if missing().is_empty() {
            return Ok(());
        }
    }
    Err(format!("installed, and yet not found: what packages {} bring", missing().join(" ")))
}

fn install(packages: &[&str]) -> Result<(), String> {
    println!("installing {}", packages.join(" "));
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt(&arguments)
}

/// Where [`MOTO`] is.
pub fn moto_packages() -> PathBuf {
    target_directory().join("moto")
}

/// Where the black-box tests look for Python packages that are not Debian's.
fn python_packages() -> PathBuf {
    target_directory().join("python")
}

/// Brings packages of PyPI into a directory by a command of pip, unless `found` is there.
fn ensure_from_pypi(command: &[&str], packages: &[&str], into: &Path, found: &Path) -> Result<(), String> {
    if found.is_dir() {
        return Ok(());
    }
    let named = packages.join(" ");
    println!("bringing {named} for the tests");
    let status = Command::new("/usr/bin/python3")
        .args(["-m", "pip", "--quiet"])
        .args(command)
        .arg(into)
        .args(packages)
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("pip {} {} {named}: {status}", command.join(" "), into.display())),
        Err(error) => Err(format!("/usr/bin/python3: {error}")),
    }
}

fn missing(peers: &[Peer]) -> Vec<&'static str> {
    peers.iter().filter(|peer| !(peer.found)()).map(|peer| peer.package).collect()
}

/// How long apt waits for another one that is at work: a machine that was just started updates itself.
const LOCK_PATIENCE: Duration = Duration::from_secs(600);

/// How long to wait before apt is run again.
const LOCK_PAUSE: Duration = Duration::from_secs(2);

/// What apt-get is given before a command. For dpkg's lock it waits by itself.
fn apt_arguments(command: &[&str]) -> Vec<String> {
    let patience = format!("DPkg::Lock::Timeout={}", LOCK_PATIENCE.as_secs());
    let own = ["--quiet=2", "-o", &patience];
    own.iter().chain(command).map(|&word| word.to_owned()).collect()
}

/// How one run of apt went.
#[derive(Debug, PartialEq, Eq)]
enum Ran {
    Done,
    /// Another apt holds a lock that apt does not wait for: that of the package lists, or of the archives.
    Locked(String),
    Failed(String),
}

fn apt(args: &[&str]) -> Result<(), String> {
    until_unlocked(
        || run_apt(args),
        |waited| {
            if waited.is_zero() {
                println!("waiting for another apt");
            }
            std::thread::sleep(LOCK_PAUSE);
        },
    )
}

/// Runs apt again while another one is at work, for as long as patience lasts. `pause` hears how long that has been.
fn until_unlocked(mut run: impl FnMut() -> Ran, mut pause: impl FnMut(Duration)) -> Result<(), String> {
    let mut waited = Duration::ZERO;
    loop {
        match run() {
            Ran::Done => return Ok(()),
            Ran::Locked(_) if waited < LOCK_PATIENCE => pause(waited),
            Ran::Locked(error) | Ran::Failed(error) => return Err(error),
        }
        waited += LOCK_PAUSE;
    }
}

fn run_apt(args: &[&str]) -> Ran {
    let output = Command::new("apt-get")
        .args(apt_arguments(args))
        // Its words are looked at.
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .output();
    match output {
        Ok(output) if output.status.success() => Ran::Done,
        Ok(output) => failed(args, &output.status.to_string(), &String::from_utf8_lossy(&output.stderr)),
        Err(error) => Ran::Failed(format!("apt-get: {error}")),
    }
}

fn failed(args: &[&str], status: &str, said: &str) -> Ran {
    let error = format!("apt-get {}: {status}\n{}", args.join(" "), said.trim_end());
    if said.contains("Could not get lock") { Ran::Locked(error) } else { Ran::Failed(error) }
}

fn is_root() -> bool {
    // The owner of a process's own directory in /proc is its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

fn all(programs: &[&str]) -> bool {
    programs.iter().all(|program| find(program).is_some())
}

/// Where a program is, looking where root looks too.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// libnbd's module belongs to the system's Python, which need not be the first one in the path.
fn has_libnbd_for_python() -> bool {
    imports("nbd")
}

/// Whether the system's Python finds a module.
fn imports(module: &str) -> bool {
    let script = format!("import {module}");
    let import = Command::new("/usr/bin/python3").args(["-c", &script]).stderr(Stdio::null()).status();
    import.is_ok_and(|status| status.success())
}

/// A cloud kernel with its modules.
fn has_cloud_kernel() -> bool {
    let Ok(boot) = std::fs::read_dir("/boot") else { return false };
    boot.flatten().any(|entry| {
        let name = entry.file_name();
        let release = name.to_str().and_then(|name| name.strip_prefix("vmlinuz-"));
        release.is_some_and(|release| {
            release.ends_with("-cloud-amd64") && Path::new("/lib/modules").join(release).is_dir()
        })
    })
}

/// One without an interpreter: it is put alone into a guest.
fn has_static_busybox() -> bool {
    find("busybox").and_then(|path| std::fs::read(path).ok()).is_some_and(|elf| !has_interpreter(&elf))
}

/// Whether a 64-bit ELF file names a dynamic linker (a program header of type PT_INTERP).
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: [u8; 4] = 3u32.to_le_bytes();
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at + len).unwrap_or_default();
        bytes.iter().rev().fold(0usize, |number, &byte| number << 8 | usize::from(byte))
    };
    let (headers, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    (0..count)
        .any(|index| elf.get(headers + index * size..).is_some_and(|header| header.starts_with(&PT_INTERP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apt_waits_for_dpkgs_lock() {
        let arguments = apt_arguments(&["install", "--yes", "fio"]);
        assert_eq!(arguments, ["--quiet=2", "-o", "DPkg::Lock::Timeout=600", "install", "--yes", "fio"]);
    }

    #[test]
    fn apt_runs_again_while_another_one_has_the_package_lists() {
        // A new machine updated itself: `apt-get update` failed at once, and with it all tests.
        let said = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 5 (apt-get)\nE: Unable to lock directory\n";
        let mut runs = vec![Ran::Done, failed(&["update"], "100", said), failed(&["update"], "100", said)];
        let mut waited = Vec::new();
        assert_eq!(
            until_unlocked(|| runs.pop().expect("three are enough"), |time| waited.push(time)),
            Ok(())
        );
        assert_eq!((runs.len(), waited), (0, vec![Duration::ZERO, LOCK_PAUSE]));
        let mut tried = 0;
        let patient = until_unlocked(|| failed(&["update"], "100", said), |_| tried += 1);
        assert!(patient.is_err_and(|error| error.contains("process 5")) && tried == 300);
    }

    #[test]
    fn another_failure_of_apt_is_reported_at_once() {
        let run = || failed(&["install", "x"], "100", "E: Unable to locate package x\n");
        let error = until_unlocked(run, |_| panic!("nothing is waited for")).expect_err("it failed");
        assert_eq!(error, "apt-get install x: 100\nE: Unable to locate package x");
    }
}
