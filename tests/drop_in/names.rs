//! Names in images, under QEMU's names: bases lie in other directories.

use black_box::peer::qemu_io_ok;
use black_box::{Run, Scratch, cowhand};

use super::ours;

#[test]
fn a_chain_over_two_directories_works_under_qemus_names_alone() {
    let scratch = Scratch::new();
    for directory in ["_base", "inst"] {
        std::fs::create_dir(scratch.file(directory)).expect("a directory");
    }
    let (base, disk) = (scratch.name("_base/b"), scratch.name("inst/disk"));
    let img = |words: &[&str]| Run::new(ours("qemu-img")).args(words).current_dir(scratch.path());
    drop(img(&["create", "-q", "-f", "qcow2", &base, "8M"]).ok());
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 7 0 1M"]);
    drop(img(&["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &disk]).ok());
    for words in [
        &["info", "--backing-chain", &disk][..],
        &["map", &disk],
        &["convert", "-O", "raw", &disk, "flat"],
        &["compare", &disk, "flat"],
        &["snapshot", "-c", "s", &disk],
        &["commit", &disk],
    ] {
        drop(img(words).ok());
    }
    assert!(
        std::fs::read(scratch.file("flat")).expect("it is there")[..1 << 20].iter().all(|byte| *byte == 7)
    );
    // Ours, and one that is asked to be strict.
    let outside = "outside the image's own directory";
    let refused = cowhand(["map", &disk]).outcome();
    assert!(!refused.status.success() && refused.stderr.contains(outside), "{refused}");
    let policy = scratch.name("policy");
    std::fs::write(&policy, "strict = true\n").expect("a file");
    let refused = img(&["map", &disk]).env("COWHAND_POLICY", &policy).outcome();
    assert!(!refused.status.success() && refused.stderr.contains(outside), "{refused}");
    std::fs::write(&policy, "allow-path = ['/']\n").expect("a file");
    let refused = img(&["map", &disk]).env("COWHAND_POLICY", &policy).outcome();
    assert!(!refused.status.success() && refused.stderr.contains("allows something"), "{refused}");
}

/// A data file is written: it stays in the image's directory (CVE-2024-32498).
#[test]
fn a_data_file_elsewhere_is_not_opened() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.file("inst")).expect("a directory");
    std::fs::write(scratch.file("secret"), vec![9; 1 << 20]).expect("a file");
    let disk = scratch.name("inst/disk");
    let option = format!("data_file={},data_file_raw=on", scratch.name("data"));
    drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", "-o", &option, &disk, "1M"]).ok());
    for words in [&["convert", "-O", "raw", &disk, "out"][..], &["compare", &disk, &disk]] {
        let run = Run::new(ours("qemu-img")).args(words).current_dir(scratch.path()).outcome();
        assert!(!run.status.success() && run.stderr.contains("data file"), "{run}");
    }
    drop(Run::new(ours("qemu-img")).args(["info", &disk]).ok());
}
