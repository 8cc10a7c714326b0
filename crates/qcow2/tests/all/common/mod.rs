//! Images in memory for us, in files for `qemu-img`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod broken;
pub mod faulty;
pub mod recorder;

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use storage::{Hints, IoBytes, MemoryStorage, Storage};

use crate::harness::qemu::tool;

/// Runs an asynchronous block to its end.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    futures_util::pin_mut!(future);
    futures_util::FutureExt::now_or_never(future).expect("memory never makes anybody wait")
}

/// Runs a command of QEMU's, whatever it exits with.
pub fn qemu(directory: &Path, program: &str, arguments: &[&str]) -> Output {
    tool(program, directory, arguments)
}

/// Runs `qemu-img`, which must succeed.
pub fn qemu_img(directory: &Path, arguments: &[&str]) -> String {
    let output = qemu(directory, "qemu-img", arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `qemu-io` commands on an image; all must succeed.
pub fn qemu_io(directory: &Path, image: &str, commands: &[&str]) {
    let mut arguments = vec!["-f", "qcow2"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(image);
    let output = qemu(directory, "qemu-io", &arguments);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("rror"), "qemu-io {commands:?}: {said}");
}

/// Writes what is in memory to a file, holes as holes.
pub fn save(memory: &MemoryStorage, path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let length = memory.length();
    file.set_len(length).unwrap();
    let mut at = 0;
    while at < length {
        let extent = run(memory.extent(at, length - at)).unwrap();
        if extent.kind == storage::ExtentKind::Data {
            let mut bytes = vec![0; usize::try_from(extent.len).unwrap()];
            assert!(memory.try_read(at, &mut bytes, Hints::NONE));
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&bytes).unwrap();
        }
        at += extent.len;
    }
}

/// Reads a file into memory; zeroes become holes.
pub fn load(path: &Path) -> MemoryStorage {
    let mut file = std::fs::File::open(path).unwrap();
    let memory = MemoryStorage::new(file.metadata().unwrap().len());
    let mut bytes = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        let read = file.read(&mut bytes).unwrap();
        if read == 0 {
            return memory;
        }
        if bytes[..read].iter().any(|&byte| byte != 0) {
            run(memory.write(at, IoBytes::copy_from(&bytes[..read]).into(), Hints::NONE)).unwrap();
        }
        at += read as u64;
    }
}

/// What `qemu-img check --output=json` says, and its exit code.
pub fn qemu_check(path: &Path, repair: Option<&str>) -> (i32, Value) {
    let name = path.to_str().unwrap();
    let mut arguments = vec!["check", "-f", "qcow2", "--output=json"];
    if let Some(repair) = repair {
        arguments.extend(["-r", repair]);
    }
    arguments.push(name);
    let output = qemu(path.parent().unwrap(), "qemu-img", &arguments);
    let said = || Value::String(String::from_utf8_lossy(&output.stderr).into_owned());
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| said());
    (output.status.code().unwrap(), report)
}

/// `qemu-img info --output=json`.
pub fn qemu_info(path: &Path) -> Value {
    let name = path.to_str().unwrap();
    let arguments = ["info", "-f", "qcow2", "--output=json", name];
    serde_json::from_str(&qemu_img(path.parent().unwrap(), &arguments)).unwrap()
}

/// A file of this name in a scratch directory.
pub fn at(directory: &tempfile::TempDir, name: &str) -> PathBuf {
    directory.path().join(name)
}
