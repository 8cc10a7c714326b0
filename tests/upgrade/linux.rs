//! Linux under QEMU, whose disk is ours over vhost-user-blk, while fio in it writes and verifies: one process takes over from another again and again,
//! and some of the new ones fail. The guest sees pauses.

use std::time::{Duration, Instant};

use black_box::Scratch;
use serde_json::json;

use super::Daemon;
use super::successor::Successor;
use crate::guest::Machine;
use crate::guest::kernel::{Content, Kernel, find};

/// Upgrades of each test: a handful, or as many as `COWHAND_UPGRADES` says.
fn upgrades() -> usize {
    std::env::var("COWHAND_UPGRADES").map_or(6, |count| count.parse().expect("COWHAND_UPGRADES: a number"))
}

/// Before each upgrade the guest has asked for so much since the last one.
const WRITES_MIN: u64 = 200;

/// How long that may take on a machine that does other things, too.
const WORK_PATIENCE: Duration = Duration::from_secs(30);

/// Every block is written once. Then blocks at random places are written again and read back until the host says a word; at last all are read. fio looks at the
/// sum of each block that it reads.
const SCRIPT: &str = r"
export PATH=/sbin:/bin
job='--name=verify --filename=/dev/vda --direct=1 --thread --ioengine=io_uring --bs=4k --size=24M --verify=crc32c --verify_state_save=0 --verify_fatal=1 --output=/said'
fio $job --rw=write --iodepth=16 --do_verify=0 || { /bin/busybox cat /said; fail 'filling'; }
echo LOAD-BEGINS
fio $job --rw=randwrite --iodepth=8 --verify_backlog=64 --time_based --runtime=3600 --trigger-file=/stop &
load=$!
read word
echo > /stop
wait $load || { /bin/busybox cat /said; fail 'the load'; }
fio $job --rw=read --iodepth=16 || { /bin/busybox cat /said; fail 'reading it all'; }
[ $(/bin/busybox dmesg | /bin/busybox grep -c 'I/O error') = 0 ] || fail 'the kernel saw errors'
";

/// System calls by which the process that serves has written something.
fn writes(daemon: &Daemon) -> u64 {
    let said =
        std::fs::read_to_string(format!("/proc/{}/io", daemon.server.pid())).expect("figures of the kernel");
    let line = said.lines().find_map(|line| line.strip_prefix("syscw: ")).expect("a count");
    line.parse().expect("a number")
}

/// Waits until the guest is at work.
fn until_it_works(daemon: &Daemon) {
    let (start, before) = (Instant::now(), writes(daemon));
    while writes(daemon) - before < WRITES_MIN {
        assert!(start.elapsed() < WORK_PATIENCE, "the guest asks for nothing: {}", daemon.server.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A new process fails: by an option that it does not know, a file that is not there, or after everything was given to it.
fn fail(daemon: &Daemon, number: usize) {
    match number % 3 {
        0 => {
            let mut successor = Successor::ask(&daemon.next);
            successor.read_to_end();
            successor.say(&json!({ "ready": {} }));
            assert!(successor.read_to_end() >= 2, "sockets and a machine");
        }
        1 => {
            let outcome = daemon.successor(&daemon.scratch.name("missing.qcow2"), &[]).outcome();
            assert!(!outcome.status.success() && outcome.stderr.contains("cannot take over"), "{outcome}");
        }
        _ => assert!(!daemon.successor(&daemon.disk, &["--no-such-option"]).outcome().status.success()),
    }
    daemon.assert_goes_on();
}

#[test]
fn fio_in_a_linux_guest_verifies_what_it_wrote_through_several_upgrades_some_of_which_fail() {
    let kernel = Kernel::newest();
    let mut daemon = Daemon::start(|scratch| vec!["--vhost-user-blk".to_owned(), scratch.name("v.sock")]);
    let scratch = Scratch::new();
    let fio = find("fio");
    let content = Content { modules: &[], programs: &[&fio] };
    let initrd = kernel.initrd_with(&scratch, SCRIPT, &content);
    // It would not connect again: who takes over has to keep the connection.
    let mut machine = Machine::boot_once(&kernel, &initrd, (&daemon.scratch.file("v.sock"), "off"), &scratch);
    machine.wait_for("LOAD-BEGINS");
    for number in 0..upgrades() {
        until_it_works(&daemon);
        if number % 2 == 1 {
            fail(&daemon, number / 2);
            until_it_works(&daemon);
        }
        let said = daemon.upgrade();
        assert!(said.contains("machines=1"), "the guest was not given on: {said}");
    }
    until_it_works(&daemon);
    machine.say("enough");
    machine.end();
    daemon.stop();
}
