//! Images that were made to harm a reader, through every tool that reads.

use std::path::{Path, PathBuf};

use black_box::{Run, Scratch, program};

/// The most memory that a tool may have on any of them.
const RESIDENT_MAX: u64 = 256 << 20;

/// Folders of the corpus whose files are images, or begin as one does.
const FOLDERS: [&str; 6] = ["open", "check", "repair", "header", "entries", "snapshot_table"];

/// Of each folder so many, evenly: each tool is a process.
const IMAGES: usize = 9;

fn images(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(folder);
    let mut all: Vec<_> =
        std::fs::read_dir(&folder).expect("the corpus").map(|entry| entry.expect("a file").path()).collect();
    all.sort();
    let step = all.len().div_ceil(IMAGES).max(1);
    all.into_iter().step_by(step).collect()
}

#[test]
fn no_tool_takes_much_memory_on_an_image_that_was_made_to_harm_it() {
    let scratch = Scratch::new();
    let (mut runs, mut most) = (0, 0);
    for image in FOLDERS.into_iter().flat_map(images) {
        std::fs::copy(&image, scratch.file("disk.qcow2")).expect("a copy");
        for words in [
            &["info", "--backing-chain", "-f", "qcow2", "disk.qcow2"][..],
            &["check", "-f", "qcow2", "disk.qcow2"],
            &["map", "-f", "qcow2", "disk.qcow2"],
            &["measure", "-f", "qcow2", "-O", "qcow2", "disk.qcow2"],
            &["snapshot", "-l", "-f", "qcow2", "disk.qcow2"],
            &["compare", "-f", "qcow2", "-F", "qcow2", "disk.qcow2", "disk.qcow2"],
            &["show", "-f", "qcow2", "disk.qcow2"],
            &["compact", "-n", "-f", "qcow2", "disk.qcow2"],
        ] {
            let limit = std::time::Duration::from_secs(20);
            let run = Run::new(program::path()).args(words).current_dir(scratch.path()).limit(limit);
            let outcome = run.outcome();
            let what = format!("{}: {outcome}", image.display());
            assert!(!outcome.panicked(), "{what}");
            // A disk of exabytes is compared for longer than a test lasts.
            assert!(!outcome.timed_out || words[0] == "compare", "{what}");
            assert!(outcome.peak_rss_bytes < RESIDENT_MAX, "{what}");
            most = most.max(outcome.peak_rss_bytes);
            runs += 1;
        }
    }
    assert!(runs > 200, "the corpus has {runs} runs only");
    println!("hostile images: {runs} runs of tools, {} MiB at most", most >> 20);
}
