//! What the library does in a monitor's process is what docs/reference/embedding.md says: system calls, files, threads, memory; no signal handler and no
//! environment variable is touched.
//!
//! A program of its own, because a test harness has threads and handlers itself: `footprint work KIND AIO IMAGE` is what is measured, under `strace`, under
//! seccomp filters made of the page, or by itself.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use cowhand::{Buffer, Disk, Error, NewImage, OpenOptions, Request, ResizeOptions, ZeroOptions, create};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/embedding.md");
const SIZE_BYTES: u64 = 1 << 30;

/// A path that is asked for when a phase begins, to be seen in a trace.
const MARK: &str = "/cowhand-phase/";

/// The phases of a disk's life, as the columns of the page have them.
const PHASES: [&str; 4] = ["open", "use", "close", CHECKPOINTS];

/// The one that only a build with that feature has, between use and close.
const CHECKPOINTS: &str = "checkpoints";

/// The phases after a disk is open.
fn phases_of_open_disk() -> Vec<&'static str> {
    let later = PHASES.into_iter().skip(1);
    later.filter(|phase| *phase != CHECKPOINTS || cfg!(feature = "checkpoints")).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["work", kind, aio, image] => match work(kind, aio, Path::new(image)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{kind} {aio}: {error}");
                ExitCode::FAILURE
            }
        },
        [] => check(),
        // A harness that lists tests, or runs others by their names.
        words if words.iter().all(|word| word.starts_with("--test-threads") || *word == "--nocapture") => {
            check()
        }
        _ => ExitCode::SUCCESS,
    }
}

// ---- what is measured

/// Uses a disk in all the ways that a monitor does.
fn work(kind: &str, aio: &str, image: &Path) -> Result<(), Error> {
    let page = (kind == "filter-all" || kind == "filter-use").then(Page::read);
    let before = (kind == "measure").then(Process::now);
    if kind == "filter-all" {
        page.as_ref().unwrap().confine(&[vec![PHASES[0]], phases_of_open_disk()].concat());
    }
    mark(kind, "open");
    let options = OpenOptions::new(image).discard(true);
    let options = if aio == "threads" { options.set("aio", "threads") } else { options };
    let disk = options.open().wait()?;
    if kind == "filter-use" {
        page.as_ref().unwrap().confine(&phases_of_open_disk());
    }
    mark(kind, "use");
    use_disk(&disk)?;
    #[cfg(feature = "checkpoints")]
    {
        mark(kind, CHECKPOINTS);
        use_checkpoints(&disk, image)?;
    }
    let during = (kind == "measure").then(Process::now);
    mark(kind, "close");
    disk.close().wait()?;
    drop(disk);
    mark(kind, "end");
    if let (Some(before), Some(during)) = (before, during) {
        print(&before, &during);
    }
    Ok(())
}

fn use_disk(disk: &Disk) -> Result<(), Error> {
    let mut queue = disk.queue(64)?;
    for round in 0..8 {
        for number in 0..64 {
            let offset = (round * 64 + number) * (1 << 20);
            let buffer = Buffer::copy_from(&[number as u8; 4096]);
            queue.submit(Request::Write { offset, buffer, fua: number == 0 }, number)?;
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.completions(&mut done, 1, None)?;
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()));
    }
    drop(queue);
    disk.flush().wait()?;
    disk.create_snapshot("one").wait()?;
    disk.write(0, vec![9; 1 << 20]).wait()?;
    disk.write_zeroes(1 << 20, 1 << 20, ZeroOptions::default()).wait()?;
    disk.discard(2 << 20, 1 << 20).wait()?;
    disk.read(0, vec![0; 4 << 20]).wait()?;
    disk.extents(0, SIZE_BYTES).wait()?;
    disk.set_limits(&[("iops-total", 100_000)])?;
    disk.resize(2 * SIZE_BYTES, ResizeOptions::default()).wait()?;
    disk.apply_snapshot("one").wait()?;
    disk.delete_snapshot("one").wait()?;
    disk.flush().wait()
}

