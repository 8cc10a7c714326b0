//! Disks in a Ceph cluster: cowhand and QEMU see the same bytes in them, and nothing is lost when a process of either side is killed.

use std::path::Path;
use std::time::Duration;

use black_box::ceph::Objects;
use black_box::server::{Server, Start};
use black_box::{Ceph, Run, Scratch, cowhand};

/// A cluster in memory, and a raw disk with data and zeroes in a file.
struct Scene {
    scratch: Scratch,
    ceph: Ceph,
}

impl Scene {
    fn new(objects: Objects) -> Self {
        let scratch = Scratch::new();
        let byte = |at: u32| if at % 700_000 < 90_000 { 0 } else { (at / 513) as u8 };
        let mut disk: Vec<u8> = (0..6 << 20).map(byte).collect();
        disk.resize(24 << 20, 0);
        scratch.write("disk.raw", &disk);
        Self { scratch, ceph: Ceph::start(objects) }
    }

    fn run(&self, words: &[&str]) -> Run {
        cowhand(words).current_dir(self.scratch.path()).limit(Duration::from_secs(120))
    }

    fn qemu(&self, words: &[&str]) -> String {
        Run::new("qemu-img").args(words).current_dir(self.scratch.path()).limit(Duration::from_secs(120)).ok()
    }

    /// A new image of so many MiB, and its name.
    fn image(&self, name: &str, mib: u32) -> String {
        self.ceph.rbd(["create", "-s", &format!("{mib}M"), &format!("rbd/{name}")]);
        self.ceph.name(name)
    }
}

#[test]
fn qemu_and_cowhand_read_what_the_other_wrote_raw_and_qcow2_and_below_overlays() {
    let scene = Scene::new(Objects::Memory);
    let (ours, theirs, image) =
        (scene.image("ours", 24), scene.image("theirs", 24), scene.ceph.name("image"));
    scene.run(&["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", &ours]).ok();
    scene.qemu(&["compare", "-f", "raw", "-F", "raw", "disk.raw", &ours]);
    scene.qemu(&["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", &theirs]);
    scene.run(&["compare", "-f", "raw", "-F", "raw", "disk.raw", &theirs]).ok();
    let data = |map: &str| {
        let map: serde_json::Value = serde_json::from_str(map).unwrap();
        let entries = map.as_array().unwrap().iter();
        entries
            .filter(|entry| entry["data"] == true)
            .map(|entry| entry["length"].as_u64().unwrap())
            .sum::<u64>()
    };
    let (own_map, qemu_map) = (
        scene.run(&["map", "-f", "raw", "--output", "json", &theirs]).ok(),
        scene.qemu(&["map", "-f", "raw", "--output", "json", &theirs]),
    );
    assert_eq!(data(&own_map), data(&qemu_map), "{own_map} {qemu_map}");
    // A qcow2 image that grows in the cluster.
    scene.qemu(&["create", "-q", "-f", "qcow2", &image, "24M"]);
    scene.run(&["convert", "-n", "-f", "raw", "-O", "qcow2", "disk.raw", &image]).ok();
    scene.qemu(&["check", "-f", "qcow2", &image]);
    scene.qemu(&["compare", "-f", "raw", "-F", "qcow2", "disk.raw", &image]);
    // Below an overlay, where the user allows it.
    let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &image, "top.qcow2"];
    scene.qemu(&create);
    let refused = scene.run(&["compare", "-f", "raw", "disk.raw", "top.qcow2"]).fails();
    assert!(refused.contains("--allow-name rbd:rbd/image"), "{refused}");
    scene.run(&["compare", "--allow-name", &image, "-f", "raw", "disk.raw", "top.qcow2"]).ok();
}

/// Holes were taken for data, and the reverse, where an older snapshot had something else.
#[test]
fn snapshots_sizes_and_holes_are_what_qemu_finds() {
    let scene = Scene::new(Objects::Memory);
    let name = scene.image("disk", 24);
    scene.run(&["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", &name]).ok();
    scene.ceph.rbd(["snap", "create", "rbd/disk@old"]);
    for script in
        ["discard 0 4M", "write -z 5M 512k", "write -P 7 9000000 70000", "write -z -u 8M 4M", "flush"]
    {
        scene.run(&["io", "-f", "raw", "-c", script, &name]).ok();
    }
    scene.run(&["resize", "-f", "raw", &name, "30M"]).ok();
    let old = scene.ceph.name("disk@old");
    scene.run(&["compare", "-f", "raw", "-F", "raw", "disk.raw", &old]).ok();
    scene.qemu(&["convert", "-f", "raw", "-O", "raw", &name, "theirs.raw"]);
    scene.run(&["convert", "-f", "raw", "-O", "raw", &name, "ours.raw"]).ok();
    let read = |name: &str| std::fs::read(scene.scratch.file(name)).unwrap();
    let (ours, theirs) = (read("ours.raw"), read("theirs.raw"));
    assert_eq!((ours.len(), theirs.len()), (30 << 20, 30 << 20));
    assert!(ours == theirs, "holes differ");
    assert!(ours[5 << 20..(5 << 20) + 4096].iter().all(|byte| *byte == 0));
    let refused = scene.run(&["io", "-f", "raw", "-c", "write 0 512", &old]).fails();
    assert!(refused.contains("only read") || refused.contains("read-only"), "{refused}");
    scene.run(&["resize", "-f", "raw", "--shrink", &name, "8M"]).ok();
    assert!(scene.ceph.rbd(["info", "rbd/disk"]).contains("size 8 MiB"));
    // Nobody has it open any more.
    scene.ceph.rbd(["snap", "purge", "--no-progress", "rbd/disk"]);
    scene.ceph.rbd(["rm", "--no-progress", "rbd/disk"]);
}

