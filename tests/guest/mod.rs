//! A Linux guest on our disk: it makes a file system, fills it, trims it, is switched off and started
//! again, and finds everything; QEMU then finds nothing wrong with the image.
//!
//! No KVM: QEMU emulates the processor, which takes some seconds to boot Debian's cloud kernel into an
//! initial RAM disk of busybox and mke2fs. (The shell prefers its own applets: programs have paths.)

#![forbid(unsafe_code)]

mod forks;
pub(crate) mod kernel;
mod nbd;
mod ublk;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use black_box::peer::{assert_clean, qemu_img};
use black_box::server::Start;
use black_box::{Scratch, Server};

use kernel::{DONE, GUEST_MAX, Kernel, boot, firmware};

/// First boot: make, fill, checksum, delete half, trim.
const FIRST: &str = r"
/sbin/mke2fs -q -F -t ext4 -b 4096 -E discard /dev/vda || fail mke2fs
/bin/busybox mkdir /mnt
/bin/busybox mount -t ext4 -o discard /dev/vda /mnt || fail mount
for n in 1 2 3 4 5 6 7 8; do
    /bin/busybox dd if=/dev/urandom of=/mnt/file$n bs=64k count=16 2>/dev/null || fail write
done
/bin/busybox dd if=/dev/zero of=/mnt/zeroes bs=1M count=8 2>/dev/null || fail zeroes
/bin/busybox sync
(cd /mnt && /bin/busybox sha256sum file1 file2 file3 file4 zeroes > sums) || fail sums
/bin/busybox rm /mnt/file5 /mnt/file6 /mnt/file7 /mnt/file8
/bin/busybox sync
/bin/busybox fstrim -v /mnt || fail fstrim
/bin/busybox umount /mnt || fail umount
";

/// Second boot: everything is there, and more can be written.
const SECOND: &str = r"
/bin/busybox mkdir /mnt
/sbin/e2fsck -f -n /dev/vda || fail e2fsck
/bin/busybox mount -t ext4 /dev/vda /mnt || fail mount
(cd /mnt && /bin/busybox sha256sum -c sums) || fail 'what was written is not there'
/bin/busybox dd if=/dev/urandom of=/mnt/more bs=64k count=16 conv=fsync 2>/dev/null || fail write
/bin/busybox umount /mnt || fail umount
";

#[test]
fn a_linux_guest_keeps_its_file_system_over_writes_trims_and_reboots() {
    for (create, drive) in [
        ("cluster_size=64k", "cache=writeback,discard=unmap"),
        ("cluster_size=32k,extended_l2=on", "cache=none,discard=unmap,detect-zeroes=unmap"),
    ] {
        let scratch = Scratch::new();
        let path = scratch.name("disk.qcow2");
        qemu_img(["create", "-q", "-f", "qcow2", "-o", create, &path, "256M"]).ok();
        let kernel = Kernel::newest();
        for script in [FIRST, SECOND] {
            let initrd = kernel.initrd(&scratch, script);
            let server = Server::start([format!("file={path},{drive}")]);
            let drive =
                format!("file={},format=raw,if=none,id=d,discard=unmap,cache=none", server.uri("disk"));
            boot(&kernel, &initrd, &drive);
            server.stop();
            assert_clean(Path::new(&path));
        }
        assert_trimmed(&path);
    }
}

/// What was deleted takes no space: 4 MiB of files are left, and what the file system itself needs.
fn assert_trimmed(path: &str) {
    let info = qemu_img(["info", "--output=json", path]).json();
    let bytes = info["actual-size"].as_u64().expect("a size");
    assert!(bytes < 24 << 20, "the image takes {bytes} bytes");
}

