//! A lock that is awaited: its holder cannot be seen, and goes on changing the file until it lets go.
//!
//! The length of a file used to be taken when the file was opened, before its lock was had. QEMU wrote 32 MiB
//! meanwhile and quit: its tables were then "past the end of the file", the image was marked corrupt, growing the file
//! from the old length cut off what QEMU had flushed, and `check -r all` cleared COPIED flags of a good image.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use black_box::holder::{Mode, Program};
use black_box::peer::{assert_clean, converted, qemu_img, qemu_io_ok};
use black_box::run::Run;
use black_box::server::{NotStarted, Start};
use black_box::{Holder, Scratch, Server, cowhand, program};

const MIB: u64 = 1 << 20;

/// The lock is awaited for 2 s. A machine so busy that its holder takes longer is given another chance.
const ATTEMPTS: usize = 5;

/// How long a process may take to come to the lock.
const PATIENCE: Duration = Duration::from_secs(20);

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are text")
}

fn image(scratch: &Scratch) -> PathBuf {
    let path = scratch.file("disk.qcow2");
    let _ = std::fs::remove_file(&path);
    qemu_img(["create", "-q", "-f", "qcow2"]).arg(&path).arg("96M").ok();
    path
}

/// Whether the process has the file open for more than knowing where it is, and has slept since: at the lock.
fn waits_for_lock(pid: u32, file: &Path, slept: &mut Option<u64>) -> bool {
    const O_PATH: u32 = 0o10_000_000;
    let number = |text: &str, name: &str| {
        let found =
            text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        found.unwrap_or_default()
    };
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let opened = descriptors.flatten().any(|entry| {
        let info = format!("/proc/{pid}/fdinfo/{}", entry.file_name().display());
        let flags = number(&std::fs::read_to_string(info).unwrap_or_default(), "flags:");
        let flags = u32::from_str_radix(&flags, 8).unwrap_or(O_PATH);
        std::fs::read_link(entry.path()).is_ok_and(|target| target == file) && flags & O_PATH == 0
    });
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let switches = number(&status, "voluntary_ctxt_switches:").parse().unwrap_or(0);
    opened && switches > *slept.get_or_insert(switches) + 1
}

/// A server that sees no other process is started while `holder` has the file, and is at its lock when the holder
/// does `commands` and ends. None if the holder took longer than the lock is awaited.
fn started_behind(holder: Holder, commands: &[&str], args: &[&str], file: &Path) -> Option<Server> {
    let mut server = Start::new(args).unseeing().spawn();
    let mut slept = None;
    let waits = server.wait_until(|server| waits_for_lock(server.pid(), file, &mut slept).then_some(()));
    if waits.is_some() {
        holder.finish(commands);
    }
    match server.listening() {
        Ok(server) => Some(server),
        Err(NotStarted(outcome)) => {
            assert!(outcome.stderr.contains("in use"), "{outcome}");
            None
        }
    }
}

/// Does it again with everything made anew where the machine was too slow.
fn patiently<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    (0..ATTEMPTS).find_map(|_| attempt()).expect("the holder lets go within 2 s")
}

#[test]
fn what_the_holder_wrote_while_its_lock_was_awaited_is_all_there() {
    let scratch = Scratch::new();
    for options in ["", ",cache=none", ",file.aio=threads"] {
        let path = scratch.file("disk.qcow2");
        let drive = format!("file={}{options}", text(&path));
        let server = patiently(|| {
            image(&scratch);
            let holder = Holder::new(Program::Io, &path, Mode::Write);
            started_behind(holder, &["write -P 0x5a 0 32M", "flush"], &[&drive], &path)
        });
        let mut client = server.client("");
        client.write(64 * MIB, &[0x77; 65536]).expect("the image takes a write");
        client.flush().expect("a flush");
        server.stop();
        assert_clean(&path);
        let bytes = converted(text(&path), "qcow2", &[], &scratch.file("converted"));
        for (at, &byte) in bytes.iter().enumerate() {
            let expected = match at as u64 {
                0..0x200_0000 => 0x5a,
                0x400_0000..0x401_0000 => 0x77,
                _ => 0,
            };
            assert_eq!(byte, expected, "at {at:#x}, with {options:?}");
        }
    }
}

#[test]
fn a_raw_disk_is_as_long_as_the_holder_made_it() {
    let scratch = Scratch::new();
    let path = scratch.file("disk.raw");
    let drive = format!("file={},format=raw", text(&path));
    let server = patiently(|| {
        std::fs::write(&path, [1; 1 << 20]).expect("space");
        let holder = Holder::of_raw(&path);
        started_behind(holder, &["truncate 40M", "write -P 0x5a 8M 32M"], &[&drive], &path)
    });
    let mut client = server.client("");
    assert_eq!(client.size(), 40 * MIB);
    client.write(39 * MIB, &[0x77; 65536]).expect("a write");
    client.flush().expect("a flush");
    server.stop();
    let read = ["read -P 1 0 1M", "read -P 0 1M 7M", "read -P 0x5a 8M 31M", "read -P 0x77 39M 64k"];
    qemu_io_ok(&["-f", "raw", "-r"], text(&path), &read);
    assert_eq!(std::fs::metadata(&path).expect("the file").len(), 40 * MIB);
}

