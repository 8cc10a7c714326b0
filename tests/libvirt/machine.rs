//! A machine of libvirt's, emulated, whose disks our tools made: one a file, one served over NBD by us.

use std::fs;
use std::time::Instant;

use black_box::peer::assert_clean;
use black_box::{Run, Server};

use super::daemon::Libvirt;
use crate::guest::kernel::{DONE, GUEST_MAX, Kernel};

/// Bytes of the disk at first, and after it was resized.
const SMALL: &str = "128M";
const LARGE_MEBIBYTES: u64 = 192;

/// Files are written and summed, and read again at the end, when the disk has its new size.
const SCRIPT: &str = r"
/sbin/mke2fs -q -F -t ext4 -b 4096 -E discard /dev/vda || fail mke2fs
/bin/busybox mkdir /mnt
/bin/busybox mount -t ext4 -o discard /dev/vda /mnt || fail mount
n=0
while [ $(/bin/busybox cat /sys/block/vda/size) != 393216 ]; do
    n=$((n + 1))
    /bin/busybox dd if=/dev/urandom of=/mnt/file$((n % 40)) bs=64k count=4 conv=fsync 2>/dev/null || fail write
    /bin/busybox dd if=/dev/urandom of=/dev/vdb bs=64k count=1 seek=$((n % 100)) conv=notrunc 2>/dev/null || fail vdb
    echo WROTE-$n
    /bin/busybox usleep 50000
done
(cd /mnt && /bin/busybox sha256sum file* > sums) || fail sums
/bin/busybox sync
echo ALL-WRITTEN
n=0
while ! /bin/busybox dd if=/dev/vdb bs=512 skip=16000 count=1 2>/dev/null | /bin/busybox grep -q GO-ON; do
    n=$((n + 1)); [ $n -lt 2000 ] || fail 'no word to go on'
    echo 3 > /proc/sys/vm/drop_caches
    /bin/busybox usleep 100000
done
(cd /mnt && /bin/busybox sha256sum -c sums > /dev/null) || fail 'what was written is not there'
/bin/busybox umount /mnt || fail umount
/sbin/e2fsck -f -n /dev/vda || fail e2fsck
";

struct Machine {
    libvirt: Libvirt,
    kernel: Kernel,
}