#[test]
fn what_is_wrong_is_said_and_a_key_never_is() {
    let scene = Scene::new(Objects::Memory);
    let name = scene.image("disk", 24);
    let key = scene.ceph.key("client.admin");
    scene.scratch.write("key", key.as_bytes());
    scene.scratch.write("wrong", b"AQBhushhushhushhushhushhushhushhushhush==");
    let secret = |file: &str| format!("secret,id=k,file={}", scene.scratch.name(file));
    let conf = scene.ceph.conf();
    let monitors = std::fs::read_to_string(&conf).unwrap();
    let monitors = monitors.lines().find(|line| line.starts_with("mon_host")).unwrap();
    let port = monitors.split("v1:127.0.0.1:").nth(1).unwrap().trim_end_matches(']').to_owned();
    let drive = format!(
        "driver=rbd,pool=rbd,image=disk,user=admin,key-secret=k,server.0.host=127.0.0.1,server.0.port={port}"
    );
    let run = |file: &str| {
        let words = ["info", "--object", &secret(file), "--image-opts", &drive];
        scene.run(&words).env("COWHAND_LOG", "trace").outcome()
    };
    let found = run("key");
    assert!(found.stdout.contains("virtual size: 24 MiB"), "{found}");
    let refused = run("wrong");
    assert!(!refused.status.success(), "{refused}");
    let named = scene.run(&["info", &format!("{name}:key={key}")]).env("COWHAND_LOG", "trace").outcome();
    assert!(named.stderr.contains("key-secret"), "{named}");
    for outcome in [found, refused, named] {
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!said.contains(&key) && !said.contains("hushhush"), "{said}");
    }
    for (name, what) in [
        (scene.ceph.name("none"), r#"image "none": No such file"#),
        (name.replace("rbd/disk", "nopool/disk"), r#"pool "nopool": No such file"#),
        (scene.ceph.name("disk@none"), r#"snapshot "none": No such file"#),
        (format!("{name}:id=nobody"), "the cluster: "),
        ("rbd:rbd/disk:conf=/none".to_owned(), r#"configuration file "/none""#),
    ] {
        let said = scene.run(&["info", &name]).fails();
        assert!(said.contains(what), "{said}");
    }
}

/// A directory in which the loader finds `librbd.so.1` before the system's: bytes that are no library.
#[test]
fn without_a_library_the_package_is_named() {
    let scratch = Scratch::new();
    scratch.write("librbd.so.1", b"no library");
    let run = cowhand(["info", "rbd:rbd/disk"]).env("LD_LIBRARY_PATH", scratch.path());
    let said = run.fails();
    assert!(said.contains("librbd.so.1") && said.contains("apt install librbd1"), "{said}");
}

/// Children of a process, and theirs, whose command line has this word.
fn workers_of(server: &Server) -> Vec<i32> {
    let children = |pid: i32| -> Vec<i32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists
            .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    };
    let is_worker = |pid: &i32| {
        std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("rbd-worker"))
    };
    let starters = children(i32::try_from(server.pid()).expect("a process number"));
    starters.into_iter().flat_map(children).filter(is_worker).collect()
}

fn serve(name: &str) -> Server {
    let start = Start::new(["-f", "raw", "--sandbox", "on"]).arg(format!("id=disk,file={name}"));
    start.listen().unwrap_or_else(|error| panic!("{}", error.0))
}

fn fio(server: &Server, seconds: &str) -> Run {
    let uri = format!("--uri={}", server.uri("disk"));
    Run::new("fio").limit(Duration::from_secs(300)).args([
        "--name=rbd",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--size=16m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--do_verify=1",
        "--loops=1",
        "--fsync=32",
        "--rate_iops=400",
        &format!("--runtime={seconds}"),
        "--output-format=terse",
    ])
}

/// librbd's cache had what was acknowledged, and a worker that was killed took it along.
#[test]
fn a_worker_that_is_killed_under_load_loses_no_byte() {
    let scene = Scene::new(Objects::Memory);
    let name = scene.image("disk", 16);
    let server = serve(&name);
    let load = fio(&server, "20");
    let load = std::thread::spawn(move || load.ok());
    let mut killed = 0;
    while !load.is_finished() && killed < 2 {
        std::thread::sleep(Duration::from_secs(2));
        for worker in workers_of(&server) {
            let pid = rustix::process::Pid::from_raw(worker).unwrap();
            killed += i32::from(rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok());
        }
    }
    load.join().unwrap();
    assert!(killed > 0, "no worker was found");
    server.stop();
}

#[test]
fn an_osd_that_is_killed_and_comes_back_costs_time_and_no_byte() {
    let mut scene = Scene::new(Objects::File);
    let name = scene.image("disk", 16);
    let server = serve(&name);
    let load = fio(&server, "15");
    let load = std::thread::spawn(move || load.ok());
    std::thread::sleep(Duration::from_secs(3));
    assert!(!load.is_finished());
    scene.ceph.kill_osd();
    scene.ceph.restart_osd();
    load.join().unwrap();
    server.stop();
    scene.run(&["convert", "-f", "raw", "-O", "raw", &name, "ours.raw"]).ok();
    scene.qemu(&["compare", "-f", "raw", "-F", "raw", "ours.raw", &name]);
}