/// Takes, lists, compares, forks, leaves, merges and deletes checkpoints.
#[cfg(feature = "checkpoints")]
fn use_checkpoints(disk: &Disk, image: &Path) -> Result<(), Error> {
    use cowhand::{Collect, Forget, NewCheckpoint, Removal};

    for number in 0..4u8 {
        disk.write(0, vec![number; 1 << 20]).wait()?;
        disk.checkpoint(NewCheckpoint::named(format!("c{number}"))).wait()?;
    }
    disk.fork("c1", image.with_file_name("footprint-disk-fork.qcow2"), Some(2)).wait()?;
    disk.rollback("c1").wait()?;
    assert_eq!(disk.checkpoints().wait()?.len(), 5);
    disk.differences("c0", None, 0).wait()?;
    disk.delete_checkpoints(["c0"], Removal::Remove).wait()?;
    disk.collect_layers(Collect { unnamed: true, ..Collect::default() }).wait()?;
    let merging = disk.forget(Forget::default()).wait()?.job;
    merging.unwrap().ended().wait()?;
    disk.flush().wait()
}

/// Shows in a trace that a phase begins. Not under a filter, which the page alone decides.
fn mark(kind: &str, phase: &str) {
    if kind == "trace" {
        assert!(std::fs::metadata(format!("{MARK}{phase}")).is_err());
    }
}

/// What this process has.
struct Process {
    threads: Vec<String>,
    resident_kib: u64,
    /// Signals that are blocked, ignored and caught.
    signals: Vec<String>,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    files: usize,
}

impl Process {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let begins = |line: &&str, words: &[&str]| words.iter().any(|word| line.starts_with(word));
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        // A thread may end while one looks.
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.join("comm")).ok());
        // The kernel adds the number of the thread that such a one works for.
        let name = |name: String| match name.starts_with("iou-wrk-") {
            true => "iou-wrk".to_owned(),
            false => name.trim().to_owned(),
        };
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Self {
            threads: names.map(name).collect(),
            resident_kib: resident.trim().trim_end_matches(" kB").parse().unwrap(),
            signals: status
                .lines()
                .filter(|line| begins(line, &["SigBlk", "SigIgn", "SigCgt"]))
                .map(own_signals)
                .collect(),
            environment: std::env::vars_os().collect(),
            files: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        }
    }
}

/// A line of /proc/self/status about signals, without those that the C library keeps for itself: 32 and 33.
fn own_signals(line: &str) -> String {
    let (name, mask) = line.split_once(":\t").unwrap();
    format!("{name} {:x}", u64::from_str_radix(mask, 16).unwrap() & !(0b11 << 31))
}

fn print(before: &Process, during: &Process) {
    // The loop ends when no handle is left: behind the drop of the last one, on its own thread. A thread that made a blocking call for it may hold the loop's
    // eventfd a moment longer.
    let began = Instant::now();
    let after = loop {
        let now = Process::now();
        let ends = now.threads.iter().any(|name| name == "cowhand-disk") || now.files > before.files;
        match ends && began.elapsed() < Duration::from_secs(20) {
            true => std::thread::yield_now(),
            false => break now,
        }
    };
    assert_eq!(before.signals, during.signals, "signals");
    assert_eq!(before.signals, after.signals, "signals");
    assert_eq!(before.environment, during.environment, "environment");
    let added = |now: &Process| {
        now.threads
            .iter()
            .filter(|name| !before.threads.contains(name))
            .cloned()
            .collect::<Vec<_>>()
            .join(",")
    };
    println!("threads {}", added(during));
    println!("resident_kib {}", during.resident_kib.saturating_sub(before.resident_kib));
    println!(
        "files {} {}",
        during.files.saturating_sub(before.files),
        after.files.saturating_sub(before.files)
    );
}

// ---- the page

/// What the page says.
struct Page {
    /// Each system call with the phases in which it is made.
    calls: BTreeMap<String, BTreeSet<&'static str>>,
    /// Names of threads.
    threads: BTreeSet<String>,
    /// Files beside those of the disk.
    files: BTreeSet<String>,
    /// KiB that an open disk takes at most, as it is used here.
    resident_kib: u64,
}