impl Machine {
    fn described(&self, initrd: &str, socket: &str) -> String {
        let (disk, console) = (self.libvirt.name("disk.qcow2"), self.libvirt.name("console"));
        let kernel = self.kernel.image.display();
        format!(
            "<domain type='qemu'><name>g</name><memory unit='MiB'>512</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel><initrd>{initrd}</initrd>\
             <cmdline>console=ttyS0 panic=-1 quiet</cmdline></os><features><acpi/></features><on_poweroff>destroy</on_poweroff>\
             <cpu mode='custom'><model>qemu64</model><feature policy='disable' name='cx16'/></cpu><devices>\
             <disk type='file' device='disk'><driver name='qemu' type='qcow2' discard='unmap'/>\
             <source file='{disk}'/><target dev='vda' bus='virtio'/></disk>\
             <disk type='network' device='disk'><driver name='qemu' type='raw'/><source protocol='nbd' name='second'>\
             <host transport='unix' socket='{socket}'/></source><target dev='vdb' bus='virtio'/></disk>\
             <serial type='file'><source path='{console}'/></serial>\
             <controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"
        )
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.libvirt.file("console")).unwrap_or_default()).into_owned()
    }

    /// Waits until the guest has said what `is_it` looks for.
    fn wait(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            let said = self.said();
            if is_it(&said) {
                return;
            }
            assert!(!said.contains("failed:") && start.elapsed() < GUEST_MAX, "no {what}: {said}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// How often the guest has written, so far.
    fn written(&self) -> usize {
        self.said().matches("WROTE-").count()
    }

    /// Lets it write some more.
    fn go_on(&self) {
        let before = self.written();
        self.wait("progress", |said| said.matches("WROTE-").count() > before + 5);
    }

    fn ok(&self, words: &str) {
        drop(self.libvirt.ok(words));
    }

    /// Our qemu-img, in the directory of the disks.
    fn img(&self, words: &str) -> Run {
        Run::new(self.libvirt.file("links/qemu-img"))
            .args(words.split(' '))
            .current_dir(self.libvirt.scratch().path())
    }

    /// The path of the machine's disk, as libvirt has it.
    fn disk(&self) -> String {
        let list = self.libvirt.ok("domblklist g");
        let line = list.lines().find(|line| line.contains("vda")).expect("a disk");
        line.split_whitespace().nth(1).expect("its path").to_owned()
    }
}

#[test]
fn a_machine_is_snapshotted_committed_copied_backed_up_resized_and_saved() {
    let kernel = Kernel::newest();
    let machine = Machine { libvirt: Libvirt::start(), kernel };
    let libvirt = &machine.libvirt;
    drop(machine.img(&format!("create -q -f qcow2 disk.qcow2 {SMALL}")).ok());
    drop(machine.img("create -q -f qcow2 second.qcow2 16M").ok());
    let served = Server::start([libvirt.name("second.qcow2")]);
    let initrd = machine.kernel.initrd(libvirt.scratch(), SCRIPT);
    let socket = served.socket().display().to_string();
    libvirt.describe("define", &machine.described(&initrd.display().to_string(), &socket));
    machine.ok("start g");
    machine.wait("start", |said| said.contains("WROTE-3\r"));

    // An overlay of ours, into which the disk moves; then back.
    drop(machine.img(&format!("create -q -f qcow2 -u -b disk.qcow2 -F qcow2 over.qcow2 {SMALL}")).ok());
    let over = libvirt.name("over.qcow2");
    let snapshot =
        "snapshot-create-as g --disk-only --atomic --no-metadata --reuse-external --diskspec vdb,snapshot=no";
    machine.ok(&format!("{snapshot} --diskspec vda,file={over}"));
    assert_eq!(machine.disk(), over);
    machine.go_on();
    machine.ok("blockcommit g vda --active --pivot --wait");
    assert_eq!(machine.disk(), libvirt.name("disk.qcow2"));

    // Two layers by libvirt's own hand, the lower one committed, the upper one pulled into.
    for name in ["one", "two"] {
        machine.ok(&format!(
            "snapshot-create-as g {name} --disk-only --atomic --no-metadata --diskspec vdb,snapshot=no"
        ));
        machine.go_on();
    }
    let chain = machine.img(&format!("info -U --backing-chain --output=json {}", machine.disk())).json();
    assert_eq!(chain.as_array().map(Vec::len), Some(3), "{chain}");
    let (top, base) = (libvirt.name("disk.one"), libvirt.name("disk.qcow2"));
    machine.ok(&format!("blockcommit g vda --wait --top {top} --base {base}"));
    machine.ok("blockpull g vda --wait");
    machine.go_on();

    // A copy to an image of ours.
    drop(
        machine
            .img(&format!("create -q -f qcow2 -o cluster_size=32k,extended_l2=on copy.qcow2 {SMALL}"))
            .ok(),
    );
    let copy = libvirt.name("copy.qcow2");
    machine.ok(&format!("blockcopy g vda {copy} --reuse-external --wait --pivot --transient-job"));
    assert_eq!(machine.disk(), copy);
    machine.go_on();
    back_up(&machine);

    machine.ok(&format!("save g {}", libvirt.name("saved")));
    assert_clean(&libvirt.file("copy.qcow2"));
    machine.ok(&format!("restore {}", libvirt.name("saved")));
    machine.go_on();
    machine.ok(&format!("blockresize g vda {LARGE_MEBIBYTES}M"));
    machine.wait("the new size", |said| said.contains("ALL-WRITTEN"));
    // A word to the guest: what it reads of the disk that we serve.
    let tell = ["-f", "raw", "-c", "write -s WORD 8192000 512", "URI"];
    let word = libvirt.scratch().write("word", b"GO-ON\n");
    let words = tell
        .map(|part| part.replace("WORD", &word.display().to_string()).replace("URI", &served.uri("second")));
    drop(Run::new("qemu-io").args(words).ok());
    machine.wait("its end", |said| said.contains(DONE));
    let start = Instant::now();
    while !libvirt.ok("domstate g").contains("shut off") {
        assert!(start.elapsed() < GUEST_MAX, "the machine does not stop");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    served.stop();
    assert_clean(&libvirt.file("second.qcow2"));
    stopped(&machine);
}

/// Backups of the machine's disk: pushed whole, then what was written since, then pulled through NBD.
fn back_up(machine: &Machine) {
    let libvirt = &machine.libvirt;
    let begin = |description: &str, point: &str| {
        let file = libvirt.scratch().write("backup.xml", description.as_bytes());
        let points = format!(
            "<domaincheckpoint><name>{point}</name><disks><disk name='vda' checkpoint='bitmap'/>\
             <disk name='vdb' checkpoint='no'/></disks></domaincheckpoint>"
        );
        let point = libvirt.scratch().write("point.xml", points.as_bytes());
        drop(libvirt.virsh(["backup-begin", "g"]).arg(file).arg(point).ok());
    };
    let ended = || {
        let start = Instant::now();
        while !libvirt.ok("domjobinfo g").contains("None") {
            assert!(start.elapsed() < GUEST_MAX, "the backup does not end");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let target = |name: &str| {
        format!(
            "<domainbackup mode='push'>SINCE<disks><disk name='vda' type='file'><driver type='qcow2'/><target file='{}'/></disk>\
             <disk name='vdb' backup='no'/></disks></domainbackup>",
            libvirt.name(name)
        )
    };
    begin(&target("full.qcow2").replace("SINCE", ""), "first");
    ended();
    machine.go_on();
    begin(&target("more.qcow2").replace("SINCE", "<incremental>first</incremental>"), "second");
    ended();
    // The second stands over the first, and is read by ours and by QEMU's.
    drop(machine.img("rebase -u -b full.qcow2 -F qcow2 more.qcow2").ok());
    drop(machine.img("convert -O raw more.qcow2 ours.raw").ok());
    let theirs = Run::new("qemu-img").args(["convert", "-O", "raw", "more.qcow2", "theirs.raw"]);
    drop(theirs.current_dir(libvirt.scratch().path()).ok());
    assert!(fs::read(libvirt.file("ours.raw")).ok() == fs::read(libvirt.file("theirs.raw")).ok());
    pull(machine);
}

/// What a server of QEMU's offers in a backup that is pulled, copied by our qemu-img: the disk as it is at that moment.
fn pull(machine: &Machine) {
    let libvirt = &machine.libvirt;
    let (socket, scratch) = (libvirt.name("pull"), libvirt.name("before.qcow2"));
    let description = format!(
        "<domainbackup mode='pull'><server transport='unix' socket='{socket}'/><disks><disk name='vda' type='file'>\
         <scratch file='{scratch}'/></disk><disk name='vdb' backup='no'/></disks></domainbackup>"
    );
    libvirt.describe("backup-begin g", &description);
    let uri = format!("nbd+unix:///vda?socket={socket}");
    drop(machine.img(&format!("convert -f raw -O qcow2 {uri} pulled.qcow2")).ok());
    let compared = machine.img(&format!("compare -f raw -F qcow2 {uri} pulled.qcow2")).ok();
    assert!(compared.contains("identical"), "{compared}");
    machine.ok("domjobabort g");
    for point in ["second", "first"] {
        machine.ok(&format!("checkpoint-delete g {point}"));
    }
    assert_clean(&libvirt.file("pulled.qcow2"));
}

/// Snapshots of a machine that is off are made, applied and removed by qemu-img alone.
fn stopped(machine: &Machine) {
    let libvirt = &machine.libvirt;
    assert_clean(&libvirt.file("copy.qcow2"));
    machine.ok("detach-disk g vdb --config");
    for name in ["a", "b"] {
        machine.ok(&format!("snapshot-create-as g {name}"));
    }
    let disk = machine.disk();
    let list = Run::new("qemu-img").args(["snapshot", "-l", &disk]).ok();
    assert_eq!(list.lines().count(), 4, "{list}");
    machine.ok("snapshot-revert g a");
    machine.ok("snapshot-delete g a");
    machine.ok("snapshot-delete g b");
    machine.ok("snapshot-create-as g off --disk-only");
    let info = Run::new("qemu-img").args(["info", "--output=json", &machine.disk()]).json();
    assert_eq!(info["full-backing-filename"].as_str(), Some(disk.as_str()), "{info}");
    assert_clean(disk.as_ref());
}
