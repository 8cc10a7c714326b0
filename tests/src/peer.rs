//! The tools of others, as oracles and as neighbours.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::Run;

/// How long locks may outlive the process that held them.
const LOCKED_MAX: Duration = Duration::from_secs(5);

/// `qemu-img` with arguments.
pub fn qemu_img<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    Run::new("qemu-img").args(args)
}

/// `qemu-io` on `image` (a path or a URI) with one command after the other. It goes on after a command
/// that failed and may still exit with 0: [`qemu_io_ok`] reads what it says.
pub fn qemu_io<C: AsRef<str>>(options: &[&str], image: &str, commands: &[C]) -> Run {
    let script: String = commands.iter().map(|command| format!("{}\n", command.as_ref())).collect();
    Run::new("qemu-io").args(options).arg(image).input(script)
}

/// The same, insisting that each command succeeded; gives what it said.
pub fn qemu_io_ok<C: AsRef<str>>(options: &[&str], image: &str, commands: &[C]) -> String {
    let outcome = qemu_io(options, image, commands).outcome();
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    let bad = ["failed", "rror:", "Pattern verification", "can't open", "No such file", "Invalid", "Usage"];
    let wrong = bad.iter().any(|word| said.contains(word));
    assert!(outcome.status.success() && !wrong, "{outcome}");
    outcome.stdout
}

/// Asserts that QEMU finds neither corruption nor leaks in the image.
pub fn assert_clean(image: &Path) {
    let outcome = qemu_img([Path::new("check"), image]).outcome();
    assert!(outcome.status.success(), "{outcome}");
}

/// Asserts that QEMU finds nothing worse than leaks in the image of a process that was killed. The
/// kernel keeps the process's locks until what it had in flight has ended: so long it is asked again.
pub fn assert_leaks_at_most(image: &Path) {
    let start = Instant::now();
    let outcome = loop {
        let outcome = qemu_img([Path::new("check"), image]).outcome();
        if !outcome.stderr.contains("lock") || start.elapsed() > LOCKED_MAX {
            break outcome;
        }
    };
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome}");
}

/// Every byte of the disk in the image, as `qemu-img convert` reads it.
pub fn converted(image: &str, format: &str, more: &[&str], into: &Path) -> Vec<u8> {
    qemu_img(["convert", "-f", format, "-O", "raw"]).args(more).arg(image).arg(into).ok();
    std::fs::read(into).expect("cannot read what qemu-img wrote")
}

/// The dirty ranges, offset and length, of what `nbdinfo --json --map` says of a bitmap.
pub fn dirty(map: &Value) -> Vec<(u64, u64)> {
    let number = |extent: &Value, name: &str| extent[name].as_u64().expect("a number");
    let dirty = map.as_array().expect("a list").iter().filter(|extent| extent["type"] == 1);
    dirty.map(|extent| (number(extent, "offset"), number(extent, "length"))).collect()
}

/// What qemu-nbd says of a bitmap of a qcow2 image that no process has open.
pub fn dirty_by_qemu(path: &str, bitmap: &str) -> Vec<(u64, u64)> {
    let context = format!("--map=qemu:dirty-bitmap:{bitmap}");
    let server = ["--", "[", "qemu-nbd", "-r", "-f", "qcow2", "-B", bitmap, path, "]"];
    dirty(&Run::new("nbdinfo").args(["--json", &context]).args(server).json())
}

/// A program of QEMU 10.0 or later: the system's, or else that of the release that `cargo xtask peers` unpacks.
pub fn newer_qemu(program: &str) -> PathBuf {
    if qemu_version() >= (10, 0) {
        return program.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's directory");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let path = root.join(target).join("peers/qemu-bookworm-backports/bin").join(program);
    assert!(path.is_file(), "{} is missing: `cargo xtask peers` as root unpacks it", path.display());
    path
}

/// Where the programs of the newest release of QEMU are, if `cargo xtask peers` has unpacked them.
pub fn newest_qemu() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's directory");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let programs = root.join(target).join("peers/qemu-sid/bin");
    programs.is_dir().then_some(programs)
}

/// Version of the system's QEMU, major number first.
pub fn qemu_version() -> (u32, u32) {
    version_of(Path::new("qemu-img"))
}

/// Version of this `qemu-img`, major number first.
pub fn version_of(qemu_img: &Path) -> (u32, u32) {
    let text = Run::new(qemu_img).args(["--version"]).ok();
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    let mut numbers = version.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    (numbers.next().expect("qemu-img --version"), numbers.next().unwrap_or(0))
}

/// A script for nbdsh: Python with a handle `h` that is connected to `uri`. libnbd's module belongs to
/// the system's Python, which need not be the first one in the path.
pub fn nbdsh(uri: &str, script: &str) -> Run {
    let shell = ["-m", "nbd", "--base-allocation", "-u", uri, "-c", "-"];
    Run::new("/usr/bin/python3").args(shell).input(script)
}

/// Makes a file in which every block of 4 KiB has its sum, for fio to verify.
pub fn with_sums(path: &Path, size: &str) {
    let (path, size) = (format!("--filename={}", path.display()), format!("--size={size}"));
    let words = ["--name=make", &path, "--rw=write", "--bs=4k", &size, "--ioengine=psync"];
    Run::new("fio").args(words).args(["--verify=crc32c", "--do_verify=0", "--verify_state_save=0"]).ok();
}

/// fio over NBD; gives the JSON that it prints after a line of text.
pub fn fio(uri: &str, options: &[&str], limit: Duration) -> Value {
    let run = Run::new("fio")
        .args(["--ioengine=nbd", "--output-format=json"])
        .arg(format!("--uri={uri}"))
        .args(options)
        .limit(limit);
    let outcome = run.outcome();
    assert!(outcome.status.success(), "{outcome}");
    let start = outcome.stdout.find("\n{").map_or(0, |at| at + 1);
    serde_json::from_str(&outcome.stdout[start..]).unwrap_or_else(|error| panic!("{error}: {outcome}"))
}