#[test]
fn check_finds_nothing_wrong_with_an_image_that_grew_while_its_lock_was_awaited() {
    let scratch = Scratch::new();
    let path = scratch.file("disk.qcow2");
    for repair in [&[][..], &["-r", "leaks"], &["-r", "all"]] {
        let said = patiently(|| {
            image(&scratch);
            let holder = Holder::new(Program::Io, &path, Mode::Write);
            let mut args = vec!["check"];
            args.extend(repair);
            args.push(text(&path));
            let run = Run::new(program::path()).args(args).unseeing();
            let checked = run_behind(holder, &["write -P 0x5a 0 32M", "flush"], run, &path);
            (!checked.contains("in use")).then_some(checked)
        });
        assert!(said.contains("is sound"), "{said}");
        assert_clean(&path);
        qemu_io_ok(&["-f", "qcow2", "-r"], text(&path), &["read -P 0x5a 0 32M", "read -P 0 32M 64M"]);
    }
}

/// Runs a tool that comes to the lock of `file` while `holder` has it; gives what it said.
fn run_behind(holder: Holder, commands: &[&str], run: Run, file: &Path) -> String {
    std::thread::scope(|scope| {
        let (tell, reported) = std::sync::mpsc::channel();
        let running =
            scope.spawn(move || run.outcome_telling(|pid| tell.send(pid).expect("somebody listens")));
        let outer = reported.recv().expect("it runs");
        let start = Instant::now();
        let mut slept = None;
        let inner = || {
            let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
            children.ok()?.split_whitespace().next()?.parse().ok()
        };
        while !running.is_finished() && !inner().is_some_and(|pid| waits_for_lock(pid, file, &mut slept)) {
            assert!(start.elapsed() < PATIENCE, "it does not come to the lock");
            std::thread::yield_now();
        }
        holder.finish(commands);
        let outcome = running.join().expect("it is watched");
        format!("{}{}", outcome.stdout, outcome.stderr)
    })
}

/// `qemu-img convert` into a new file, renamed over the old one, while we waited for the old one's lock: the file that
/// we had open had no name any more, and what was written to it was gone with the last descriptor.
#[test]
fn a_file_that_was_replaced_while_its_lock_was_awaited_is_not_served() {
    let scratch = Scratch::new();
    let path = scratch.file("disk.qcow2");
    let new = scratch.file("new.qcow2");
    let refused = patiently(|| {
        image(&scratch);
        std::fs::copy(&path, &new).expect("space");
        let holder = Holder::new(Program::Io, &path, Mode::Write);
        let mut server = Start::new([text(&path)]).unseeing().spawn();
        let mut slept = None;
        server.wait_until(|server| waits_for_lock(server.pid(), &path, &mut slept).then_some(()))?;
        std::fs::rename(&new, &path).expect("a rename");
        holder.finish(&[]);
        let said = match server.listening() {
            Ok(_) => panic!("it serves a file without a name"),
            Err(NotStarted(outcome)) => outcome.stderr,
        };
        (!said.contains("in use")).then_some(said)
    });
    assert!(refused.contains("another file took its place"), "{refused}");
    Server::start([text(&path)]).stop();
}

/// Which openers there are may change; that each of them locks first may not.
#[test]
fn every_command_takes_the_length_of_an_image_after_its_lock() {
    let scratch = Scratch::new();
    let path = image(&scratch);
    let raw = scratch.file("disk.raw");
    std::fs::write(&raw, [1; 1 << 20]).expect("space");
    let (image, raw) = (text(&path), text(&raw));
    let commands: [(&[&str], &str); 9] = [
        (&["info", image], image),
        (&["map", image], image),
        (&["check", image], image),
        (&["check", "-r", "all", image], image),
        (&["snapshot", "-c", "one", image], image),
        (&["resize", image, "97M"], image),
        (&["info", raw], raw),
        (&["resize", "-f", "raw", raw, "2M"], raw),
        (&["create", "-f", "qcow2", image, "1M"], image),
    ];
    for (args, file) in commands {
        let log = scratch.file("strace");
        let traced = "trace=fstat,newfstatat,statx,lseek,read,pread64,preadv,preadv2,fcntl";
        Run::new("strace")
            .args(["-f", "-y", "-e", traced, "-o"])
            .arg(&log)
            .arg(program::path())
            .args(args)
            .ok();
        let log = std::fs::read_to_string(&log).expect("what strace wrote");
        let of_file = format!("<{file}>");
        let calls: Vec<&str> = log.lines().filter(|line| line.contains(&of_file)).collect();
        let locked = calls.iter().rposition(|call| call.contains("F_OFD_GETLK"));
        let locked = locked.unwrap_or_else(|| panic!("{args:?} takes no lock:\n{log}"));
        let reads = ["read(", "pread64(", "preadv(", "preadv2(", "lseek("];
        let early = calls[..locked].iter().find(|call| reads.iter().any(|read| call.contains(read)));
        assert!(early.is_none(), "{args:?} reads before it has the lock: {early:?}");
        let measures = calls[locked..].iter().any(|call| call.contains("stat"));
        assert!(measures, "{args:?} does not ask for the length under the lock:\n{}", calls.join("\n"));
    }
    cowhand(["info", image]).ok();
}