/// A guest works while the daemon under it is killed, resized and trimmed.
const MACHINE: &str = r"
granularity=/sys/block/vda/queue/discard_granularity
[ $(/bin/busybox cat $granularity) = 65536 ] || fail 'not a cluster is discarded at least'
/sbin/mke2fs -q -F -t ext4 -b 4096 -E discard /dev/vda || fail mke2fs
/bin/busybox mkdir /mnt
/bin/busybox mount -t ext4 -o discard /dev/vda /mnt || fail mount
n=0
while [ $n -lt 48 ]; do
    n=$((n + 1))
    /bin/busybox dd if=/dev/urandom of=/mnt/file$n bs=64k count=8 2>/dev/null || fail write
    (cd /mnt && /bin/busybox sha256sum file$n) >> /sums || fail sums
    echo WROTE-$n
    [ $((n % 6)) = 0 ] && /bin/busybox sync
done
echo 3 > /proc/sys/vm/drop_caches
(cd /mnt && /bin/busybox sha256sum -c /sums) > /dev/null || fail 'what was written is not there'
/bin/busybox cp /sums /mnt/sums
/bin/busybox rm /mnt/file1 /mnt/file2 /mnt/file3 /mnt/file4
/bin/busybox sync
/bin/busybox fstrim -v /mnt || fail fstrim
echo RESIZE-NOW
n=0
while [ $(/bin/busybox cat /sys/block/vda/size) != 786432 ]; do
    n=$((n + 1))
    [ $n -lt 100 ] || fail 'no new size'
    /bin/busybox usleep 200000
