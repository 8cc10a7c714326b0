//! The tools in trouble: killed, out of room, asked and informed by signals, short of memory, on images made to harm them.
//!
//! Whatever happens to a tool, the disk that it works on reads as before, a new image is whole or not there, and QEMU finds leaks at most.

mod backup;
mod corpus;
mod json_keys;
mod killed;
mod memory;
mod no_room;
mod signals;

use std::path::Path;

use black_box::peer::{assert_leaks_at_most, qemu_img, qemu_io_ok};
use black_box::{Outcome, Run, Scratch, program};

/// Bytes of the disk that the tools work on.
const DISK: usize = 12 << 20;

/// A command line, on the images that [`Bench`] makes.
#[derive(Clone, Copy, Debug)]
struct Tool {
    name: &'static str,
    words: &'static [&'static str],
}

/// Every tool that changes or makes images over a time in which something can happen.
const TOOLS: [Tool; 9] = [
    Tool { name: "convert", words: &["convert", "-O", "qcow2", "top.qcow2", "new.qcow2"] },
    Tool { name: "convert", words: &["convert", "-c", "-O", "qcow2", "top.qcow2", "new.qcow2"] },
    Tool { name: "convert", words: &["convert", "-O", "raw", "top.qcow2", "new.raw"] },
    Tool { name: "commit", words: &["commit", "top.qcow2"] },
    Tool { name: "rebase", words: &["rebase", "-b", "other.qcow2", "-F", "qcow2", "top.qcow2"] },
    Tool { name: "amend", words: &["amend", "-o", "refcount_bits=64", "top.qcow2"] },
    Tool { name: "compact", words: &["compact", "top.qcow2"] },
    Tool { name: "flatten", words: &["flatten", "top.qcow2"] },
    Tool { name: "resize", words: &["resize", "--preallocation", "full", "top.qcow2", "16M"] },
];

/// The images, made once.
struct Images {
    scratch: Scratch,
    /// What the disk of `top.qcow2` reads as.
    disk: Vec<u8>,
}

/// The files of [`Images`], and those that tools make.
const FILES: [&str; 3] = ["base.qcow2", "other.qcow2", "top.qcow2"];
const NEW: [&str; 2] = ["new.qcow2", "new.raw"];

impl Images {
    /// An overlay in small clusters over an image, and another image with other data.
    fn new() -> Self {
        let scratch = Scratch::new();
        let img = |words: &str| {
            drop(Run::new("qemu-img").args(words.split(' ')).current_dir(scratch.path()).ok());
        };
        img("create -q -f qcow2 -o cluster_size=4k base.qcow2 12M");
        img("create -q -f qcow2 -o cluster_size=4k other.qcow2 12M");
        img("create -q -f qcow2 -o cluster_size=4k -b base.qcow2 -F qcow2 top.qcow2");
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("base.qcow2"), &["write -P 1 0 5M", "write -P 2 8M 1M"]);
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("other.qcow2"), &["write -P 3 1M 5M"]);
        let writes = ["write -P 4 2M 3M", "write -z 4M 64k", "write -P 5 9M 2M", "discard 9M 1M"];
        qemu_io_ok(&["-f", "qcow2", "-d", "unmap"], &scratch.name("top.qcow2"), &writes);
        let disk = content(scratch.path(), "top.qcow2");
        assert_eq!(disk.len(), DISK);
        Self { scratch, disk }
    }

    /// Copies them into `directory`.
    fn copy_into(&self, directory: &Path) {
        for name in NEW {
            let _ = std::fs::remove_file(directory.join(name));
        }
        for name in FILES {
            std::fs::copy(self.scratch.file(name), directory.join(name)).expect("a copy");
        }
    }

    /// Nothing is lost in `directory`: the disk reads as before, what was made is whole or not there.
    fn assert_whole(&self, directory: &Path, what: &str) {
        for name in FILES {
            assert_leaks_at_most(&directory.join(name));
        }
        assert!(content(directory, "top.qcow2")[..DISK] == self.disk, "{what}: the disk is another one");
        for name in NEW.into_iter().filter(|name| directory.join(name).exists()) {
            assert!(content(directory, name) == self.disk, "{what}: {name} is there, and not whole");
        }
    }

    /// The tool works, also on what an earlier run left.
    fn assert_works(&self, directory: &Path, tool: Tool, what: &str) {
        let again = cowhand(tool.words, directory);
        // A disk that is as large already cannot be made larger with room.
        let is_done = tool.name == "resize" && again.stderr.contains("preallocation");
        assert!(again.status.success() || is_done, "{what}, then again: {again}");
        self.assert_whole(directory, what);
        if tool.name == "convert" {
            assert!(NEW.into_iter().any(|name| directory.join(name).exists()), "{what}: nothing was made");
        }
    }
}

/// Every byte of a disk, as QEMU reads it.
fn content(directory: &Path, name: &str) -> Vec<u8> {
    let format = if name.ends_with(".raw") { "raw" } else { "qcow2" };
    let raw = Scratch::new();
    let into = raw.file("all.raw");
    qemu_img(["convert", "-f", format, "-O", "raw"]).arg(directory.join(name)).arg(&into).ok();
    std::fs::read(&into).expect("what QEMU wrote")
}

fn cowhand(words: &[&str], directory: &Path) -> Outcome {
    let outcome = Run::new(program::path()).args(words).current_dir(directory).outcome();
    assert!(!outcome.panicked() && !outcome.timed_out, "{outcome}");
    outcome
}
