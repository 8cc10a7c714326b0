//! A person asks how far a tool is (SIGUSR1), and ends it (Ctrl-C).

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use black_box::{Scratch, program};
use rustix::process::{Pid, Signal, kill_process};

use super::{Images, TOOLS, Tool};

const PATIENCE: Duration = Duration::from_secs(30);

/// A tool whose every I/O takes a while.
struct Slow {
    child: Child,
    scratch: Scratch,
}

impl Slow {
    fn start(images: &Images, tool: Tool) -> Self {
        let scratch = Scratch::new();
        images.copy_into(scratch.path());
        let stderr = std::fs::File::create(scratch.file("stderr")).expect("a file");
        // With -D the process that is started is cowhand, and strace looks on.
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-o", &scratch.name("strace.log"), "-e", "trace=io_uring_enter"]);
        command.args(["-e", "inject=io_uring_enter:delay_enter=15000"]).arg(program::path()).args(tool.words);
        command.current_dir(scratch.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Self { child: command.spawn().expect("strace"), scratch }
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

    fn send(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process(self.pid(), signal);
    }
}

#[test]
fn sigusr1_ends_no_tool_and_those_that_copy_say_how_far_they_are() {
    let images = Images::new();
    for tool in TOOLS {
        let mut slow = Slow::start(&images, tool);
        assert!(slow.wait_until(Slow::catches), "{tool:?} never catches the signal: {}", slow.stderr());
        let copies = ["convert", "commit", "rebase", "flatten", "compact"].contains(&tool.name);
        if copies {
            // One that comes before the copy begins is answered when it has.
            slow.send(Signal::USR1);
            let told = slow.wait_until(|slow| slow.stderr().contains('%'));
            assert!(told, "{tool:?} does not say how far it is: {}", slow.stderr());
        } else {
            slow.send(Signal::USR1);
        }
        let status = slow.child.wait().expect("an end");
        assert!(status.success(), "{tool:?}: {status}: {}", slow.stderr());
        images.assert_whole(slow.scratch.path(), tool.name);
    }
}

#[test]
fn ctrl_c_leaves_the_disk_whole_and_the_next_run_finishes() {
    let images = Images::new();
    for tool in TOOLS {
        let mut slow = Slow::start(&images, tool);
        assert!(slow.wait_until(Slow::catches), "{tool:?} never catches signals: {}", slow.stderr());
        std::thread::sleep(Duration::from_millis(60));
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
