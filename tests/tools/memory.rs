//! Little memory: a container with 128 MiB in all, and a page cache that others use.

use std::path::{Path, PathBuf};

use black_box::peer::qemu_img;
use black_box::{Moto, Run, Scratch, program};

/// All that the container may have, what it keeps of files included.
const CONTAINER: u64 = 128 << 20;
/// What a tool may have of its own and of its program, in bytes.
const RESIDENT_MAX: u64 = 112 << 20;
/// Bytes of data of the large image.
const DATA: u64 = 192 << 20;

/// A control group with a limit, gone with it.
struct Container(PathBuf);

impl Container {
    /// Its name ends with `label`. `None` where none can be made.
    fn new(label: &str) -> Option<Self> {
        let name = format!("cowhand-test-{}-{label}", std::process::id());
        for (root, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let place = Path::new(root).join(&name);
            if Path::new(root).join("cgroup.procs").exists() && std::fs::create_dir(&place).is_ok() {
                let container = Self(place);
                if std::fs::write(container.0.join(file), CONTAINER.to_string()).is_ok() {
                    return Some(container);
                }
            }
        }
        None
    }

    fn run(&self, words: &[&str], directory: &Path) -> Run {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        Run::new("sh").args(["-c", &script, "sh"]).arg(program::path()).args(words).current_dir(directory)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", self.0.display());
    }
}

/// Where no container can be made, no process may ask for more of its own.
fn limited(words: &[&str], directory: &Path) -> Run {
    let limit = format!("--data={CONTAINER}");
    Run::new("prlimit").args([&limit, "--"]).arg(program::path()).args(words).current_dir(directory)
}

fn in_little_memory(container: Option<&Container>, words: &[&str], scratch: &Scratch) -> Run {
    match container {
        Some(container) => container.run(words, scratch.path()),
        None => limited(words, scratch.path()),
    }
}

/// Every second 512 KiB has data.
fn large(scratch: &Scratch) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(scratch.file("large.raw")).expect("a file");
    file.set_len(2 * DATA).expect("a length");
    let mut piece = vec![0_u8; 512 << 10];
    for at in 0..DATA / piece.len() as u64 {
        for (place, byte) in piece.iter_mut().enumerate() {
            *byte = ((place as u64 * 31 + at * 7) >> 3) as u8 | 1;
        }
        file.write_all_at(&piece, at * 2 * piece.len() as u64).expect("room");
    }
    file.sync_all().expect("a medium");
}

#[test]
fn a_large_image_is_worked_on_in_128_mib() {
    let scratch = Scratch::new();
    large(&scratch);
    let container = Container::new("tools");
    if container.is_none() {
        eprintln!("no control group can be made here: the limit is that of the process");
    }
    let work = |words: &[&str]| {
        let outcome = in_little_memory(container.as_ref(), words, &scratch).outcome();
        assert!(outcome.status.success(), "{outcome}");
        assert!(outcome.peak_rss_bytes < RESIDENT_MAX, "{outcome}");
        println!("{:?}: {} MiB", words, outcome.peak_rss_bytes >> 20);
    };
    work(&["convert", "-O", "qcow2", "large.raw", "large.qcow2"]);
    work(&["convert", "-O", "raw", "large.qcow2", "back.raw"]);
    work(&["compare", "large.qcow2", "back.raw"]);
    std::fs::remove_file(scratch.file("back.raw")).expect("our file");
    work(&["check", "large.qcow2"]);
    work(&["map", "large.qcow2"]);
    work(&["measure", "-O", "qcow2", "large.qcow2"]);
    work(&["create", "-q", "-b", "large.qcow2", "-F", "qcow2", "top.qcow2"]);
    work(&["flatten", "-q", "top.qcow2"]);
    work(&["compare", "large.qcow2", "top.qcow2"]);
}

/// Parts of an object are kept until the store has them.
#[test]
fn a_large_image_is_uploaded_in_128_mib() {
    let (scratch, store) = (Scratch::new(), Moto::start());
    large(&scratch);
    store.put("/images", b"");
    let container = Container::new("upload");
    for options in [&["-O", "raw"][..], &["-O", "qcow2"], &["-O", "qcow2", "-c"]] {
        let words = [&["convert", "--force", "large.raw", "s3://images/large"][..], options].concat();
        let run = in_little_memory(container.as_ref(), &words, &scratch);
        let run = run.env("AWS_ACCESS_KEY_ID", "A").env("AWS_SECRET_ACCESS_KEY", "B");
        let outcome = run.env("AWS_ENDPOINT_URL", store.endpoint()).outcome();
        assert!(outcome.status.success() && outcome.peak_rss_bytes < RESIDENT_MAX, "{outcome}");
        println!("{words:?}: {} MiB", outcome.peak_rss_bytes >> 20);
    }
    assert_eq!((store.keys("images"), store.pending("images")), (vec!["large".to_owned()], vec![]));
}

