//! A tool is killed at one of its I/Os.

use std::os::unix::process::ExitStatusExt;

use black_box::{Run, Scratch, program};

use super::{Images, TOOLS};

/// The I/O (a call of a thread's) with which it is killed.
const MOMENTS: [u32; 3] = [4, 12, 36];

#[test]
fn kill_9_in_the_middle_leaves_the_disk_whole_and_the_next_run_finishes() {
    let images = Images::new();
    for tool in TOOLS {
        let mut killed = 0;
        for moment in MOMENTS {
            let scratch = Scratch::new();
            images.copy_into(scratch.path());
            let log = scratch.name("strace.log");
            // Requests go to the kernel by a ring, and what a ring cannot do by these.
            let calls = "io_uring_enter,pwrite64,pwritev,fsync,fdatasync,ftruncate,fallocate";
            let outcome = Run::new("strace")
                .args(["-f", "-o", &log, "-e", &format!("trace={calls}")])
                .args(["-e", &format!("inject={calls}:signal=KILL:when={moment}")])
                .arg(program::path())
                .args(tool.words)
                .current_dir(scratch.path())
                .outcome();
            let what = format!("{:?}, killed with call {moment}", tool.words);
            let is_killed = outcome.status.signal() == Some(9) || outcome.status.code() == Some(128 + 9);
            assert!(is_killed || outcome.status.success(), "{what}: {outcome}");
            killed += u32::from(is_killed);
            images.assert_whole(scratch.path(), &what);
            if is_killed {
                images.assert_works(scratch.path(), tool, &what);
            }
        }
        assert!(killed > 0, "{tool:?} was never killed in its middle");
    }
}