impl Page {
    fn read() -> Self {
        let text = std::fs::read_to_string(PAGE).unwrap();
        let mut section = "";
        let (mut calls, mut threads, mut files) =
            <(BTreeMap<_, BTreeSet<_>>, BTreeSet<_>, BTreeSet<_>)>::default();
        let mut resident_kib = 0;
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                section = heading;
            }
            let Some(row) = line.strip_prefix("| `") else { continue };
            let (name, cells) = row.split_once('`').unwrap();
            let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
            match section {
                "System calls" => {
                    let phases = PHASES.into_iter().zip(&cells[1..]).filter(|(_, cell)| **cell == "yes");
                    calls.insert(name.to_owned(), phases.map(|(phase, _)| phase).collect());
                }
                "Threads" => drop(threads.insert(name.to_owned())),
                "Files" => drop(files.insert(name.to_owned())),
                "Memory" if name == "disk" => {
                    resident_kib = cells[1].split(' ').next().unwrap().parse().unwrap()
                }
                _ => {}
            }
        }
        Self { calls, threads, files, resident_kib }
    }

    /// From now on this process makes the calls of these phases, and any other kills it.
    fn confine(&self, phases: &[&str]) {
        let listed = self.calls.iter().filter(|(_, found)| phases.iter().any(|phase| found.contains(phase)));
        let numbers = numbers();
        let rules = listed.map(|(name, _)| (numbers[name.as_str()], Vec::new())).chain([
            // The program's own end.
            (numbers["exit_group"], Vec::new()),
        ]);
        let architecture = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let (otherwise, listed) = (SeccompAction::KillProcess, SeccompAction::Allow);
        let filter = SeccompFilter::new(rules.collect(), otherwise, listed, architecture).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter_all_threads(&program).unwrap();
    }
}

/// Numbers of the calls that a disk may need, on this processor.
fn numbers() -> BTreeMap<&'static str, i64> {
    macro_rules! numbers {
        ($($name:ident)*) => {
            BTreeMap::from([$((&stringify!($name)[4..], libc::$name)),*])
        };
    }
    numbers! {
        SYS_brk SYS_chmod SYS_clock_gettime SYS_clock_nanosleep SYS_clone SYS_clone3 SYS_close SYS_copy_file_range SYS_epoll_create1 SYS_epoll_ctl
        SYS_epoll_pwait SYS_epoll_wait SYS_eventfd2 SYS_exit SYS_exit_group SYS_fadvise64 SYS_fallocate SYS_fchmod SYS_fchmodat SYS_fchown SYS_fcntl SYS_fdatasync SYS_flock SYS_fstat SYS_fstatfs
        SYS_fsync SYS_ftruncate SYS_futex SYS_get_mempolicy SYS_getcwd SYS_getdents64 SYS_geteuid SYS_getpid SYS_getrandom SYS_gettid SYS_io_uring_enter
        SYS_io_uring_register SYS_io_uring_setup SYS_ioctl SYS_kill SYS_link SYS_linkat SYS_lseek SYS_lstat SYS_madvise SYS_mkdir SYS_mkdirat SYS_mlock SYS_mmap SYS_mprotect SYS_mremap
        SYS_munlock SYS_munmap SYS_newfstatat SYS_open SYS_openat SYS_poll SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2 SYS_prlimit64
        SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readlink SYS_readlinkat SYS_readv SYS_rename SYS_renameat SYS_renameat2 SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask
        SYS_rt_sigreturn SYS_sched_getaffinity SYS_sched_yield SYS_set_robust_list SYS_sigaltstack SYS_stat SYS_statfs SYS_statx SYS_symlink SYS_symlinkat SYS_sync_file_range
        SYS_sysinfo SYS_timerfd_create SYS_timerfd_settime SYS_uname SYS_unlink SYS_unlinkat SYS_write SYS_writev
    }
}

// ---- the comparison