done
/bin/busybox dd if=/dev/urandom of=/dev/vda bs=64k seek=6000 count=4 conv=notrunc 2>/dev/null || fail 'write behind the old end'
/bin/busybox sync
/bin/busybox umount /mnt || fail umount
/bin/busybox cat /sys/block/vda/serial && echo
[ $(/bin/busybox cat $granularity) = 65536 ] || fail 'the least discard has changed'
[ $(/bin/busybox ls -d /sys/block/vda/mq/* | /bin/busybox wc -l) = 2 ] || fail 'not two queues'
echo RING-PACKED-$(/bin/busybox cut -c 35 /sys/block/vda/device/features)
";

/// Another machine: what is left of the first one's files is what it wrote.
const AFTERWARDS: &str = r"
/bin/busybox mkdir /mnt
/sbin/e2fsck -f -n /dev/vda || fail e2fsck
/bin/busybox mount -t ext4 /dev/vda /mnt || fail mount
(cd /mnt && for n in 1 2 3 4; do /bin/busybox sed -i /file$n'$'/d sums; done && /bin/busybox sha256sum -c sums) || fail sums
/bin/busybox umount /mnt || fail umount
";

/// QEMU is the front-end, and connects again when the daemon is gone. A new process takes over, too. The guest sees pauses, no error and no loss.
#[test]
fn a_linux_guest_over_vhost_user_survives_kill_9_of_the_daemon_and_sees_a_new_size() {
    survives("off");
}

#[test]
fn a_linux_guest_with_packed_rings_survives_the_same() {
    survives("on");
}

/// `packed`: whether the machine offers its guest packed rings, `on` or `off`.
fn survives(packed: &str) {
    let scratch = Scratch::new();
    let (path, socket, qmp) = (scratch.name("disk.qcow2"), scratch.file("v.sock"), scratch.file("q"));
    qemu_img(["create", "-q", "-f", "qcow2", &path, "256M"]).ok();
    let kernel = Kernel::newest();
    let arguments = || {
        let (vhost, qmp) = (socket.display().to_string(), qmp.display().to_string());
        let drive = format!("file={path},discard=unmap");
        ["--vhost-user-blk", &vhost, "--qmp", &qmp, &drive].map(str::to_owned)
    };
    let next = scratch.file("next");
    let serve = || {
        Server::start(
            arguments().into_iter().chain(["--take-over-socket".to_owned(), next.display().to_string()]),
        )
    };
    let mut server = serve();
    let mut machine = Machine::boot(&kernel, &kernel.initrd(&scratch, MACHINE), (&socket, packed), &scratch);
    for mark in ["WROTE-7\r", "WROTE-20\r", "WROTE-33\r"] {
        machine.wait_for(mark);
        server.kill();
        server = serve();
    }
    machine.wait_for("WROTE-42\r");
    // A new process takes over, in mid-load, too: QEMU keeps its connection.
    let heir = Start::new(arguments()).arg("--take-over").arg(&next).spawn();
    let outcome = server.outcome();
    assert!(outcome.status.success(), "{outcome}");
    server = heir;
    machine.wait_for("RESIZE-NOW");
    let mut control = black_box::qmp::Qmp::connect(&qmp);
    control.ok("block_resize", serde_json::json!({ "node-name": "disk", "size": 384 << 20 }));
    let said = machine.end();
    assert!(said.contains("disk\r"), "the serial number: {said}");
    let features = if packed == "on" { "RING-PACKED-1\r" } else { "RING-PACKED-0\r" };
    assert!(said.contains(features), "{said}");
    drop(control);
    server.stop();
    assert_clean(Path::new(&path));
    let server = serve();
    let machine = Machine::boot(&kernel, &kernel.initrd(&scratch, AFTERWARDS), (&socket, packed), &scratch);
    machine.end();
    server.stop();
    assert_clean(Path::new(&path));
}

/// A running guest whose disk is the daemon's by vhost-user-blk.
pub(crate) struct Machine {
    child: std::process::Child,
    console: PathBuf,
}

impl Machine {
    /// Connects again when its disk is gone.
    fn boot(kernel: &Kernel, initrd: &Path, disk: (&Path, &str), scratch: &Scratch) -> Self {
        Self::boot_with(kernel, initrd, disk, scratch, 1)
    }

    /// Connects once.
    pub(crate) fn boot_once(kernel: &Kernel, initrd: &Path, disk: (&Path, &str), scratch: &Scratch) -> Self {
        Self::boot_with(kernel, initrd, disk, scratch, 0)
    }

    /// `disk`: a socket, and whether its rings may be packed, `on` or `off`.
    fn boot_with(
        kernel: &Kernel,
        initrd: &Path,
        (socket, packed): (&Path, &str),
        scratch: &Scratch,
        reconnect_seconds: u32,
    ) -> Self {
        let console = scratch.file("console");
        let chardev = format!("socket,id=c,path={},reconnect={reconnect_seconds}", socket.display());
        let child = std::process::Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg,thread=multi",
                "-machine",
                "pc,memory-backend=mem",
                "-m",
                "512",
                "-smp",
                "2",
            ])
            .args(["-object", "memory-backend-memfd,id=mem,size=512M,share=on", "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio", "-append", "console=ttyS0 panic=-1 quiet"])
            .args(["-chardev", &chardev, "-device"])
            .arg(format!("vhost-user-blk-pci,chardev=c,num-queues=2,packed={packed}"))
            .args(firmware())
            .args([Path::new("-kernel"), &kernel.image, Path::new("-initrd"), initrd])
            .stdin(std::process::Stdio::piped())
            .stdout(fs::File::create(&console).expect("a console"))
            .spawn();
        Self { child: child.expect("qemu-system-x86_64 is missing: run cargo xtask test as root"), console }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Waits until the guest has said `mark`.
    pub(crate) fn wait_for(&mut self, mark: &str) {
        let start = Instant::now();
        while !self.said().contains(mark) {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none() && start.elapsed() < GUEST_MAX, "no {mark}: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types a line at its console.
    pub(crate) fn say(&mut self, line: &str) {
        let console = self.child.stdin.as_mut().expect("a console");
        writeln!(console, "{line}").expect("a machine that runs");
    }

    /// Waits for its end, which must be a good one; gives what it said.
    pub(crate) fn end(mut self) -> String {
        self.wait_for_end();
        let said = self.said();
        assert!(said.contains(DONE) && !said.contains("I/O error"), "the guest fails: {said}");
        said
    }

    fn wait_for_end(&mut self) {
        let start = Instant::now();
        while self.child.try_wait().expect("a child").is_none() {
            assert!(start.elapsed() < GUEST_MAX, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Does nothing to one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
