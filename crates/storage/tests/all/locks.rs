//! File locks as QEMU takes them, against QEMU's own tools (package qemu-utils), both ways.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use storage::{FileLock, FileOptions, FileStorage, LockError, Permissions, Role};
use tempfile::TempDir;

fn image(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("image");
    let mut qemu = Command::new("qemu-img");
    qemu.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("1M");
    assert!(qemu.status().expect("qemu-img is needed: package qemu-utils").success());
    path
}

fn open(path: &Path) -> FileStorage {
    FileStorage::open(path, &FileOptions::default()).unwrap()
}

fn lock(storage: &FileStorage, role: Role) -> Result<FileLock, LockError> {
    FileLock::acquire_role(storage.fd(), role)
}

fn qemu_io(path: &Path, options: &[&str], command: &str) -> Output {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "qcow2", "-c", command]).args(options).arg(path);
    qemu.output().expect("qemu-io is needed: package qemu-utils")
}

fn works(output: &Output) -> bool {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || error.contains("lock"), "unexpected: {error}");
    output.status.success()
}

/// A qemu-nbd that has the image open.
struct QemuNbd {
    pid: u32,
}

impl QemuNbd {
    fn start(dir: &TempDir, path: &Path, options: &[&str]) -> Self {
        let (socket, pid_file) = (dir.path().join("socket"), dir.path().join("pid"));
        let mut qemu = Command::new("qemu-nbd");
        qemu.args(["--fork", "-t", "-f", "qcow2"]).args(options);
        qemu.arg("-k").arg(&socket).arg("--pid-file").arg(&pid_file).arg(path);
        assert!(qemu.status().expect("qemu-nbd is needed: package qemu-utils").success());
        let pid = fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        Self { pid }
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.pid.to_string()).status();
    }
}

/// The bytes locked through this descriptor. (`/proc/locks` as a whole is no snapshot.)
fn locked_bytes(storage: &FileStorage) -> Vec<u64> {
    let info = format!("/proc/self/fdinfo/{}", storage.fd().as_raw_fd());
    let mut bytes = Vec::new();
    for line in fs::read_to_string(info).unwrap().lines().filter(|line| line.starts_with("lock:")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[2..5], ["OFDLCK", "ADVISORY", "READ"]);
        bytes.extend(fields[7].parse::<u64>().unwrap()..=fields[8].parse::<u64>().unwrap());
    }
    bytes.sort_unstable();
    bytes
}

#[test]
fn each_role_holds_exactly_its_bytes() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let storage = open(&path);
    let mut held = lock(&storage, Role::Writer).unwrap();
    assert_eq!(locked_bytes(&storage), [100, 101, 103, 201, 203]);
    held.change(Role::Reader.wanted(), Role::Reader.shared()).unwrap();
    assert_eq!(locked_bytes(&storage), [100, 201, 203]);
    held.change(Role::Writer.wanted(), Role::Writer.shared()).unwrap();
    assert_eq!(locked_bytes(&storage), [100, 101, 103, 201, 203]);
    drop(held);
    assert_eq!(locked_bytes(&storage), []);
    let held = lock(&storage, Role::ForceShare).unwrap();
    assert_eq!(locked_bytes(&storage), [100]);
    assert_eq!(held.held(), (Permissions::CONSISTENT_READ, Permissions::ALL));
}

#[test]
fn a_writer_keeps_a_writer_and_a_reader_of_the_same_process_out() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let (one, other) = (open(&path), open(&path));
    let held = lock(&one, Role::Writer).unwrap();
    let error = lock(&other, Role::Writer).unwrap_err();
    assert!(error.to_string().contains("this process itself"), "{error}");
    assert!(matches!(lock(&other, Role::Reader), Err(LockError::Busy { .. })));
    assert!(lock(&other, Role::ForceShare).is_ok());
    drop(held);
    assert!(lock(&other, Role::Writer).is_ok());
}

#[test]
fn a_refused_lock_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let (one, other) = (open(&path), open(&path));
    let _held = lock(&one, Role::Reader).unwrap();
    assert!(lock(&other, Role::Writer).is_err());
    assert_eq!(locked_bytes(&other), []);
    let mut reader = lock(&other, Role::Reader).unwrap();
    assert!(reader.change(Role::Writer.wanted(), Role::Writer.shared()).is_err());
    assert_eq!(locked_bytes(&other), [100, 201, 203]);
}

#[test]
fn our_writer_keeps_qemu_out_unless_it_shares_by_force() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let storage = open(&path);
    let held = lock(&storage, Role::Writer).unwrap();
    assert!(!works(&qemu_io(&path, &[], "write 0 512")));
    assert!(!works(&qemu_io(&path, &["-r"], "read 0 512")));
    assert!(works(&qemu_io(&path, &["-r", "-U"], "read 0 512")));
    drop(held);
    assert!(works(&qemu_io(&path, &[], "write 0 512")));
}

#[test]
fn our_reader_keeps_qemus_writers_out_and_lets_its_readers_in() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let storage = open(&path);
    let _held = lock(&storage, Role::Reader).unwrap();
    assert!(works(&qemu_io(&path, &["-r"], "read 0 512")));
    assert!(!works(&qemu_io(&path, &[], "write 0 512")));
}

#[test]
fn qemus_writer_keeps_us_out_and_the_error_names_it() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let qemu = QemuNbd::start(&dir, &path, &[]);
    let storage = open(&path);
    for role in [Role::Writer, Role::Reader] {
        let error = lock(&storage, role).unwrap_err();
        let LockError::Busy { holders, .. } = &error else { panic!("{error}") };
        assert_eq!(holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [qemu.pid]);
        let text = error.to_string();
        assert!(text.contains(&format!("qemu-nbd (process {})", qemu.pid)), "{text}");
    }
    assert!(lock(&storage, Role::ForceShare).is_ok());
}

#[test]
fn qemus_reader_lets_our_reader_in_and_keeps_our_writer_out() {
    let dir = TempDir::new().unwrap();
    let path = image(&dir);
    let _qemu = QemuNbd::start(&dir, &path, &["-r"]);
    let storage = open(&path);
    assert!(lock(&storage, Role::Reader).is_ok());
    assert!(matches!(lock(&storage, Role::Writer), Err(LockError::Busy { .. })));
}