fn check() -> ExitCode {
    let (page, mut wrong) = (Page::read(), Vec::new());
    let mut seen: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
    for aio in ["io_uring", "threads"] {
        let mut complain = |what: String| wrong.push(format!("aio={aio}: {what}"));
        for kind in ["filter-all", "filter-use"] {
            if let Err(error) = run(kind, aio, |command| command) {
                complain(format!("{kind}: {error}: a call of that phase is not in the table of {PAGE}"));
            }
        }
        match run("measure", aio, |command| command) {
            Ok(measured) => measured_is_so(&page, &measured).into_iter().for_each(&mut complain),
            Err(error) => complain(format!("measure: {error}")),
        }
        match traced(aio) {
            Ok(Some(trace)) => {
                let is_known = |file: &&String| {
                    file.contains("footprint-disk")
                        || page.files.iter().any(|known| file.starts_with(known.as_str()))
                };
                let files = trace.files.iter().filter(|file| !is_known(file));
                files.for_each(|file| complain(format!("it opens {file}, which the page does not name")));
                for (call, phases) in trace.calls {
                    seen.entry(call).or_default().extend(phases);
                }
            }
            Ok(None) => println!("strace is not installed: calls are held against the filters alone"),
            Err(error) => complain(error),
        }
    }
    for (call, phases) in &seen {
        let listed = page.calls.get(call);
        let missing = phases.iter().filter(|phase| listed.is_none_or(|listed| !listed.contains(*phase)));
        wrong.extend(
            missing.map(|phase| format!("{call} is made in phase {phase}, and the page does not say so")),
        );
    }
    wrong.iter().for_each(|wrong| eprintln!("{wrong}"));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measured_is_so(page: &Page, measured: &str) -> Vec<String> {
    print!("{measured}");
    let mut wrong = Vec::new();
    for line in measured.lines() {
        let (name, values) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            "threads" => {
                let unknown =
                    values.split(',').filter(|name| !name.is_empty() && !page.threads.contains(*name));
                wrong.extend(
                    unknown.map(|name| format!("there is a thread {name}, which the page does not name")),
                );
            }
            "resident_kib" if values.parse::<u64>().unwrap() > page.resident_kib => {
                wrong.push(format!("{values} KiB are resident; the page says {}", page.resident_kib));
            }
            "files" if !values.ends_with(" 0") => wrong.push(format!("files stay open: {values}")),
            _ => {}
        }
    }
    wrong
}

/// What a trace shows.
struct Trace {
    calls: BTreeMap<String, BTreeSet<&'static str>>,
    files: BTreeSet<String>,
}

fn traced(aio: &str) -> Result<Option<Trace>, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let strace = |command: Command| {
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-qq", "-s", "256", "-o"])
            .arg(&file)
            .arg(command.get_program())
            .args(command.get_args());
        strace
    };
    if Command::new("strace").arg("-V").output().is_err() {
        return Ok(None);
    }
    run("trace", aio, strace)?;
    let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
    let (mut phase, mut trace) = (None, Trace { calls: BTreeMap::new(), files: BTreeSet::new() });
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once(MARK) {
            phase = PHASES.into_iter().find(|phase| rest.starts_with(phase));
            continue;
        }
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        let Some((name, arguments)) = call.split_once('(') else { continue };
        let Some(phase) =
            phase.filter(|_| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        else {
            continue;
        };
        trace.calls.entry(name.to_owned()).or_default().insert(phase);
        if name == "openat" || name == "open" {
            trace.files.extend(arguments.split('"').nth(1).map(str::to_owned));
        }
    }
    match trace.calls.is_empty() {
        true => Err("the trace shows no phase".to_owned()),
        false => Ok(Some(trace)),
    }
}

/// Runs this program on a new image; gives what it prints.
fn run(kind: &str, aio: &str, by: impl FnOnce(Command) -> Command) -> Result<String, String> {
    let directory = tempfile::Builder::new().prefix("footprint-disk").tempdir().unwrap();
    let image = directory.path().join("footprint-disk.qcow2");
    create(&image, NewImage::qcow2(SIZE_BYTES)).wait().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["work", kind, aio]).arg(&image);
    let ended = by(command).output().map_err(|error| error.to_string())?;
    match ended.status.success() {
        true => Ok(String::from_utf8_lossy(&ended.stdout).into_owned()),
        false => Err(format!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim())),
    }
}
