//! A Linux guest whose kernel is the client of our `qemu-nbd`: `-c` and `-d`, as administrators look into images.

use std::fs;
use std::path::Path;

use black_box::peer::{assert_clean, qemu_img};
use black_box::{Run, Scratch, program};

use super::kernel::{Content, Kernel, boot, find};

const SCRIPT: &str = r#"
/bin/busybox mkdir -p /mnt /run /tmp /var/lock
/bin/busybox ln -s /sbin/cowhand /sbin/qemu-nbd
size() { /bin/busybox cat /sys/block/$1/size; }
until_size() {
    n=0
    until [ $(size $1) = $2 ]; do
        n=$((n + 1))
        [ $n -lt 300 ] || fail $1-of-$(size $1)
        /bin/busybox usleep 100000
    done
}
until_gone() {
    n=0
    while [ -e $1 ]; do
        n=$((n + 1))
        [ $n -lt 300 ] || fail $1-stays
        /bin/busybox usleep 100000
    done
}
# In the background: the device is there when it returns, and its server ends with it.
qemu-nbd -f qcow2 --discard=unmap -c /dev/nbd0 /dev/vda || fail connect
[ $(size nbd0) = 1048576 ] || fail size
/sbin/mke2fs -q -F -t ext4 -b 4096 -E discard /dev/nbd0 || fail mke2fs
/bin/busybox mount -t ext4 /dev/nbd0 /mnt || fail mount
/bin/busybox dd if=/dev/urandom of=/mnt/file bs=64k count=80 conv=fsync 2>/dev/null || fail write
(cd /mnt && /bin/busybox sha256sum file > sums) || fail sums
# Another server does not get it, and does not disturb it.
cowhand create -q -f raw /tmp/other 1M || fail other
qemu-nbd -f raw -c /dev/nbd0 /tmp/other 2>/said && fail 'two servers'
/bin/busybox grep -q nbd0 /said || { /bin/busybox cat /said; fail 'the reason'; }
/bin/busybox fstrim /mnt || fail fstrim
/bin/busybox umount /mnt || fail umount
[ "$(qemu-nbd -d /dev/nbd0)" = '/dev/nbd0 disconnected' ] || fail disconnect
until_size nbd0 0
until_gone /var/lock/qemu-nbd-nbd0
# Read-only; a server that is reported to end gives the device back.
qemu-nbd -f qcow2 -r --pid-file /run/pid -c /dev/nbd0 /dev/vda || fail 'connect again'
[ $(/bin/busybox cat /sys/block/nbd0/ro) = 1 ] || fail 'not read-only'
/bin/busybox mount -o ro -t ext4 /dev/nbd0 /mnt || fail 'mount again'
(cd /mnt && /bin/busybox sha256sum -c sums) >/dev/null || fail 'what was written is not there'
/bin/busybox umount /mnt || fail 'umount again'
/bin/busybox kill $(/bin/busybox cat /run/pid)
until_size nbd0 0
until_gone /run/pid
# In the foreground.
qemu-nbd -v -f qcow2 -c /dev/nbd1 /dev/vda >/reported 2>/log &
pid=$!
until_size nbd1 1048576
/bin/busybox grep -q 'NBD device /dev/nbd1 is now connected to /dev/vda' /reported || { /bin/busybox cat /reported /log; fail reported; }
/sbin/e2fsck -f -n /dev/nbd1 >/dev/null || fail e2fsck
/bin/busybox kill $pid
wait $pid || { /bin/busybox cat /log; fail 'it ends with an error'; }
until_size nbd1 0
[ $(/bin/busybox dmesg | /bin/busybox grep -c 'I/O error') = 0 ] || fail 'the kernel saw errors'
/bin/busybox rmmod nbd || fail rmmod
qemu-nbd -f qcow2 -c /dev/nbd0 /dev/vda 2>/said && fail 'no driver'
/bin/busybox grep -q 'modprobe nbd' /said || { /bin/busybox cat /said; fail 'what to do'; }
qemu-nbd -d /dev/vda 2>/said && fail 'no device'
/bin/busybox grep -q '/dev/nbd0' /said || { /bin/busybox cat /said; fail 'what a device is'; }
"#;

#[test]
fn the_kernel_is_the_client_of_qemu_nbd_until_either_side_ends_it() {
    let scratch = Scratch::new();
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &path, "512M"]).ok();
    // A disk does not grow: what the image needs is there.
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(256 << 20)).expect("a length");
    let kernel = Kernel::with_module("nbd");
    let content = Content { modules: &["nbd"], programs: &[program::path()] };
    let initrd = kernel.initrd_with(&scratch, SCRIPT, &content);
    boot(&kernel, &initrd, &format!("file={path},format=raw,if=none,id=d"));
    assert_clean(Path::new(&path));
    let raw = scratch.name("disk.raw");
    qemu_img(["convert", "-O", "raw", &path, &raw]).ok();
    Run::new(find("e2fsck")).args(["-f", "-n", &raw]).ok();
}