/// A copy is synced in pieces, and only the sync that is first after it gets an error.
#[test]
fn a_medium_that_refuses_a_piece_of_a_copy_ends_it() {
    let scratch = Scratch::new();
    large(&scratch);
    let trace = scratch.name("strace.log");
    let refused = Run::new("strace")
        .args(["-f", "-o", &trace, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=2"])
        .arg(program::path())
        .args(["convert", "-O", "qcow2", "large.raw", "large.qcow2"])
        .current_dir(scratch.path());
    let said = refused.fails();
    assert!(said.contains("Input/output error"), "{said}");
    assert!(!scratch.file("large.qcow2").exists(), "half a copy is left");
}

/// The copy ends while its last piece is on its way, and is none before that is there.
#[test]
fn a_medium_that_refuses_the_last_piece_late_ends_the_copy_too() {
    let scratch = Scratch::new();
    let data: Vec<u8> = (0..20_u32 << 20).map(|at| (at >> 3) as u8 | 1).collect();
    std::fs::write(scratch.file("small.raw"), data).expect("room");
    let trace = scratch.name("strace.log");
    let late = "inject=fdatasync:error=EIO:delay_enter=700000:when=1";
    let refused = Run::new("strace")
        .args(["-f", "-o", &trace, "-e", "trace=fdatasync", "-e", late])
        .arg(program::path())
        .args(["convert", "-O", "qcow2", "small.raw", "small.qcow2"])
        .current_dir(scratch.path());
    let said = refused.fails();
    assert!(said.contains("Input/output error"), "{said}");
    assert!(!scratch.file("small.qcow2").exists(), "a copy of which nothing is known is left");
}

/// Calls of fsync and fdatasync of a command.
fn syncs(scratch: &Scratch, program: &Path, words: &[&str]) -> usize {
    let trace = scratch.name("strace.log");
    let traced = Run::new("strace").args(["-f", "-o", &trace, "-e", "trace=fsync,fdatasync"]).arg(program);
    traced.args(words).current_dir(scratch.path()).ok();
    let calls = std::fs::read_to_string(&trace).expect("a trace");
    calls.lines().filter(|line| line.contains("sync(") && !line.contains("resumed")).count()
}

/// qemu-img flushes nothing unless it is asked to; its callers count on the time that this takes.
#[test]
fn under_qemu_imgs_name_a_copy_is_flushed_when_it_is_asked_for() {
    let scratch = Scratch::new();
    large(&scratch);
    Run::new(program::path()).args(["compat", "install", &scratch.name("bin")]).ok();
    let qemu_img = scratch.file("bin/qemu-img");
    let made = syncs(&scratch, &qemu_img, &["create", "-f", "qcow2", "empty.qcow2", "384M"]);
    let copy = ["convert", "-f", "raw", "-O", "qcow2", "large.raw", "new.qcow2"];
    let by_default = syncs(&scratch, &qemu_img, &copy);
    let asked_for = syncs(&scratch, &qemu_img, &[&copy[..1], &["-t", "writeback"], &copy[1..]].concat());
    let own = syncs(&scratch, program::path(), &copy);
    println!("syncs: create {made}, convert {by_default}, with -t writeback {asked_for}, own name {own}");
    assert!(by_default <= made, "{by_default} syncs, {made} of them when the image is made");
    assert!(asked_for > by_default && own > by_default, "{asked_for} and {own} syncs");
}

/// Bytes of a file in the page cache.
fn cached(path: &Path) -> u64 {
    let reported = Run::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(path).ok();
    reported.trim().parse().expect("a number")
}

/// A nightly copy threw out of memory what the machine's guests used.
#[test]
fn a_copy_leaves_little_of_itself_in_the_page_cache() {
    let scratch = Scratch::new();
    large(&scratch);
    let source = scratch.file("large.raw");
    // On a file system in memory the pages are the file.
    if Run::new("stat").args(["-f", "-c", "%T"]).arg(scratch.path()).ok().trim() == "tmpfs" {
        return eprintln!("not tried: scratch files are in memory");
    }
    qemu_img(["convert", "-f", "raw", "-O", "qcow2"]).arg(&source).arg(scratch.file("large.qcow2")).ok();
    for (from, to, format) in [("large.raw", "new.qcow2", "qcow2"), ("large.qcow2", "new.raw", "raw")] {
        let from = scratch.file(from);
        let file = std::fs::File::open(&from).expect("the source");
        file.sync_all().expect("a medium");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        assert!(cached(&from) < DATA / 16, "the test's own pages stay");
        super::cowhand(&["convert", "-O", format, from.to_str().expect("text"), to], scratch.path());
        let left = [cached(&from), cached(&scratch.file(to))];
        println!("{} to {to}: {left:?} bytes left", from.display());
        assert!(left.into_iter().all(|bytes| bytes < DATA / 8), "{left:?} of {DATA} bytes are cached");
        // What was there for others stays.
        drop(std::fs::read(&from).expect("the source"));
        let before = cached(&from);
        super::cowhand(&["convert", "-O", format, from.to_str().expect("text"), to], scratch.path());
        assert!(cached(&from) > before / 2, "{before} bytes were cached before, {} after", cached(&from));
    }
}
