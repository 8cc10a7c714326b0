//! A person asks how far a tool is (SIGUSR1), and ends it (Ctrl-C).

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use black_box::{Scratch, program};
use rustix::process::{Pid, Signal, kill_process};

use super::{Images, TOOLS, Tool};

const PATIENCE: Duration = Duration::from_secs(30);

/// A tool whose every I/O takes a while, or waits until it is let go.
struct Slow {
    child: Child,
    scratch: Scratch,
}

/// What each I/O takes, in microseconds: a while, and for as long as a test may take.
const A_WHILE: u32 = 15_000;
const HELD: u32 = 600_000_000;

/// The number of the system call, the same on all architectures.
const IO_URING_ENTER: &str = "426";

impl Slow {
    fn start(images: &Images, tool: Tool, each_us: u32) -> Self {
        let scratch = Scratch::new();
        images.copy_into(scratch.path());
        let stderr = std::fs::File::create(scratch.file("stderr")).expect("a file");
        // With -D the process that is started is cowhand, and strace looks on.
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-o", &scratch.name("strace.log"), "-e", "trace=io_uring_enter"]);
        command
            .args(["-e", &format!("inject=io_uring_enter:delay_enter={each_us}")])
            .arg(program::path())
            .args(tool.words);
        command.current_dir(scratch.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Self { child: command.spawn().expect("strace"), scratch }
    }

    /// Ends strace: from here on its I/O takes no time.
    fn let_go(&self) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        let tracer = tracer.and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?)).expect("strace looks on");
        kill_process(tracer, Signal::KILL).expect("strace runs");
    }

    /// How many I/Os it has begun.
    fn calls(&self) -> usize {
        let log = std::fs::read_to_string(self.scratch.file("strace.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains("io_uring_enter(")).count()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a number")).expect("a number")
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.scratch.file("stderr")).unwrap_or_default()
    }

    /// Looks until `found`; `false` if the tool ends before.
    fn wait_until(&mut self, found: impl Fn(&Self) -> bool) -> bool {
        let begun = Instant::now();
        loop {
            if found(self) {
                return true;
            }
            if self.child.try_wait().expect("a child").is_some() {
                return found(self);
            }
            assert!(begun.elapsed() < PATIENCE, "nothing happens: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether it catches SIGUSR1, by the kernel's word.
    fn catches(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask & (1 << (Signal::USR1.as_raw() - 1)) != 0
    }

    /// Whether its first I/O is held. The handler is registered by then: the kernel says so an instant before a signal is counted.
    fn is_held(&self) -> bool {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.child.id())).unwrap_or_default();
        call.split(' ').next() == Some(IO_URING_ENTER)
    }

    fn send(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process(self.pid(), signal);
    }
}

/// On a quick machine `compact` had ended before it was asked, or before it looked again. So its first I/O is held until the signal has been sent,
/// and what is asked is answered at the end at the latest.
#[test]
fn sigusr1_ends_no_tool_and_those_that_copy_say_how_far_they_are() {
    let images = Images::new();
    for tool in TOOLS {
        let mut slow = Slow::start(&images, tool, HELD);
        assert!(slow.wait_until(Slow::is_held), "{tool:?} never begins: {}", slow.stderr());
        assert!(slow.catches(), "{tool:?} does not catch the signal: {}", slow.stderr());
        slow.send(Signal::USR1);
        slow.let_go();
        let status = slow.child.wait().expect("an end");
        let said = slow.stderr();
        assert!(status.success(), "{tool:?}: {status}: {said}");
        let copies = ["convert", "commit", "rebase", "flatten", "compact"].contains(&tool.name);
        assert!(!copies || said.contains('%'), "{tool:?} does not say how far it is: {said}");
        images.assert_whole(slow.scratch.path(), tool.name);
    }
}

#[test]
fn ctrl_c_leaves_the_disk_whole_and_the_next_run_finishes() {
    let images = Images::new();
    for tool in TOOLS {
        let mut slow = Slow::start(&images, tool, A_WHILE);
        assert!(slow.wait_until(Slow::catches), "{tool:?} never catches signals: {}", slow.stderr());
        // Somewhere in its middle; one that has ended meanwhile has left the disk whole as well.
        slow.wait_until(|slow| slow.calls() >= 5);
        slow.send(Signal::INT);
        let status = slow.child.wait().expect("an end");
        let what = format!("{:?}, interrupted: {status}: {}", tool.words, slow.stderr());
        // A resize is ended at once, by the signal itself.
        assert!(status.code().is_some() || tool.name == "resize" && status.signal() == Some(2), "{what}");
        images.assert_whole(slow.scratch.path(), &what);
        if status.code() == Some(1) {
            assert!(slow.stderr().contains("interrupted") || slow.stderr().contains("cancelled"), "{what}");
            let new = super::NEW.into_iter().any(|name| slow.scratch.file(name).exists());
            assert!(!new, "{what}: something was left");
        }
        images.assert_works(slow.scratch.path(), tool, &what);
    }
}
