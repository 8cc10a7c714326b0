//! A Linux guest is forked ten times while it writes; each fork is changed by a guest of its own, one is rolled back, one
//! is published and starts in another directory.

use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_clean, qemu_img};
use black_box::server::Start;
use black_box::{Moto, Run, Scratch, Server, cowhand};
use serde_json::Value;

use super::Machine;
use super::kernel::{Kernel, boot};

const FORKS: usize = 10;

/// Writes until it is stopped at its console; what is in `sums` was durable before it was reported.
const WRITER: &str = r"
/sbin/mke2fs -q -F -t ext4 -b 4096 /dev/vda || fail mke2fs
/bin/busybox mkdir /mnt
/bin/busybox mount -t ext4 /dev/vda /mnt || fail mount
for n in 1 2 3 4 5 6; do
    /bin/busybox dd if=/dev/urandom of=/mnt/file$n bs=64k count=16 2>/dev/null || fail write
    (cd /mnt && /bin/busybox sha256sum file$n) >> /mnt/sums || fail sums
done
/bin/busybox sync
(read line < /dev/console; : > /stop) &
echo FORK-NOW
n=0
while [ ! -e /stop ]; do
    n=$((n + 1))
    /bin/busybox dd if=/dev/urandom of=/mnt/more$((n % 20)) bs=64k count=4 2>/dev/null || fail more
    /bin/busybox rm -f /mnt/more$(((n + 7) % 20))
    [ $((n % 3)) = 0 ] && /bin/busybox sync
done
/bin/busybox umount /mnt || fail umount
";

/// The guest of a fork: the journal brings the file system to the moment, and what the fork had before is there.
fn script(before: Option<usize>, change: Option<usize>) -> String {
    let was = match before {
        Some(n) => format!("[ \"$(/bin/busybox cat /mnt/change)\" = {n} ] || fail 'not the change'"),
        None => "[ ! -e /mnt/change ] || fail 'a change that is not its own'".to_owned(),
    };
    let now = change.map(|n| {
        format!(
            "echo {n} > /mnt/change && /bin/busybox rm -f /mnt/file6 && \
             /bin/busybox dd if=/dev/urandom of=/mnt/own bs=64k count={} 2>/dev/null || fail change",
            n + 8
        )
    });
    format!(
        r"
/bin/busybox mkdir /mnt
/bin/busybox mount -t ext4 /dev/vda /mnt || fail mount
(cd /mnt && /bin/busybox grep -v file6 sums | /bin/busybox sha256sum -c) > /dev/null || fail 'what was durable is not there'
{was}
{}
/bin/busybox umount /mnt || fail umount
/sbin/e2fsck -f -n /dev/vda > /dev/null || fail e2fsck
",
        now.unwrap_or_default()
    )
}

/// Where all of it is.
struct Scene {
    scratch: Scratch,
    store: Moto,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { scratch: Scratch::new(), store: Moto::start() };
        scene.store.put("/images", b"");
        scene
    }

    fn name(&self, file: &str) -> String {
        self.scratch.name(file)
    }

    fn run(&self, words: &[&str]) -> Run {
        self.store.below(cowhand(words).current_dir(self.scratch.path()))
    }

    /// A server of disks with the control socket `qmp`, which may send to the store.
    fn serve(&self, words: &[&str]) -> Server {
        let qmp = self.name("qmp");
        let store = format!("127.0.0.1:{}", self.store.port());
        let start = Start::new(["--qmp", &qmp, "--allow-connect", &store, "--allow-path"]);
        let start = start.arg(self.scratch.path()).args(words);
        let start = start.env("AWS_ENDPOINT_URL", self.store.endpoint()).env("AWS_ACCESS_KEY_ID", "A");
        let start = start.env("AWS_SECRET_ACCESS_KEY", "hush");
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        server
    }

    /// A machine whose disk is an export of `server`.
    fn boots(&self, kernel: &Kernel, server: &Server, export: &str, script: &str) {
        let initrd = kernel.initrd(&self.scratch, script);
        let drive = format!("file={},format=raw,if=none,id=d,cache=none", server.uri(export));
        boot(kernel, &initrd, &drive);
    }
}

#[test]
fn a_linux_guest_is_forked_ten_times_while_it_writes_and_each_fork_is_whole() {
    let (scene, kernel) = (Scene::new(), Kernel::newest());
    let disk = scene.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
    scene.run(&["checkpoint", "-q", "disk.qcow2", "empty"]).ok();
    let socket = scene.scratch.file("v.sock");
    let server = scene.serve(&["--vhost-user-blk", &socket.display().to_string(), &disk]);
    let initrd = kernel.initrd(&scene.scratch, WRITER);
    let mut machine = Machine::boot_once(&kernel, &initrd, (&socket, "off"), &scene.scratch);
    machine.wait_for("FORK-NOW");
    std::thread::sleep(Duration::from_secs(1));
    scene.run(&["checkpoint", "-q", "qmp", "running"]).ok();
    let count = FORKS.to_string();
    scene.run(&["fork", "-q", "qmp@running", "run.qcow2", "--count", &count]).ok();
    machine.say("");
    machine.end();
    server.stop();
    let names: Vec<String> = (1..=FORKS).map(|n| format!("run-{n}")).collect();
    let files: Vec<String> = names.iter().map(|name| scene.name(&format!("{name}.qcow2"))).collect();
    let server = scene.serve(&files.iter().map(String::as_str).collect::<Vec<_>>());
    for (n, name) in names.iter().enumerate() {
        scene.boots(&kernel, &server, name, &script(None, Some(n)));
    }
    // One goes back while no guest has it.
    scene.run(&["rollback", "qmp:run-3", "qmp:run-3@running"]).ok();
    scene.boots(&kernel, &server, "run-3", &script(None, Some(33)));
    // One is published by its server, and starts elsewhere from the store.
    scene.run(&["checkpoint", "-q", "qmp:run-5", "changed"]).ok();
    scene.run(&["publish", "-q", "qmp:run-5@changed", "s3://images/vms/five"]).ok();
    for (n, name) in names.iter().enumerate().skip(8) {
        scene.boots(&kernel, &server, name, &script(Some(n), None));
    }
    server.stop();
    let elsewhere = scene.scratch.file("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let five = elsewhere.join("five.qcow2").display().to_string();
    let restored = scene.run(&["restore", "--output", "json", "s3://images/vms/five", &five]).json();
    let allowed = restored["backing"].as_str().expect("a name");
    let server = scene.serve(&["--allow-name", allowed, &five]);
    scene.boots(&kernel, &server, "five", &script(Some(4), Some(55)));
    server.stop();
    let server = scene.serve(&[&disk]);
    scene.boots(&kernel, &server, "disk", &script(None, None));
    server.stop();
    let log: Value = scene.run(&["log", "--output", "json", "disk.qcow2"]).json();
    let images = |kind: &str| log[kind].as_array().expect("a list").clone();
    let (layers, disks) = (images("layers"), images("disks"));
    assert_eq!(disks.len(), FORKS + 1, "{log}");
    for image in layers.iter().chain(&disks) {
        assert_clean(Path::new(image["file"].as_str().expect("a path")));
    }
}
