//! QEMU's tools as makers and judges of images.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sim::Content;

/// The password of encrypted images, as QEMU's tools receive it.
pub const SECRET: [&str; 2] = ["--object", "secret,id=sec0,data=abc123"];
/// The same, as it is.
pub const PASSWORD: &[u8] = b"abc123";

/// A qcow2 image, as QEMU's tools open it.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    pub name: &'a str,
    pub encrypted: bool,
}

impl Image<'_> {
    /// The arguments that name it.
    pub fn arguments(self) -> Vec<String> {
        let name = self.name;
        match self.encrypted {
            false => vec!["-f".into(), "qcow2".into(), name.into()],
            true => {
                let options = format!("driver=qcow2,encrypt.key-secret=sec0,file.filename={name}");
                vec![SECRET[0].into(), SECRET[1].into(), "--image-opts".into(), options]
            }
        }
    }
}

/// A scratch directory in memory where there is one.
pub fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let made = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
    made.expect("a scratch directory")
}

/// What QEMU's tools say, now and then, when they make a key: the kernel's count of CPU time went back. They are to try again.
const NO_CPU_TIME: &str = "Unable to get accurate CPU usage";

/// Runs a tool of QEMU in `directory`.
pub fn tool(name: &str, directory: &Path, args: &[&str]) -> Output {
    loop {
        let output = Command::new(name).args(args).current_dir(directory).output();
        let output =
            output.unwrap_or_else(|error| panic!("{name} (package qemu-utils) does not run: {error}"));
        if !said(&output).contains(NO_CPU_TIME) {
            return output;
        }
    }
}

/// As [`tool`]; anything but success is a bug of the test.
pub fn must(name: &str, directory: &Path, args: &[&str]) {
    let output = tool(name, directory, args);
    let said = said(&output);
    assert!(output.status.success() && !said.contains("failed"), "{name} {args:?}: {said}");
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The bytes of a file as a simulated disk; holes stay holes.
pub fn load(path: &Path) -> Content {
    let bytes = std::fs::read(path).expect("an image that was just made");
    let mut content = Content::zeroed(bytes.len() as u64);
    for (index, chunk) in bytes.chunks(4096).enumerate() {
        if chunk.iter().any(|&byte| byte != 0) {
            content.write(index as u64 * 4096, chunk);
        }
    }
    content.settle();
    content
}

/// Writes a simulated disk to a file.
pub fn store(content: &Content, path: &Path) {
    let mut file = File::create(path).expect("a file in the scratch directory");
    file.set_len(content.length()).expect("space in the scratch directory");
    for (offset, bytes) in content.stored() {
        file.seek(SeekFrom::Start(offset)).expect("a seek in a regular file");
        file.write_all(&bytes).expect("space in the scratch directory");
    }
}

/// Simulated disks as files of a directory, for tools to look at.
pub struct Bench {
    directory: tempfile::TempDir,
    names: Vec<&'static str>,
    encrypted: bool,
}

impl Bench {
    pub fn new(names: &[&'static str], encrypted: bool) -> Self {
        Self { directory: scratch(), names: names.to_vec(), encrypted }
    }

    fn image(&self) -> Vec<String> {
        Image { name: self.names[0], encrypted: self.encrypted }.arguments()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, disks: &[Content]) {
        for (name, content) in self.names.iter().zip(disks) {
            store(content, &self.path(name));
        }
    }

    /// Lets `qemu-img convert` read the whole disk, and gives ranges of what it read.
    pub fn read(&self, disks: &[Content], ranges: &[(u64, u64)]) -> Result<Vec<Vec<u8>>, String> {
        self.put(disks);
        let image = self.image();
        let image: Vec<&str> = image.iter().map(String::as_str).collect();
        let args = [&["convert", "-O", "raw"], &image[..], &["converted"]].concat();
        let output = tool("qemu-img", self.directory.path(), &args);
        if !output.status.success() {
            return Err(format!("qemu-img convert: {}", said(&output)));
        }
        let file = File::open(self.path("converted")).expect("just made");
        let read = |&(offset, len): &(u64, u64)| {
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, offset).expect("inside the disk");
            bytes
        };
        Ok(ranges.iter().map(read).collect())
    }

    /// `qemu-img check`: nothing worse than leaks. A dirty image may be anything before its repair, so
    /// it is repaired, and must then be right.
    pub fn check(&self, disks: &[Content]) -> Result<(), String> {
        self.put(disks);
        let dirty = disks.first().is_some_and(super::judge::is_dirty);
        let repair: &[&str] = if dirty { &["-r", "all"] } else { &[] };
        let image = self.image();
        let image: Vec<&str> = image.iter().map(String::as_str).collect();
        let args = [&["check"], repair, &image[..]].concat();
        let output = tool("qemu-img", self.directory.path(), &args);
        match output.status.code() {
            Some(0 | 3) => Ok(()),
            code => Err(format!("qemu-img check exits with {code:?}: {}", said(&output))),
        }
    }
}
