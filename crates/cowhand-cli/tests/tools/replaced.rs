//! Files that take the place of others: who may read them meanwhile, what becomes of them, and what is said when they fail.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::peer::{Bench, Ran};

const COWHAND: &str = env!("CARGO_BIN_EXE_cowhand");

/// What lies in the directory and is called like a file on its way.
fn parts(bench: &Bench) -> Vec<PathBuf> {
    let entries = fs::read_dir(bench.path("")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().contains(".part-")).collect()
}

/// The mode of the file on its way, while `running` fills it.
fn mode_meanwhile(bench: &Bench, running: &mut Child) -> u32 {
    loop {
        if let Some(part) = parts(bench).first()
            && let Ok(found) = part.metadata()
        {
            return found.mode() & 0o777;
        }
        assert!(running.try_wait().unwrap().is_none(), "it ended before its file was seen");
    }
}

/// The new content of a file of mode 0600 was in a file of mode 0644 while it was copied: every local user could read the disk.
#[test]
fn what_takes_the_place_of_a_file_is_never_more_open_than_it() {
    let bench = Bench::new();
    fs::write(bench.path("disk.raw"), vec![7; 4 << 20]).unwrap();
    for mode in [0o600, 0o640] {
        fs::write(bench.path("target"), "old").unwrap();
        fs::set_permissions(bench.path("target"), Permissions::from_mode(mode)).unwrap();
        let words = ["convert", "-r", "1M", "-f", "raw", "-O", "qcow2", "disk.raw", "target"];
        let mut running = Command::new(COWHAND).args(words).current_dir(bench.path("")).spawn().unwrap();
        let meanwhile = mode_meanwhile(&bench, &mut running);
        assert_eq!(meanwhile & !mode, 0, "{meanwhile:o} for {mode:o}");
        running.kill().unwrap();
        running.wait().unwrap();
        parts(&bench).into_iter().for_each(|part| fs::remove_file(part).unwrap());
        let whole = bench.cowhand(&["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "target"]);
        assert_eq!(whole.code, 0, "{}", whole.err);
        assert_eq!(bench.path("target").metadata().unwrap().mode() & 0o777, mode);
    }
    let whole =
        bench.cowhand(&["convert", "-f", "raw", "-O", "qcow2", "-o", "data_file=data", "disk.raw", "target"]);
    assert_eq!(whole.code, 0, "{}", whole.err);
    assert_eq!(bench.path("data").metadata().unwrap().mode() & 0o777, 0o640);
}

/// What `io -s` writes lay in /var/tmp, readable by all.
#[test]
fn the_overlay_of_io_is_private() {
    let bench = Bench::new();
    fs::write(bench.path("disk.raw"), vec![7; 1 << 20]).unwrap();
    let mut running = Command::new(COWHAND)
        .args(["io", "-s", "-f", "raw", "disk.raw"])
        .env("TMPDIR", bench.path(""))
        .current_dir(bench.path(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let overlay = bench.path(&format!("cowhand-io-{}.qcow2", running.id()));
    // Its name is soon removed: it is looked for among the files that the program has open.
    let is_overlay = |file: &fs::DirEntry| {
        let leads_to = fs::read_link(file.path());
        leads_to.is_ok_and(|path| path.to_string_lossy().starts_with(&*overlay.to_string_lossy()))
    };
    let mode = loop {
        let mut open = fs::read_dir(format!("/proc/{}/fd", running.id())).unwrap().flatten();
        if let Some(Ok(found)) = open.find(is_overlay).map(|file| fs::metadata(file.path())) {
            break found.mode() & 0o777;
        }
        assert!(running.try_wait().unwrap().is_none(), "it ended before its overlay was seen");
    };
    assert_eq!(mode, 0o600);
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
}

/// Runs cowhand, as `name`, without the right to pass by modes, and with `before` in a mount namespace of its own if it is given.
fn without_rights(bench: &Bench, name: &str, before: Option<&str>, words: &[&str]) -> Ran {
    let program = bench.path(name);
    if !program.exists() {
        std::os::unix::fs::symlink(COWHAND, &program).unwrap();
    }
    let program = program.display().to_string();
    let dropped = ["--bounding-set=-all", "--inh-caps=-all", &program];
    match before {
        None if !is_root() => bench.run(Path::new(&program), words),
        None => bench.run(Path::new("setpriv"), &[&dropped[..], words].concat()),
        Some(before) => {
            let script = format!("{before} && exec \"$0\" \"$@\"");
            let unshare: &[&str] = if is_root() { &["-m"] } else { &["-r", "-m"] };
            bench.run(Path::new("unshare"), &[unshare, &["sh", "-c", &script, &program], words].concat())
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// `convert` onto a file that is a mount point (as in a container), or in a directory that is not ours to change: the whole copy was made,
/// and then EBUSY or EACCES ended it.
#[test]
fn a_file_that_cannot_be_replaced_is_seen_before_the_copy_and_written_in_place_as_qemu_img() {
    for mounted in [true, false] {
        let bench = Bench::new();
        fs::write(bench.path("disk.raw"), vec![7; 4 << 20]).unwrap();
        fs::create_dir(bench.path("dir")).unwrap();
        fs::write(bench.path("dir/target"), "old").unwrap();
        if !mounted {
            fs::set_permissions(bench.path("dir"), Permissions::from_mode(0o555)).unwrap();
        }
        let before = mounted.then_some("mount --bind dir/target dir/target");
        let words = ["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "dir/target"];
        // The rate would make a copy that is begun take for ever.
        let refused =
            without_rights(&bench, "cowhand", before, &[&["convert", "-r", "1"], &words[1..]].concat());
        assert_eq!(refused.code, 1, "{}", refused.out);
        let why = if mounted { "it is a mount point" } else { "its directory does not let us" };
        assert!(refused.err.contains(why) && refused.err.contains("convert -n"), "{}", refused.err);
        assert_eq!(fs::read(bench.path("dir/target")).unwrap(), b"old");
        let done = without_rights(&bench, "qemu-img", before, &words);
        assert_eq!(done.code, 0, "{}", done.err);
        bench.qemu("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", "disk.raw", "dir/target"]);
        fs::set_permissions(bench.path("dir"), Permissions::from_mode(0o755)).unwrap();
    }
}

/// What could only be written in place is no image before it is whole.
#[test]
fn a_file_that_is_written_in_place_has_its_header_last() {
    let bench = Bench::new();
    fs::write(bench.path("disk.raw"), vec![7; 4 << 20]).unwrap();
    fs::write(bench.path("target"), "old").unwrap();
    let limited = "mount --bind target target && ulimit -f 2048 && trap '' XFSZ";
    let words = ["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "target"];
    let failed = without_rights(&bench, "qemu-img", Some(limited), &words);
    assert_eq!(failed.code, 1, "{}", failed.out);
    assert!(failed.err.contains("the file holds a part of the copy, and no image"), "{}", failed.err);
    assert_eq!(fs::read(bench.path("target")).unwrap()[..4], [0; 4]);
}

/// `convert -n` that had failed before its first write said that the target holds a part of the copy.
#[test]
fn a_failure_says_that_the_target_holds_a_part_only_if_it_was_written() {
    let bench = Bench::new();
    fs::write(bench.path("disk.raw"), vec![7; 4 << 20]).unwrap();
    fs::write(bench.path("small"), vec![0; 512]).unwrap();
    for target in ["missing", "nbd+unix:///?socket=missing", "disk.raw", "small"] {
        let failed = bench.cowhand(&["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", target]);
        assert!(failed.code == 1 && !failed.err.contains("holds a part"), "{target}: {}", failed.err);
    }
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "there.qcow2", "4M"]);
    let words = ["convert", "-n", "-f", "raw", "-O", "qcow2", "disk.raw", "there.qcow2"];
    let limited = [&["--ignore-signal=XFSZ", "prlimit", "--fsize=1048576", COWHAND][..], &words].concat();
    let failed = bench.run(Path::new("env"), &limited);
    assert!(failed.code == 1 && failed.err.contains("holds a part"), "{}", failed.err);
}

/// Errors named `.disk.qcow2.part-4711`, which was gone by then, and said "cannot create x" as the reason for "cannot create x".
#[test]
fn no_error_names_a_file_on_its_way_or_repeats_itself() {
    let bench = Bench::new();
    fs::write(bench.path("disk.raw"), vec![7; 4 << 20]).unwrap();
    fs::create_dir(bench.path("dir")).unwrap();
    let convert = ["convert", "-f", "raw", "-O", "qcow2", "disk.raw"];
    for target in ["nowhere/x", "disk.raw/x", "dir"] {
        let commands: [&[&str]; 6] = [
            &[&convert[..], &[target]].concat(),
            &["convert", "-f", "raw", "-O", "raw", "disk.raw", target],
            &["dd", "-f", "raw", "if=disk.raw", &format!("of={target}")],
            &["create", "-f", "qcow2", target, "1M"],
            &["create", "-f", "raw", target, "1M"],
            &["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", target],
        ];
        for words in commands {
            said_once(&bench.cowhand(words), words);
        }
    }
    // In the middle of the copy, on a medium that is full.
    let formats = ["qcow2", "raw"];
    for format in formats {
        for verb in [&["convert", "-f", "raw", "-S", "0"][..], &["dd", "-f", "raw"]] {
            let operands: &[&str] =
                if verb[0] == "dd" { &["if=disk.raw", "of=new"] } else { &["disk.raw", "new"] };
            let words = [verb, &["-O", format], operands].concat();
            let limited =
                [&["--ignore-signal=XFSZ", "prlimit", "--fsize=1048576", COWHAND][..], &words].concat();
            said_once(&bench.run(Path::new("env"), &limited), &words);
            assert!(!bench.path("new").exists() && parts(&bench).is_empty());
        }
    }
}

fn said_once(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code, 1, "{words:?}: {}", ran.out);
    assert!(!ran.err.contains(".part-"), "{words:?}: {}", ran.err);
    let lines = ran.err.lines().flat_map(|line| line.split(": "));
    let mut said: Vec<&str> = lines.map(str::trim).filter(|part| part.contains(' ')).collect();
    let count = said.len();
    said.sort_unstable();
    said.dedup();
    assert_eq!(said.len(), count, "{words:?} is reported twice: {}", ran.err);
}
