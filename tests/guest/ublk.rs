//! A Linux guest that has our server inside: its disk is a block device of ours (ublk), over an image that its machine has as a raw disk.

use std::fs;
use std::path::Path;

use black_box::peer::{assert_clean, qemu_img};
use black_box::{Run, Scratch, program};

use super::kernel::{Content, Kernel, boot, find};

/// What all scripts begin with.
const TOOLS: &str = r"
/bin/busybox mkdir -p /mnt /run /tmp
# serve ARGUMENTS: until the device is there.
serve() {
    /sbin/cowhand serve --quiet --socket /run/s --qmp /run/q --log info --ublk 5 $* file=/dev/vda,format=qcow2,discard=unmap 2>>/log &
    pid=$!
    n=0
    until [ -b /dev/ublkb5 ] && [ $(/bin/busybox cat /sys/block/ublkb5/size) -gt 0 ]; do
        n=$((n + 1))
        [ $n -lt 300 ] || { /bin/busybox tail -n 20 /log; fail 'no device'; }
        /bin/busybox usleep 100000
    done
}
# quit: in order; the device is gone then.
quit() {
    /bin/busybox kill $pid
    wait $pid || { /bin/busybox tail -n 20 /log; fail 'it ends with an error'; }
    [ ! -e /sys/block/ublkb5 ] && [ ! -e /dev/ublkc5 ] || fail 'the device stays'
}
until_file() {
    n=0
    until [ -e $1 ]; do
        n=$((n + 1))
        [ $n -lt 600 ] || fail no-$1
        /bin/busybox usleep 100000
    done
}
";

/// A file system is made, filled while the server is killed twice, trimmed, and left in order.
const LIFE: &str = r"
serve
[ $(/bin/busybox cat /sys/block/ublkb5/size) = 1048576 ] || fail size
[ $(/bin/busybox cat /sys/block/ublkb5/queue/write_cache | /bin/busybox tr ' ' -) = write-back ] || fail cache
[ $(/bin/busybox cat /sys/block/ublkb5/queue/discard_max_bytes) = 1073741824 ] || fail discard
/sbin/mke2fs -q -F -t ext4 -b 4096 -E discard /dev/ublkb5 || fail mke2fs
/bin/busybox mount -t ext4 /dev/ublkb5 /mnt || fail mount
(
    n=0
    while [ $n -lt 24 ]; do
        n=$((n + 1))
        /bin/busybox dd if=/dev/urandom of=/mnt/file$n bs=64k count=8 conv=fsync 2>/dev/null || echo failed > /failed
        (cd /mnt && /bin/busybox sha256sum file$n) >> /sums
        [ $n != 6 ] || echo > /first
        [ $n != 14 ] || echo > /second
    done
    echo > /written
) &
for mark in first second; do
    until_file /$mark
    /bin/busybox kill -9 $pid
    wait $pid
    echo KILLED $mark
    serve
done
until_file /written
[ ! -e /failed ] || fail 'a write failed'
/bin/busybox cp /sums /mnt/sums
/bin/busybox sync
echo 3 > /proc/sys/vm/drop_caches
(cd /mnt && /bin/busybox sha256sum -c sums) > /dev/null || fail 'what was written is not there'
/bin/busybox rm /mnt/file20 /mnt/file21 /mnt/file22 /mnt/file23
/bin/busybox dd if=/dev/zero of=/mnt/zeroes bs=1M count=8 2>/dev/null || fail zeroes
/bin/busybox sync
/bin/busybox fstrim -v /mnt || fail fstrim
/bin/busybox umount /mnt || fail umount
# Kernels before 6.16 keep the size that programs know, which the log says; the image has the new one all the same.
/sbin/cowhand resize /run/q +64M || fail resize
n=0
until /bin/busybox grep -q 'keeps its size: this kernel changes none while it is used' /log || [ $(/bin/busybox cat /sys/block/ublkb5/size) = 1179648 ]; do
    n=$((n + 1))
    [ $n -lt 300 ] || fail 'not a word of the size'
    /bin/busybox usleep 100000
done
/bin/busybox grep -q 'refuses changing' /log && fail 'asked for a size in vain'
# What waits in the kernel's memory when the server is reported to end comes to the disk.
exec 9<>/dev/ublkb5
echo LAST-WORDS | /bin/busybox dd of=/dev/ublkb5 bs=512 seek=1048575 conv=notrunc,sync 2>/dev/null || fail 'last words'
exec 9>&-
quit
[ $(/bin/busybox dmesg | /bin/busybox grep -c 'I/O error') = 0 ] || fail 'the kernel saw errors'
";

/// Read-only: nothing can be written, and others are kept off.
const READ_ONLY: &str = r"
serve --read-only
[ $(/bin/busybox cat /sys/block/ublkb5/size) = 1179648 ] || fail 'the new size'
[ $(/bin/busybox cat /sys/block/ublkb5/ro) = 1 ] || fail 'not read-only'
/sbin/e2fsck -f -n /dev/ublkb5 || fail e2fsck
/bin/busybox mount -o ro -t ext4 /dev/ublkb5 /mnt || fail mount
(cd /mnt && /bin/busybox sha256sum file1 file24) || fail read
/bin/busybox umount /mnt || fail umount
# Another server does not get the device: neither of the same disk nor of another one.
/sbin/cowhand serve --quiet --socket /run/t --ublk 5 --create 64M /tmp/other.qcow2 2>/said && fail 'two servers'
/bin/busybox grep -q 'device of another disk' /said || { /bin/busybox cat /said; fail 'the reason'; }
# A number of the kernel's choice.
/sbin/cowhand serve --socket /run/t --ublk auto /tmp/other.qcow2 >/reported 2>&1 &
other=$!
until_file /dev/ublkb0
/bin/busybox grep -q '/dev/ublkb0' /reported || fail 'not reported'
/bin/busybox kill $other
wait $other || fail 'the other one'
quit
/bin/busybox rmmod ublk_drv
/sbin/cowhand serve --quiet --socket /run/t --ublk 5 /tmp/other.qcow2 2>/said && fail 'no driver'
/bin/busybox grep -q 'modprobe ublk_drv' /said || { /bin/busybox cat /said; fail 'what to do'; }
";

#[test]
fn a_block_device_outlives_kill_9_of_its_server_and_goes_with_its_end() {
    let scratch = Scratch::new();
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &path, "512M"]).ok();
    // A disk does not grow: what the image needs is there.
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(256 << 20)).expect("a length");
    let kernel = Kernel::with_module("ublk_drv");
    let content = Content { modules: &["ublk_drv"], programs: &[program::path()] };
    for script in [LIFE, READ_ONLY] {
        let script = format!("{TOOLS}{script}");
        let initrd = kernel.initrd_with(&scratch, &script, &content);
        boot(&kernel, &initrd, &format!("file={path},format=raw,if=none,id=d"));
        assert_clean(Path::new(&path));
    }
    let raw = scratch.name("disk.raw");
    qemu_img(["convert", "-O", "raw", &path, &raw]).ok();
    Run::new(find("e2fsck")).args(["-f", "-n", &raw]).ok();
    let sums = Run::new(find("debugfs")).args(["-R", "cat sums", &raw]).ok();
    let dumped = scratch.name("file24");
    Run::new(find("debugfs")).args(["-R", &format!("dump file24 {dumped}"), &raw]).ok();
    let sum = Run::new("sha256sum").arg(&dumped).ok();
    let sum = sum.split(' ').next().unwrap_or_default();
    assert!(sum.len() == 64 && sums.contains(&format!("{sum}  file24")), "{sum}: {sums}");
}
