//! A Linux guest on our disk: it makes a file system, fills it, trims it, is switched off and started
//! again, and finds everything; QEMU then finds nothing wrong with the image.
//!
//! No KVM: QEMU emulates the processor, which takes some seconds to boot Debian's cloud kernel into an
//! initial RAM disk of busybox and mke2fs. (The shell prefers its own applets: programs have paths.)

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use black_box::peer::{assert_clean, qemu_img};
use black_box::server::Start;
use black_box::{Run, Scratch, Server};

/// A guest that takes longer hangs: it needs about 10 s on an idle machine.
const GUEST_MAX: Duration = Duration::from_secs(240);

/// What the guest prints when all went well.
const DONE: &str = "GUEST-IS-DONE";

/// Modules that the disk needs, in any order: their dependencies are looked up.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_blk"];

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
            boot(&kernel, &initrd, &server);
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

fn boot(kernel: &Kernel, initrd: &Path, server: &Server) {
    let drive = format!("file={},format=raw,if=none,id=d,discard=unmap,cache=none", server.uri("disk"));
    let outcome = Run::new("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-machine", "pc", "-m", "512", "-nodefaults", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .args(firmware())
        .args(["-append", "console=ttyS0 panic=-1 quiet", "-drive", &drive])
        .args(["-device", "virtio-blk-pci,drive=d,discard=on,write-zeroes=on"])
        .args([Path::new("-kernel"), &kernel.image, Path::new("-initrd"), initrd])
        .limit(GUEST_MAX)
        .outcome();
    assert!(outcome.status.success() && outcome.stdout.contains(DONE), "the guest fails: {outcome}");
}

/// Where the guest's kernel is installed: `COWHAND_GUEST_ROOT` names another place than `/`, for instance one in which packages were
/// only unpacked.
fn under_root(path: &str) -> PathBuf {
    std::env::var_os("COWHAND_GUEST_ROOT").map_or(PathBuf::from("/"), PathBuf::from).join(path)
}

/// Where QEMU finds its firmware, if not where it was installed.
fn firmware() -> Vec<String> {
    let Some(root) = std::env::var_os("COWHAND_GUEST_ROOT").map(PathBuf::from) else { return Vec::new() };
    let places = ["usr/share/qemu", "usr/share/seabios"].map(|path| root.join(path));
    places.iter().flat_map(|place| ["-L".to_owned(), place.display().to_string()]).collect()
}

/// Debian's cloud kernel, as its package installs it.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    fn newest() -> Self {
        let (boot, all) = (under_root("boot"), under_root("lib/modules"));
        let names = fs::read_dir(&boot).expect("/boot").flatten().map(|entry| entry.file_name());
        let releases = names.filter_map(|name| Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned()));
        let cloud = releases.filter(|release| release.ends_with("-cloud-amd64"));
        let usable = cloud.filter(|release| all.join(release).is_dir());
        let newest = usable.max().expect("linux-image-cloud-amd64 is missing: run cargo xtask test as root");
        Self { image: boot.join(format!("vmlinuz-{newest}")), modules: all.join(newest) }
    }

    /// Files of the modules and of all that they need, in an order in which they can be loaded.
    fn module_files(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string(self.modules.join("modules.dep")).expect("modules.dep");
        let mut ordered: Vec<PathBuf> = Vec::new();
        for wanted in MODULES {
            let is_wanted = |file: &str| module_name(Path::new(file)) == wanted;
            let Some((file, needs)) =
                text.lines().filter_map(|line| line.split_once(':')).find(|(f, _)| is_wanted(f))
            else {
                // Built into the kernel.
                continue;
            };
            // What is needed stands in the order in which to unload it.
            let files = needs.split_whitespace().rev().chain([file]).map(|file| self.modules.join(file));
            files.for_each(|file| {
                if !ordered.contains(&file) {
                    ordered.push(file);
                }
            });
        }
        ordered
    }

    /// An initial RAM disk that loads the modules, runs the script and switches the machine off.
    fn initrd(&self, scratch: &Scratch, script: &str) -> PathBuf {
        let root = Scratch::new();
        for directory in ["bin", "sbin", "dev", "proc", "sys", "modules"] {
            fs::create_dir(root.file(directory)).expect("a directory");
        }
        copy(&find("busybox"), &root.file("bin/busybox"));
        for program in ["mke2fs", "e2fsck"] {
            copy_with_libraries(&find(program), root.path());
        }
        let modules: String = self.module_files().iter().map(|file| put_module(file, root.path())).collect();
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox mount -t devtmpfs none /dev\n\
             /bin/busybox mount -t proc none /proc\n\
             /bin/busybox mount -t sysfs none /sys\n\
             export PATH=/sbin MKE2FS_SKIP_PROGRESS=1\n\
             off() {{ /bin/busybox poweroff -f; }}\n\
             fail() {{ echo \"failed: $1\"; off; /bin/busybox sleep 60; }}\n\
             {modules}{script}\necho {DONE}\noff\n"
        );
        fs::write(root.file("init"), init).expect("an init");
        fs::set_permissions(root.file("init"), fs::Permissions::from_mode(0o755)).expect("a mode");
        let archive = scratch.file("initrd");
        let pack = format!("find . | cpio --quiet -o -H newc > {}", archive.display());
        Run::new("sh").args(["-c", &pack]).current_dir(root.path()).ok();
        archive
    }
}

