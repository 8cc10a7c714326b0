//! Disks in a Ceph cluster: cowhand and QEMU see the same bytes in them, and nothing is lost when a process of either side is killed.

use std::time::Duration;

use black_box::bytes::are_all;
use black_box::ceph::{Objects, kill_workers_of};
use black_box::qmp::Qmp;
use black_box::server::{Server, Start};
use black_box::{Ceph, Run, Scratch, cowhand, metrics};
use serde_json::{Value, json};

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

/// Glance, Cinder and Nova have the image made by the tool that fills it.
#[test]
fn images_are_made_in_the_cluster_where_none_of_the_name_is() {
    let scene = Scene::new(Objects::Memory);
    let [raw, copy, qcow2, filled] = ["raw", "copy", "qcow2", "filled"].map(|name| scene.ceph.name(name));
    scene.run(&["create", "-f", "raw", &raw, "24M"]).ok();
    assert!(scene.ceph.rbd(["info", "rbd/raw"]).contains("size 24 MiB"));
    let said = scene.run(&["create", "-f", "raw", &raw, "24M"]).fails();
    assert!(said.contains("File exists"), "{said}");
    scene.run(&["convert", "-f", "raw", "-O", "raw", "disk.raw", &copy]).ok();
    scene.qemu(&["compare", "-f", "raw", "-F", "raw", "disk.raw", &copy]);
    let said = scene.run(&["convert", "-f", "raw", "-O", "raw", "disk.raw", &copy]).fails();
    assert!(said.contains("File exists"), "{said}");
    scene.run(&["create", "-f", "qcow2", &qcow2, "24M"]).ok();
    scene.qemu(&["check", "-f", "qcow2", &qcow2]);
    scene.run(&["convert", "-f", "raw", "-O", "qcow2", "disk.raw", &filled]).ok();
    scene.qemu(&["check", "-f", "qcow2", &filled]);
    scene.qemu(&["compare", "-f", "raw", "-F", "qcow2", "disk.raw", &filled]);
    let said =
        scene.run(&["create", "-f", "raw", "-o", "preallocation=full", &scene.ceph.name("x"), "1M"]).fails();
    assert!(said.contains("preallocation is off there"), "{said}");
}

