//! Names in images, under QEMU's names: bases lie in other directories.

use black_box::peer::qemu_io_ok;
use black_box::{Run, Scratch, cowhand, program};

use super::ours;
use crate::serve::warnings::forget_backing_format;

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

/// A guest whose raw disk the backing file was could write the header of an image there.
#[test]
fn strict_rules_let_no_content_decide_the_format_of_a_backing_file() {
    let scratch = Scratch::new();
    let (base, top, policy) = (scratch.name("base"), scratch.name("top"), scratch.name("policy"));
    drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", &base, "4M"]).ok());
    drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top]).ok());
    std::fs::write(&policy, "strict = true\n").expect("a file");
    let read = ["-r", "-c", "read 0 4k", &top];
    let told = format!("driver=qcow2,file.filename={top},backing.driver=qcow2");
    let io = [(ours("qemu-io"), None), (program::path().to_path_buf(), Some("io"))];
    let opened = |words: &[&str]| -> Vec<_> {
        let run = |(program, command): &(_, Option<&str>)| {
            Run::new(program).args(*command).args(words).env("COWHAND_POLICY", &policy).outcome()
        };
        io.iter().map(run).collect()
    };
    assert!(opened(&read).iter().all(|run| run.status.success()));
    forget_backing_format(&top);
    for run in opened(&read) {
        assert!(!run.status.success() && run.stderr.contains("in which format it is"), "{run}");
        assert!(run.stderr.contains("strict") && run.stderr.contains("-F FORMAT"), "{run}");
    }
    assert!(opened(&["-r", "-c", "read 0 4k", "--image-opts", &told]).iter().all(|run| run.status.success()));
    let daemon = format!("driver=qcow2,node-name=n,file.driver=file,file.filename={top}");
    let run =
        Run::new(ours("qemu-storage-daemon")).args(["--blockdev", &daemon]).env("COWHAND_POLICY", &policy);
    let run = run.outcome();
    assert!(!run.status.success() && run.stderr.contains("in which format it is"), "{run}");
    // What opens no backing file does not ask.
    let info = Run::new(ours("qemu-img")).args(["info", &top]).env("COWHAND_POLICY", &policy);
    drop(info.ok());
}

/// A user whom the rules refuse learns where the administrator changes them.
#[test]
fn help_and_refusals_name_the_administrators_rules() {
    const RULES: &str = "/etc/cowhand/policy.d";
    for command in ["info", "convert", "io", "serve", "mount"] {
        let help = cowhand([command, "--help"]).ok();
        assert!(help.contains(RULES), "{command}: {help}");
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.file("inst")).expect("a directory");
    let (base, top) = (scratch.name("base"), scratch.name("inst/top"));
    drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", &base, "4M"]).ok());
    for backing in [&*base, "nbd://localhost:1/x"] {
        let create = ["create", "-q", "-u", "-f", "qcow2", "-b", backing, "-F", "qcow2", &top, "4M"];
        drop(Run::new("qemu-img").args(create).ok());
        let refused = cowhand(["io", "-r", "-c", "length", &top]).outcome();
        assert!(!refused.status.success() && refused.stderr.contains(RULES), "{refused}");
    }
}

/// Options in a header are what their author wants to be opened: they are followed where just these are allowed.
#[test]
fn options_in_a_header_are_followed_where_they_are_allowed() {
    let scratch = Scratch::new();
    let (base, top) = (scratch.name("base"), scratch.name("top"));
    drop(Run::new("qemu-img").args(["create", "-q", "-f", "raw", &base, "4M"]).ok());
    qemu_io_ok(&["-f", "raw"], &base, &["write -P 7 0 4M"]);
    let options = |size: &str| {
        let file = format!("\"file\":{{\"driver\":\"file\",\"filename\":\"{base}\"}}");
        format!("json:{{\"driver\":\"raw\",\"size\":\"{size}\",{file}}}")
    };
    let create = ["create", "-q", "-u", "-f", "qcow2", "-b", &options("1M"), "-F", "raw", &top, "4M"];
    drop(Run::new("qemu-img").args(create).ok());
    let read = ["-r", "-c", "read -P 7 0 1M", "-c", "read -P 0 1M 1M", &top];
    for (allowed, is_followed) in [(None, false), (Some(options("2M")), false), (Some(options("1M")), true)] {
        for program in [ours("qemu-io"), program::path().to_path_buf()] {
            let command = if program.ends_with("qemu-io") { None } else { Some("io") };
            let run =
                Run::new(program).args(command).args(allowed.iter().flat_map(|name| ["--allow-name", name]));
            let run = run.args(read).outcome();
            assert_eq!(run.status.success(), is_followed, "{allowed:?}: {run}");
            assert!(is_followed || run.stderr.contains("unless it is allowed"), "{run}");
            assert!(!run.stdout.contains("Pattern verification failed"), "{run}");
        }
    }
}