/// `kernel/drivers/block/virtio_blk.ko.xz` is `virtio_blk`.
fn module_name(file: &Path) -> String {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Puts a module into the root, decompressed; gives the line that loads it.
fn put_module(file: &Path, root: &Path) -> String {
    let name = module_name(file);
    let into = root.join("modules").join(format!("{name}.ko"));
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => decompress("xz", file, &into),
        Some("zst") => decompress("zstd", file, &into),
        _ => copy(file, &into),
    }
    format!("/bin/busybox insmod /modules/{name}.ko || fail 'module {name}'\n")
}

fn decompress(program: &str, file: &Path, into: &Path) {
    let line = format!("{program} -dc {} > {}", file.display(), into.display());
    Run::new("sh").args(["-c", &line]).ok();
}

fn find(program: &str) -> PathBuf {
    let places = ["usr/local/sbin", "usr/sbin", "sbin", "usr/bin", "bin"];
    let here = places.iter().map(|place| Path::new("/").join(place).join(program));
    let unpacked = places.iter().map(|place| under_root(place).join(program));
    let found = here.chain(unpacked).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{program} is missing: run cargo xtask test as root"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
    fs::copy(from, to).unwrap_or_else(|error| panic!("cannot copy {}: {error}", from.display()));
}

/// Puts a program into the root with every library that it is linked with, each in its place.
fn copy_with_libraries(program: &Path, root: &Path) {
    let name = program.file_name().expect("a program");
    copy(program, &root.join("sbin").join(name));
    let linked = Run::new("ldd").arg(program).ok();
    for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]));
    }
}

/// A guest works while the daemon under it is killed, resized and trimmed.
const MACHINE: &str = r"
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
[ $(/bin/busybox ls -d /sys/block/vda/mq/* | /bin/busybox wc -l) = 2 ] || fail 'not two queues'
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
    let mut machine = Machine::boot(&kernel, &kernel.initrd(&scratch, MACHINE), &socket, &scratch);
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
    drop(control);
    server.stop();
    assert_clean(Path::new(&path));
    let server = serve();
    let machine = Machine::boot(&kernel, &kernel.initrd(&scratch, AFTERWARDS), &socket, &scratch);
    machine.end();
    server.stop();
    assert_clean(Path::new(&path));
}

/// A running guest whose disk is the daemon's by vhost-user-blk.
struct Machine {
    child: std::process::Child,
    console: PathBuf,
}

impl Machine {
    fn boot(kernel: &Kernel, initrd: &Path, socket: &Path, scratch: &Scratch) -> Self {
        let console = scratch.file("console");
        let chardev = format!("socket,id=c,path={},reconnect=1", socket.display());
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
            .args(["-chardev", &chardev, "-device", "vhost-user-blk-pci,chardev=c,num-queues=2"])
            .args(firmware())
            .args([Path::new("-kernel"), &kernel.image, Path::new("-initrd"), initrd])
            .stdin(std::process::Stdio::null())
            .stdout(fs::File::create(&console).expect("a console"))
            .spawn();
        Self { child: child.expect("qemu-system-x86_64 is missing: run cargo xtask test as root"), console }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Waits until the guest has said `mark`.
    fn wait_for(&mut self, mark: &str) {
        let start = Instant::now();
        while !self.said().contains(mark) {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none() && start.elapsed() < GUEST_MAX, "no {mark}: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for its end, which must be a good one; gives what it said.
    fn end(mut self) -> String {
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