/// Images that OpenStack encrypts in the cluster: librbd decrypts them for QEMU, and here.
#[test]
fn images_that_librbd_encrypts_are_read_and_written_as_qemu_does() {
    let scene = Scene::new(Objects::Memory);
    scene.scratch.write("passphrase", b"hush");
    scene.scratch.write("other", b"other");
    let secret = format!("secret,id=k,file={}", scene.scratch.name("passphrase"));
    let other = format!("secret,id=k,file={}", scene.scratch.name("other"));
    let conf = scene.ceph.conf().display().to_string();
    for (image, version, formats) in
        [("one", "luks1", ["luks", "luks-any"]), ("two", "luks2", ["luks2", "luks-any"])]
    {
        // The header takes space of the image.
        scene.image(image, 48);
        let passphrase = scene.scratch.name("passphrase");
        scene.ceph.rbd(["encryption", "format", &format!("rbd/{image}"), version, &passphrase]);
        let drive = |format: &str| {
            format!(
                "driver=raw,size=24M,file.driver=rbd,file.pool=rbd,file.image={image},file.conf={conf},\
                 file.encrypt.format={format},file.encrypt.key-secret=k"
            )
        };
        let [exact, any] = formats.map(drive);
        let written =
            ["convert", "-n", "--object", &secret, "-f", "raw", "--target-image-opts", "disk.raw", &exact];
        scene.run(&written).ok();
        let same = |drive: &str| {
            let words =
                ["compare", "--object", &secret, "--image-opts", "driver=raw,file.filename=disk.raw", drive];
            words.map(str::to_owned)
        };
        let theirs = same(&exact);
        scene.qemu(&theirs.each_ref().map(String::as_str));
        for drive in [&exact, &any] {
            let ours = same(drive);
            scene.run(&ours.each_ref().map(String::as_str)).ok();
        }
        // A range that was zeroed or discarded reads as zeroes, not as what zeroes decrypt to.
        for command in ["write -z 1M 5M", "write -z -u 8M 4M", "write -P 9 13M 70000"] {
            let words = ["--object", &secret, "--image-opts", &exact, "-c", command, "-c", "flush"];
            scene.run(&[&["io"][..], &words].concat()).ok();
            let words =
                ["--object", &secret, "--image-opts", "driver=raw,file.filename=disk.raw", "-c", command];
            scene.run(&[&["io"][..], &words].concat()).ok();
        }
        scene.qemu(&theirs.each_ref().map(String::as_str));
        let wrong = ["info", "--object", &other, "--image-opts", &exact];
        let said = scene.run(&wrong).fails();
        assert!(said.contains("encryption") && !said.contains("other"), "{said}");
    }
    let plain = scene.image("plain", 24);
    drop(plain);
    let drive = format!(
        "driver=rbd,pool=rbd,image=plain,conf={conf},encrypt.format=luks2,encrypt.key-secret=k,auth-client-required.0=cephx"
    );
    let said = scene.run(&["info", "--object", &secret, "--image-opts", &drive]).fails();
    assert!(said.contains("encryption"), "{said}");
    let drive = format!("driver=rbd,pool=rbd,image=plain,conf={conf},auth-client-required.0=none");
    let said = scene.run(&["info", "--image-opts", &drive]).fails();
    assert!(said.contains("the cluster"), "{said}");
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
    assert!(are_all(&ours[5 << 20..(5 << 20) + 4096], 0));
    let refused = scene.run(&["io", "-f", "raw", "-c", "write 0 512", &old]).fails();
    assert!(refused.contains("only read") || refused.contains("read-only"), "{refused}");
    scene.run(&["resize", "-f", "raw", "--shrink", &name, "8M"]).ok();
    assert!(scene.ceph.rbd(["info", "rbd/disk"]).contains("size 8 MiB"));
    // No process has it open any more.
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
        killed += kill_workers_of(&server);
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

/// Two tenants have an image of one name, and each has its own bytes.
#[test]
fn a_namespace_of_a_pool_is_a_place_of_its_own() {
    let scene = Scene::new(Objects::Memory);
    scene.ceph.rbd(["namespace", "create", "rbd/tenant"]);
    scene.ceph.rbd(["create", "-s", "24M", "rbd/tenant/disk"]);
    let (outside, inside) = (scene.image("disk", 24), scene.ceph.name("tenant/disk"));
    scene.run(&["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", &inside]).ok();
    scene.qemu(&["compare", "-f", "raw", "-F", "raw", "disk.raw", &inside]);
    let conf = scene.ceph.conf();
    let old = format!(
        "driver=raw,file.driver=rbd,file.pool=rbd,file.namespace=tenant,file.image=disk,file.snapshot=old,file.conf={}",
        conf.display()
    );
    scene.ceph.rbd(["snap", "create", "rbd/tenant/disk@old"]);
    scene.run(&["io", "-f", "raw", "-c", "write -P 9 0 1M", &inside]).ok();
    scene.run(&["compare", "-F", "raw", &old, "disk.raw"]).ok();
    let zeroes = scene.run(&["io", "-f", "raw", "-c", "read -P 0 0 24M", &outside]).ok();
    assert!(zeroes.contains("read 25165824/25165824"), "{zeroes}");
}

/// One disk has its requests fail in time, the other one has them wait.
#[test]
fn a_cluster_that_rests_is_an_error_in_time_or_waited_for_and_reported_of_over_qmp() {
    let scene = Scene::new(Objects::Memory);
    let exports = ["first", "waits", "fails"];
    for name in exports {
        // The lock of a client that is gone would be held for half a minute.
        let image = format!("rbd/{name}");
        scene.ceph.rbd(["create", "-s", "16M", "--image-feature", "layering", &image]);
    }
    let control = scene.scratch.file("qmp");
    let start = Start::new(["-f", "raw", "--sandbox", "on", "--qmp"]).arg(&control);
    let start = start.arg(format!("id=first,file={}", scene.ceph.name("first"))).listen();
    let mut server = start.unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let mut qmp = Qmp::connect(&control);
    for (name, more) in
        [("waits", ("on-remote-error", json!("wait"))), ("fails", ("remote-timeout", json!(2)))]
    {
        let mut file = json!({ "driver": "rbd", "pool": "rbd", "image": name, "conf": scene.ceph.conf() });
        file[more.0] = more.1;
        qmp.ok("blockdev-add", json!({ "driver": "raw", "node-name": name, "file": file }));
        let export = json!({ "type": "nbd", "id": name, "name": name, "node-name": name, "writable": true });
        qmp.ok("block-export-add", export);
        server.client(name).write(0, &[7; 4096]).expect("the cluster is there");
    }
    scene.ceph.stop_osd();
    std::thread::scope(|scope| {
        let [waits, fails] = ["waits", "fails"].map(|name| {
            let mut client = server.client(name);
            scope.spawn(move || client.write(4096, &[8; 4096]).is_ok())
        });
        // Answered while the OSD rests; the other one waits for its end.
        assert!(!fails.join().expect("an answer"));
        assert!(!waits.is_finished());
        scene.ceph.continue_osd();
        assert!(waits.join().expect("an answer"));
    });
    for name in ["waits", "fails"] {
        let mut client = server.client(name);
        assert!(client.read(0, 4096).expect("the cluster is there") == [7; 4096]);
    }
    // The library's processes are killed, and others take their place when the cluster answers; both are reported.
    let mut lost = std::thread::scope(|scope| {
        scope.spawn(|| scene.ceph.rest_osd(Duration::from_secs(4)));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(kill_workers_of(&server), 3);
        for name in exports {
            let mut client = server.client(name);
            scope.spawn(move || client.read(0, 4096).is_ok());
        }
        exports.map(|_| qmp.event("X_REMOTE_LOST")["data"]["name"].take())
    });
    lost.sort_by_key(Value::to_string);
    assert!(
        lost.iter().all(|name| name.as_str().is_some_and(|name| name.starts_with("rbd:rbd/"))),
        "{lost:?}"
    );
    for name in exports {
        assert!(server.client(name).read(0, 4096).is_ok(), "{name} does not come back");
    }
    lost.iter().for_each(|_| drop(qmp.event("X_REMOTE_BACK")));
    let servers = qmp.ok("x-query-remotes", json!({}))["servers"].take();
    let servers = servers.as_array().expect("a list");
    assert_eq!(servers.len(), 3, "{servers:?}");
    let is_back = |server: &Value| server["reachable"] == true && server["losses"] == 1;
    assert!(servers.iter().all(is_back), "{servers:?}");
    server.stop();
}

/// A disk grows while it is served, in an image that is too short for it, and when it is not.
#[test]
fn a_disk_is_resized_raw_and_as_qcow2() {
    let scene = Scene::new(Objects::Memory);
    let (raw, image) = (scene.image("raw", 16), scene.ceph.name("image"));
    scene.qemu(&["create", "-q", "-f", "qcow2", &image, "16M"]);
    for (name, format) in [(&raw, "raw"), (&image, "qcow2")] {
        let control = scene.scratch.file("qmp");
        let start = Start::new(["-f", format, "--qmp"]).arg(&control);
        let server = start.arg(format!("id=disk,node-name=disk,file={name}")).listen();
        let server = server.unwrap_or_else(|error| panic!("{}", error.0));
        let mut qmp = Qmp::connect(&control);
        let larger = json!({ "node-name": "disk", "size": 24 << 20 });
        qmp.ok("block_resize", larger);
        let end: u64 = 24 << 20;
        let mut client = server.client("disk");
        assert_eq!(client.size(), end);
        client.write(end - 4096, &[7; 4096]).expect("a write at the end");
        client.flush().expect("the cluster is there");
        drop(client);
        server.stop();
        scene.run(&["resize", "-f", format, name, "32M"]).ok();
        let [end, rest] =
            [format!("read -P 7 {} 4096", end - 4096), format!("read -P 0 {end} {}", (32 << 20) - end)];
        let script = ["-f", format, "-c", &end, "-c", &rest, name];
        let theirs = Run::new("qemu-io").args(script).limit(Duration::from_secs(120)).ok();
        assert!(!theirs.contains("failed"), "{theirs}");
        let info: Value =
            serde_json::from_str(&scene.qemu(&["info", "-f", format, "--output", "json", name])).unwrap();
        assert_eq!(info["virtual-size"], 32 << 20, "{info}");
    }
    scene.qemu(&["check", "-f", "qcow2", &image]);
    let refused = scene.run(&["resize", "-f", "raw", &raw, "8M"]).fails();
    assert!(refused.contains("--shrink"), "{refused}");
}

/// An image that a command adds to a server in its sandbox without one: it has no process for that and starts none.
#[test]
fn a_server_in_its_sandbox_says_that_an_image_must_be_on_its_command_line() {
    let scratch = Scratch::new();
    let (disk, control) = (scratch.write("disk.raw", &[0; 4096]), scratch.file("qmp"));
    let add = json!({ "driver": "raw", "node-name": "n", "file": { "driver": "rbd", "pool": "rbd", "image": "disk" } });
    let start = Start::new(["-f", "raw", "--qmp"]).arg(&control).arg(disk);
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    let mut qmp = Qmp::connect(&control);
    let refused = qmp.refused("blockdev-add", add);
    assert!(refused.contains("starts none unless a drive of its command line is one"), "{refused}");
    assert!(qmp.ok("query-named-block-nodes", json!({})).to_string().contains("disk.raw"));
    server.stop();
}

/// `status`, the query, events and metrics say of an image's cluster what they say of any server.
#[test]
fn a_cluster_that_is_lost_and_comes_back_is_reported_of_everywhere() {
    let scene = Scene::new(Objects::Memory);
    // The lock of a client that is gone would be held for half a minute.
    scene.ceph.rbd(["create", "-s", "16M", "--image-feature", "layering", "rbd/disk"]);
    let control = scene.scratch.file("qmp");
    let start = Start::new(["-f", "raw", "--metrics", "127.0.0.1:0", "--qmp"]).arg(&control);
    let start = start.arg(format!("id=disk,file={}", scene.ceph.name("disk"))).listen();
    let mut server = start.unwrap_or_else(|error| panic!("{}", error.0));
    let (figures, mut qmp) = (metrics::address(&mut server), Qmp::connect(&control));
    let status = || cowhand(["status"]).arg(&control).ok();
    let figure =
        |name: &str| metrics::figure(&figures, &format!("cowhand_remote_{name}{{server=\"rbd:rbd/disk\"}}"));
    assert!(figure("reachable") > 0.5 && figure("losses_total") < 0.5);
    std::thread::scope(|scope| {
        scope.spawn(|| scene.ceph.rest_osd(Duration::from_secs(4)));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(kill_workers_of(&server), 1);
        let mut client = server.client("disk");
        let reader = scope.spawn(move || client.read(0, 4096).is_ok());
        let lost = qmp.event("X_REMOTE_LOST")["data"].take();
        let error = lost["error"].as_str().unwrap_or_default();
        assert!(lost["name"] == "rbd:rbd/disk" && !error.is_empty(), "{lost}");
        assert!(figure("reachable") < 0.5);
        assert!(status().contains("server rbd:rbd/disk: lost for "), "{}", status());
        assert!(reader.join().expect("an answer"), "it waits for another process");
    });
    assert_eq!(qmp.event("X_REMOTE_BACK")["data"]["name"], "rbd:rbd/disk");
    assert!(figure("reachable") > 0.5 && (figure("losses_total") - 1.0).abs() < 0.5);
    assert!(status().contains("server rbd:rbd/disk: reachable, was lost once"), "{}", status());
    server.stop();
}

/// Where no librbd is at all, and not a broken one: an empty directory lies over the places in which the loader looks.
#[test]
fn where_there_is_no_library_a_disk_is_refused_in_plain_words_and_others_are_served() {
    let scratch = Scratch::new();
    let (hidden, disk) = (scratch.write("empty", b""), scratch.write("disk.raw", &[0; 4096]));
    // What the loader's cache names is a file of no bytes then, under each of its names.
    let script = r#"for file in $(ldconfig -p | sed -n 's/.*librbd.* => //p'); do mount --bind "$0" "$(readlink -f "$file")" || exit 9; done; exec "$@""#;
    let under = |words: &[&str]| {
        let program = black_box::program::path();
        Run::new("unshare").args(["--mount", "sh", "-c", script]).arg(&hidden).arg(program).args(words)
    };
    let said = under(&["info", "rbd:rbd/disk"]).fails();
    assert!(said.contains("librbd.so.1") && said.contains("apt install librbd1"), "{said}");
    let info = under(&["info", "-f", "raw", disk.to_str().expect("a path")]).ok();
    assert!(info.contains("virtual size: 4 KiB"), "{info}");
}

/// docs/reference/remote.md has the table; the other drivers' are in `far_tools.rs`.
#[test]
fn tools_say_of_an_image_what_they_say_of_its_file() {
    let scene = Scene::new(Objects::Memory);
    let (raw, image) = (scene.image("raw", 24), scene.ceph.name("image"));
    scene.run(&["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", &raw]).ok();
    scene.qemu(&["create", "-q", "-f", "qcow2", &image, "24M"]);
    scene.run(&["convert", "-n", "-f", "raw", "-O", "qcow2", "disk.raw", &image]).ok();
    let sum = |format: &str, name: &str| {
        scene.run(&["verify", "-f", format, name]).ok().split(' ').next().map(str::to_owned)
    };
    let bytes = |name: &str| std::fs::read(scene.scratch.file(name)).expect("a file");
    for (name, format) in [(&raw, "raw"), (&image, "qcow2")] {
        assert_eq!(sum(format, name), sum("raw", "disk.raw"));
        scene.run(&["measure", "-f", format, "-O", "qcow2", name]).ok();
        scene
            .run(&["dd", "-f", format, &format!("if={name}"), "of=part.raw", "bs=64k", "skip=3", "count=40"])
            .ok();
        assert!(bytes("part.raw") == bytes("disk.raw")[3 << 16..40 << 16]);
        // Of the qcow2 disk by a bitmap, which the image keeps.
        for _ in 0..2 {
            scene.run(&["backup", "-f", format, name, "points"]).ok();
        }
        let points = scene.run(&["backup", "--list", "points"]).ok();
        assert_eq!(points.contains("incremental"), format == "qcow2", "{points}");
        scene.run(&["backup", "--restore", "points", "restored.qcow2"]).ok();
        scene.run(&["compare", "-f", "qcow2", "-F", "raw", "restored.qcow2", "disk.raw"]).ok();
        std::fs::remove_file(scene.scratch.file("restored.qcow2")).expect("it was made");
        std::fs::remove_file(scene.scratch.file("part.raw")).expect("it was made");
        std::fs::remove_dir_all(scene.scratch.file("points")).expect("a directory");
    }
    scene.run(&["snapshot", "-c", "point", &image]).ok();
    scene.run(&["io", "-c", "write -P 9 1M 64k", &image]).ok();
    scene.run(&["snapshot", "-a", "point", &image]).ok();
    scene.run(&["amend", "-o", "lazy_refcounts=on", &image]).ok();
    scene.run(&["check", "-r", "all", &image]).ok();
    scene.qemu(&["compare", "-f", "qcow2", "-F", "raw", &image, "disk.raw"]);
    for words in [
        &["create", "-f", "raw", &raw, "6M"][..],
        &["convert", "-f", "raw", "-O", "raw", "disk.raw", &raw],
        &["dd", "-f", "raw", "if=disk.raw", &format!("of={raw}")],
    ] {
        let said = scene.run(words).fails();
        assert!(said.contains("File exists"), "an image that is there stays: {said}");
    }
}
