//! `qemu-storage-daemon`.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use black_box::Run;
use black_box::peer::{newer_qemu, newest_qemu, qemu_io_ok};
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::{Server, contexts, gone, images, ours, seen};

/// A client of the monitor at `q`.
fn ask(directory: &Path, commands: &[Value]) -> Vec<Value> {
    let script = commands.iter().map(|command| format!("{command}\n")).collect::<String>();
    let script = format!("{{\"execute\":\"qmp_capabilities\"}}\n{script}");
    let talk = format!(
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect('{}/q')\nf = s.makefile('rw')\nf.readline()\n\
         for line in sys.stdin:\n    f.write(line)\n    f.flush()\n    print(f.readline(), end='')\n",
        directory.display()
    );
    let reported = Run::new("python3").args(["-c", &talk]).input(script).ok();
    reported.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

const FILE: &str = "driver=file,node-name=f,filename=disk.qcow2";

#[test]
fn clients_see_what_they_see_of_qemus() {
    let node = r#"{"driver":"qcow2","node-name":"n","file":"f"}"#;
    let server = "addr.type=unix,addr.path=SOCKET";
    let table: [(&str, &[&str]); 4] = [
        (
            "n",
            &[
                "--blockdev",
                FILE,
                "--blockdev",
                node,
                "--nbd-server",
                server,
                "--export",
                "nbd,id=e,node-name=n",
            ],
        ),
        (
            "disk",
            &[
                "--nbd-server",
                server,
                "--blockdev",
                "qcow2,node-name=n,file.driver=file,file.filename=disk.qcow2,cache.direct=off",
                "--export",
                "type=nbd,id=e,node-name=n,name=disk,description=words,writable=on,bitmaps.0=daily,allocation-depth=on",
            ],
        ),
        (
            "n",
            &[
                "--object",
                "throttle-group,id=g,limits.iops-total=1000000",
                "--blockdev",
                FILE,
                "--blockdev",
                node,
                "--blockdev",
                "throttle,node-name=t,throttle-group=g,file=n",
                "--nbd-server",
                r#"{"addr":{"type":"unix","path":"SOCKET"},"max-connections":7}"#,
                "--export",
                r#"{"type":"nbd","id":"e","node-name":"t","name":"n","writable":true}"#,
            ],
        ),
        (
            "r",
            &[
                "--blockdev",
                "driver=raw,node-name=n,file.driver=file,file.filename=disk.raw,read-only=on",
                "--nbd-server",
                server,
                "--export",
                "nbd,id=e,node-name=n,name=r,writable=off",
            ],
        ),
    ];
    for (name, args) in table {
        let look = |program: &Path| {
            let scratch = images();
            let args: Vec<_> = args.iter().map(|word| word.replace("SOCKET", &scratch.name("s"))).collect();
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            let server = Server::start(program, scratch.path(), &args);
            // The export follows the socket.
            let uri = server.uri(name);
            let copy = scratch.name("copy.raw");
            drop(Run::new("nbdcopy").args([&uri, &copy]).ok());
            (seen(&uri), contexts(&uri), std::fs::read(&copy).expect("a copy"))
        };
        let theirs = look(Path::new("qemu-storage-daemon"));
        let ours = look(&ours("qemu-storage-daemon"));
        assert_eq!((&ours.0, &ours.1), (&theirs.0, &theirs.1), "{args:?}");
        assert!(ours.2 == theirs.2, "{args:?}: the content differs");
    }
}

#[test]
fn a_fault_injector_without_a_user_is_called_as_by_qemus() {
    let Some(newest) = newest_qemu() else { return };
    let look = |program: &Path| {
        let scratch = images();
        let image = json!({ "driver": "file", "filename": scratch.name("disk.raw") });
        let node = json!({ "driver": "blkdebug", "node-name": "b", "image": image });
        let commands = [
            json!({ "execute": "qmp_capabilities" }),
            json!({ "execute": "blockdev-add", "arguments": node }),
            json!({ "execute": "query-named-block-nodes" }),
            json!({ "execute": "quit" }),
        ];
        let input: String = commands.iter().map(|command| format!("{command}\n")).collect();
        let said = Run::new(program).args(["--chardev", "stdio,id=m", "--monitor", "m"]).input(input).ok();
        let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let nodes = lines.filter_map(|line| line["return"].as_array().cloned()).flatten();
        let node = nodes.into_iter().find(|node| node["node-name"] == "b").expect("the node");
        let name = |value: &Value| value.as_str().unwrap_or_default().replace(&scratch.name(""), "");
        (name(&node["file"]), name(&node["image"]["filename"]), node["image"]["virtual-size"].clone())
    };
    assert_eq!(look(&ours("qemu-storage-daemon")), look(&newest.join("qemu-storage-daemon")));
}

#[test]
fn in_the_background_it_is_steered_by_its_monitor_until_it_quits() {
    let scratch = images();
    let words = [
        "--daemonize",
        "--pidfile",
        "pid",
        "--chardev",
        "socket,id=c,path=q,server=on,wait=off",
        "--monitor",
        "chardev=c,mode=control",
        "--nbd-server",
        "addr.type=unix,addr.path=s",
    ];
    drop(Run::new(ours("qemu-storage-daemon")).args(words).current_dir(scratch.path()).ok());
    assert!(scratch.file("pid").exists());
    // Names of files start at the root in the background, as with QEMU.
    let node = json!({ "driver": "qcow2", "node-name": "n", "file": { "driver": "file", "filename": scratch.name("disk.qcow2") } });
    let export = json!({ "type": "nbd", "id": "e", "node-name": "n", "writable": true });
    let answers = ask(
        scratch.path(),
        &[
            json!({ "execute": "blockdev-add", "arguments": node }),
            json!({ "execute": "block-export-add", "arguments": export }),
            json!({ "execute": "query-block-exports" }),
            json!({ "execute": "query-version" }),
        ],
    );
    assert!(answers.iter().all(|answer| answer.get("return").is_some()), "{answers:?}");
    assert_eq!(answers[2]["return"][0]["id"], "e");
    assert_eq!(answers[3]["return"]["qemu"], json!({ "major": 11, "minor": 1, "micro": 0 }));
    let uri = format!("nbd+unix:///n?socket={}", scratch.name("s"));
    qemu_io_ok(&["-f", "raw"], &uri, &["write -P 9 2M 64k"]);
    ask(scratch.path(), &[json!({ "execute": "quit" })]);
    gone(&scratch.file("q"));
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("disk.qcow2"), &["read -P 9 2M 64k", "read -P 1 0 1M"]);
    // As QEMU's does, it leaves the name of the NBD server, which callers remove, and that alone.
    assert!(scratch.file("s").exists() && !scratch.file("pid").exists());
}

#[test]
fn options_are_done_in_their_order_and_what_is_not_done_here_is_refused_by_name() {
    let scratch = images();
    let node = ["--blockdev", FILE, "--blockdev", "qcow2,node-name=n,file=f"];
    let export = ["--export", "nbd,id=e,node-name=n"];
    let late = [&export[..], &node].concat();
    let table: [(&[&str], &str); 12] = [
        (&late, "--export nbd,id=e,node-name=n"),
        (&["--export", "fuse,id=e,node-name=n,mountpoint=x"], "fuse"),
        (&["--export", "vduse-blk,id=e,node-name=n,name=x"], "vduse-blk"),
        (&["--object", "secret_keyring,id=a,serial=1"], "key 1 of the kernel's keyrings"),
        (&["--chardev", "pty,id=c"], "--chardev pty"),
        (&["--monitor", "c"], "\"c\""),
        (&["--nbd-server", "addr.type=fd,addr.str=3"], "fd"),
        (&["--nbd-server", "addr.type=unix,addr.path=s,tls-authz=a"], "tls-authz"),
        (&["--blockdev", "driver=qed,node-name=n,file=f"], "qed"),
        (&["--blockdev", "driver=qcow2,node-name=n,file=f,nonsense=1"], "nonsense"),
        (&["--trace", "x"], "-T x"),
        (&["--nonsense"], "--nonsense"),
    ];
    for (words, named) in table {
        let refused = Run::new(ours("qemu-storage-daemon")).args(words).current_dir(scratch.path()).fails();
        assert!(
            refused.starts_with("qemu-storage-daemon: ") && refused.contains(named),
            "{words:?}: {refused}"
        );
        assert!(!scratch.file("s").exists(), "{words:?}");
    }
}

/// What callers of QEMU's daemon rely on, and ours under its own name does otherwise (docs/reference/compat.md).
#[test]
fn callers_are_answered_as_by_qemus() {
    let command = |name: &str, arguments: Value| json!({ "execute": name, "arguments": arguments });
    let look = |program: &Path| {
        let scratch = images();
        let node =
            format!("driver=qcow2,node-name=n,file.driver=file,file.filename={}", scratch.name("disk.qcow2"));
        let monitor = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        let options = ["--daemonize", "--object", "iothread,id=i", "--blockdev", &node];
        let daemon = Run::new(program).args([&options[..], &monitor].concat()).current_dir(scratch.path());
        drop(daemon.ok());
        let there = scratch.name("there");
        std::fs::write(&there, vec![1; 1 << 20]).expect("a file");
        let answers = ask(
            scratch.path(),
            &[
                command("blockdev-del", json!({ "node-name": "x" })),
                command(
                    "block-export-add",
                    json!({ "type": "vhost-user-blk", "id": "v", "node-name": "n", "iothread": "zz",
                        "addr": { "type": "unix", "path": "v" } }),
                ),
                command("block-commit", json!({ "device": "x" })),
                command("block_resize", json!({ "node-name": "n", "size": 1 << 20 })),
                command(
                    "blockdev-snapshot-sync",
                    json!({ "node-name": "n", "snapshot-file": there, "snapshot-node-name": "o" }),
                ),
            ],
        );
        ask(scratch.path(), &[json!({ "execute": "quit" })]);
        gone(&scratch.file("q"));
        let classes = answers.iter().map(|answer| answer["error"]["class"].clone()).collect::<Vec<_>>();
        let gone = "Failed to find node with node-name='x'";
        let said = answers[0]["error"]["desc"].as_str().map(|desc| desc.contains(gone));
        (classes, said)
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!((&ours.0[1], &ours.0[2]), (&json!("GenericError"), &json!("DeviceNotFound")));
}

/// A group of limits over an image, with the same options at each node: how Proxmox describes a disk.
#[test]
fn a_limited_disk_may_say_at_each_node_how_it_is_opened() {
    let look = |program: &Path| {
        let scratch = images();
        let monitor = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        let daemon = Run::new(program).arg("--daemonize").args(monitor).current_dir(scratch.path());
        drop(daemon.ok());
        let opened = |mut node: Value| {
            node["cache"] = json!({ "direct": false, "no-flush": false });
            node["discard"] = json!("unmap");
            node["detect-zeroes"] = json!("unmap");
            node["read-only"] = json!(false);
            node
        };
        let file = opened(
            json!({ "driver": "file", "node-name": "e", "aio": "io_uring", "filename": scratch.name("disk.qcow2") }),
        );
        let image = opened(json!({ "driver": "qcow2", "node-name": "f", "file": file }));
        let group = json!({ "qom-type": "throttle-group", "id": "g", "limits": {} });
        let limited =
            opened(json!({ "driver": "throttle", "node-name": "d", "throttle-group": "g", "file": image }));
        let mut qmp = Qmp::connect(&scratch.file("q"));
        qmp.ok("object-add", group);
        qmp.ok("blockdev-add", limited);
        qmp.ok(
            "nbd-server-start",
            json!({ "addr": { "type": "unix", "data": { "path": scratch.name("n") } } }),
        );
        qmp.ok("block-export-add", json!({ "type": "nbd", "id": "x", "node-name": "d", "writable": true }));
        let uri = format!("nbd+unix:///d?socket={}", scratch.name("n"));
        qemu_io_ok(&["-f", "raw"], &uri, &["write -P 0 0 64k", "read -P 0 0 64k"]);
        qmp.ok("block-export-del", json!({ "id": "x", "mode": "hard" }));
        let kept = qmp.ask("blockdev-del", json!({ "node-name": "f" })).is_err();
        qmp.ok("blockdev-del", json!({ "node-name": "d" }));
        let left = qmp.ok("query-named-block-nodes", json!({}));
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        let map = Run::new("qemu-img").args(["map", "--output=json", &scratch.name("disk.qcow2")]).json();
        (kept, left, map[0]["zero"].clone())
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours, (true, json!([]), json!(true)));
}

/// One file node below several disks: parts of a disk, each exported by itself, and an image whose file is read beside it.
#[test]
fn several_disks_share_one_file_node() {
    let look = |program: &Path| {
        let scratch = images();
        let monitor = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        let daemon = Run::new(program).arg("--daemonize").args(monitor).current_dir(scratch.path());
        drop(daemon.ok());
        let mut qmp = Qmp::connect(&scratch.file("q"));
        let file = |node: &str, name: &str| json!({ "driver": "file", "node-name": node, "filename": scratch.name(name) });
        let raw = |node: &str, below: &str| json!({ "driver": "raw", "node-name": node, "file": below });
        let part = |node: &str, offset: u64| {
            let mut part = raw(node, "f");
            (part["offset"], part["size"]) = (json!(offset), json!(65536));
            part
        };
        let read = |node: &str, below: &str| {
            let mut read = raw(node, below);
            read["read-only"] = json!(true);
            read
        };
        let image = |node: &str| json!({ "driver": "qcow2", "node-name": node, "file": "g" });
        let nodes = [
            file("f", "disk.raw"),
            part("a", 0),
            part("b", 65536),
            read("c", "f"),
            file("g", "disk.qcow2"),
            image("i"),
            read("j", "g"),
            // What is an image is nothing that others write.
            image("k"),
        ];
        let added = nodes.map(|node| qmp.ask("blockdev-add", node).is_ok());
        let server = json!({ "addr": { "type": "unix", "data": { "path": scratch.name("n") } } });
        qmp.ok("nbd-server-start", server);
        let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", scratch.name("n"));
        for (name, writable) in [("a", true), ("b", true), ("c", false)] {
            let export = json!({ "type": "nbd", "id": name, "node-name": name, "writable": writable });
            qmp.ok("block-export-add", export);
        }
        qemu_io_ok(&["-f", "raw"], &uri("a"), &["write -P 5 0 64k"]);
        qemu_io_ok(&["-f", "raw"], &uri("b"), &["write -P 6 0 64k"]);
        qemu_io_ok(&["-r", "-f", "raw"], &uri("c"), &["read -P 5 0 64k", "read -P 6 64k 64k"]);
        qmp.ok("block-export-del", json!({ "id": "a", "mode": "hard" }));
        let gone_first = qmp.ask("blockdev-del", json!({ "node-name": "a" })).is_ok();
        // The file stays locked for those who are left.
        let disk = scratch.name("disk.raw");
        let locked = Run::new("qemu-io").args(["-f", "raw", "-c", "write 0 512", &disk]).outcome();
        let below = qmp.ask("blockdev-del", json!({ "node-name": "f" })).is_ok();
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        ((added, gone_first, below), locked.stderr.contains("lock"))
    };
    let (ours, locked) = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")).0);
    assert_eq!(ours, ([true, true, true, true, true, true, true, false], true, false));
    assert!(locked);
}

/// A snapshot that is undone leaves a file that was there before it, as QEMU's does.
#[test]
fn a_failed_transaction_removes_no_file_that_was_there() {
    let look = |program: &Path| {
        let scratch = images();
        let node =
            format!("driver=qcow2,node-name=n,file.driver=file,file.filename={}", scratch.name("disk.qcow2"));
        let monitor = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        let daemon = Run::new(program).args([&["--daemonize", "--blockdev", &node][..], &monitor].concat());
        drop(daemon.current_dir(scratch.path()).ok());
        let there = scratch.name("there");
        std::fs::write(&there, vec![1; 1 << 20]).expect("a file");
        let snapshot = json!({ "node-name": "n", "snapshot-file": there, "snapshot-node-name": "o" });
        let actions = json!([
            { "type": "blockdev-snapshot-sync", "data": snapshot },
            { "type": "block-dirty-bitmap-add", "data": { "node": "nobody", "name": "b" } },
        ]);
        let answers =
            ask(scratch.path(), &[json!({ "execute": "transaction", "arguments": { "actions": actions } })]);
        let stays = Path::new(&there).exists();
        ask(scratch.path(), &[json!({ "execute": "quit" })]);
        gone(&scratch.file("q"));
        (answers[0].get("error").is_some(), stays)
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours, (true, true));
}

/// Scripts steer the daemon by a pipe: commands in, a line an answer out, and the end when they have said so.
#[test]
fn a_monitor_on_standard_input_answers_as_qemus() {
    let commands = [
        json!({ "execute": "qmp_capabilities" }),
        json!({ "execute": "block-commit", "arguments": { "device": "o", "job-id": "j" } }),
        json!({ "execute": "quit" }),
    ];
    let script = commands.iter().map(|command| format!("{command}\n")).collect::<String>();
    let look = |program: &Path| {
        let scratch = images();
        let overlay = scratch.name("o");
        let disk = scratch.name("disk.qcow2");
        drop(
            Run::new("qemu-img")
                .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &overlay])
                .ok(),
        );
        let node = format!("driver=qcow2,node-name=o,file.driver=file,file.filename={overlay}");
        let words = ["--blockdev", &node, "--chardev", "stdio,id=c", "--monitor", "chardev=c"];
        let reported = Run::new(program).args(words).input(script.clone()).current_dir(scratch.path()).ok();
        let said = |line: &str| {
            let value: Value = serde_json::from_str(line).expect("JSON");
            let mut data = value["data"].clone();
            // How far it came is chance.
            data["offset"] = Value::Null;
            (value["event"].clone(), data, line.contains("{\"return\": {}}"))
        };
        let steps = |line: &&str| !line.contains("JOB_STATUS_CHANGE") && !line.contains("BLOCK_JOB_READY");
        reported.lines().skip(1).filter(steps).map(said).collect::<Vec<_>>()
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours[2].0, "BLOCK_JOB_CANCELLED");
    assert!(ours[3].2, "the answer to quit is the last line");
}

/// A manager follows a backup by its states and by the bitmaps of its nodes.
#[test]
fn a_backup_tells_of_its_states_and_its_maps_as_qemus() {
    let look = |program: &Path| {
        let scratch = images();
        let nodes = ["a", "t", "u"].map(|name| {
            let path = scratch.name(name);
            drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", &path, "1M"]).ok());
            format!("driver=qcow2,node-name={name},file.driver=file,file.filename={path}")
        });
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("a"), &["write -P 7 0 128k"]);
        let words = nodes.iter().flat_map(|node| ["--blockdev", node]);
        let monitor = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        let export =
            ["--nbd-server", "addr.type=unix,addr.path=n", "--export", "nbd,id=e,node-name=a,writable=on"];
        let daemon = Run::new(program).arg("--daemonize").args(words).args(monitor).args(export);
        drop(daemon.current_dir(scratch.path()).ok());
        let uri = format!("nbd+unix:///a?socket={}", scratch.name("n"));
        let mut qmp = Qmp::connect(&scratch.file("q"));
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b" }));
        qemu_io_ok(&["-f", "raw"], &uri, &["write -P 1 0 64k", "write -P 2 256k 64k"]);
        let mut reported = Vec::new();
        for (target, sync, mode) in [("t", "bitmap", "never"), ("u", "top", "on-success")] {
            let backup = json!({ "device": "a", "target": target, "job-id": "j", "sync": sync, "bitmap": "b",
                "bitmap-mode": mode, "filter-node-name": "f", "auto-finalize": false });
            qmp.ok("blockdev-backup", backup);
            let mut states = Vec::new();
            while states.last() != Some(&json!("pending")) {
                states.push(qmp.event_of("JOB_STATUS_CHANGE", "id", "j")["data"]["status"].clone());
            }
            qemu_io_ok(&["-f", "raw"], &uri, &["write -P 3 512k 64k"]);
            let nodes = qmp.ok("query-named-block-nodes", json!({}));
            let bitmaps = |name: &str| {
                let found = nodes.as_array().expect("nodes").iter().find(|node| node["node-name"] == name);
                found.map(|node| node["dirty-bitmaps"].clone())
            };
            reported.push((states, bitmaps("a"), bitmaps("f")));
            qmp.ok("job-finalize", json!({ "id": "j" }));
            let ended = qmp.event_of("BLOCK_JOB_COMPLETED", "device", "j")["data"].clone();
            reported.push((vec![ended["len"].clone(), ended["offset"].clone()], None, None));
            while qmp.event_of("JOB_STATUS_CHANGE", "id", "j")["data"]["status"] != "null" {}
        }
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        reported
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours.len(), 4);
}

/// Base and overlay are added by name, the base without read-only, as Incus does it. And an image whose header names a backing file with faults.
#[test]
fn chains_open_and_are_committed_as_by_qemus() {
    let look = |program: &Path| {
        let scratch = images();
        let (disk, overlay) = (scratch.name("disk.qcow2"), scratch.name("o"));
        drop(
            Run::new("qemu-img")
                .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &overlay])
                .ok(),
        );
        qemu_io_ok(&["-f", "qcow2"], &overlay, &["write -P 7 3M 64k"]);
        let faulty = scratch.name("faulty");
        let backing = format!("blkdebug::{disk}");
        let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &backing, &faulty];
        drop(Run::new("qemu-img").args(create).ok());
        let node = |name: &str, path: &str, more: &str| {
            format!("driver=qcow2,node-name={name},file.driver=file,file.filename={path}{more}")
        };
        let words = [
            ["--blockdev", &node("base", &disk, "")],
            ["--blockdev", &node("top", &overlay, ",backing=base")],
            ["--chardev", "socket,path=q,server=on,wait=off,id=c"],
            ["--monitor", "chardev=c"],
        ];
        let daemon = Run::new(program).arg("--daemonize").args(words.concat()).current_dir(scratch.path());
        drop(daemon.ok());
        let mut qmp = Qmp::connect(&scratch.file("q"));
        qmp.ok("block-commit", json!({ "device": "top", "job-id": "j", "auto-dismiss": false }));
        while qmp.ok("query-jobs", json!({}))[0]["status"] != "ready" {}
        qmp.ok("job-complete", json!({ "id": "j" }));
        while qmp.ok("query-jobs", json!({}))[0]["status"] != "concluded" {}
        qmp.ok("job-dismiss", json!({ "id": "j" }));
        for node in ["top", "base"] {
            qmp.ok("blockdev-del", json!({ "node-name": node }));
        }
        let named = json!({ "driver": "qcow2", "node-name": "f", "read-only": true,
            "file": { "driver": "file", "filename": faulty, "read-only": true } });
        qmp.ok("blockdev-add", named);
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        qemu_io_ok(&["-U", "-r", "-f", "qcow2"], &disk, &["read -P 7 3M 64k", "read -P 1 0 1M"]);
    };
    look(Path::new("qemu-storage-daemon"));
    look(&ours("qemu-storage-daemon"));
}

/// What is added without a name has a generated one, which commands take back: backing files that the header names, and every file.
#[test]
fn unnamed_layers_have_generated_names_as_qemus() {
    let look = |program: &Path| {
        let scratch = images();
        for (name, below) in [("middle", "disk.qcow2"), ("top", "middle")] {
            let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", below, name];
            drop(Run::new("qemu-img").args(create).current_dir(scratch.path()).ok());
        }
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("middle"), &["write -P 7 3M 64k"]);
        let words = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        let daemon = Run::new(program).arg("--daemonize").args(words).current_dir(scratch.path());
        drop(daemon.ok());
        let mut qmp = Qmp::connect(&scratch.file("q"));
        let file = json!({ "driver": "file", "filename": scratch.name("top") });
        qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "n", "file": file }));
        let mut below = Vec::new();
        let mut next = "n".to_owned();
        loop {
            let nodes = qmp.ok("query-named-block-nodes", json!({ "flat": true }));
            let nodes = nodes.as_array().expect("a list");
            assert_eq!(nodes.len(), 6, "{nodes:?}");
            let found = nodes.iter().find(|node| node["node-name"] == next.as_str()).expect("the node");
            let child = |role: &str| {
                let children = found["children"].as_array().expect("children");
                let child = children.iter().find(|child| child["child"] == role)?;
                child["node-name"].as_str().map(str::to_owned)
            };
            let file = child("file").expect("a file");
            assert!(file.starts_with("#block"), "{file}");
            assert!(nodes.iter().any(|node| node["node-name"] == file.as_str() && node["drv"] == "file"));
            let Some(backing) = child("backing") else { break };
            below.push((backing.clone(), found["backing_file"].clone()));
            next = backing;
        }
        let names: Vec<_> = below.iter().map(|(_, file)| file.as_str().expect("a name")).collect();
        assert_eq!(names, [scratch.name("middle"), scratch.name("disk.qcow2")]);
        let [(middle, _), (base, _)] = &below[..] else { panic!("{below:?}") };
        let commit = json!({ "device": "n", "top-node": middle, "base-node": base, "job-id": "j", "auto-dismiss": false });
        qmp.ok("block-commit", commit);
        while qmp.ok("query-jobs", json!({}))[0]["status"] != "concluded" {}
        qmp.ok("job-dismiss", json!({ "id": "j" }));
        assert_eq!(qmp.ok("query-named-block-nodes", json!({})).as_array().expect("a list").len(), 4);
        qmp.ok("blockdev-del", json!({ "node-name": "n" }));
        assert_eq!(qmp.ok("query-named-block-nodes", json!({})), json!([]));
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        qemu_io_ok(&["-r", "-f", "qcow2"], &scratch.name("disk.qcow2"), &["read -P 7 3M 64k"]);
    };
    // Older versions list no children.
    newest_qemu().iter().for_each(|programs| look(&programs.join("qemu-storage-daemon")));
    look(&ours("qemu-storage-daemon"));
}

/// Names of images have the filter of a commit where it is: over the image that is committed, and not over the disk.
#[test]
fn the_filter_of_a_commit_is_where_qemus_is() {
    let look = |program: &Path| {
        let scratch = images();
        let image = |name: &str, backing: Value| {
            let path = scratch.name(name);
            drop(Run::new("qemu-img").args(["create", "-q", "-f", "qcow2", &path, "1M"]).ok());
            json!({ "driver": "qcow2", "node-name": name, "backing": backing,
                "file": { "driver": "file", "filename": path } })
        };
        let base = image("base", json!({ "driver": "null-co", "size": 1 << 20 }));
        let middle = image("middle", base);
        qemu_io_ok(&["-f", "qcow2"], &scratch.name("middle"), &["write 0 1M"]);
        // A file through the page cache, by the kernel's older interface.
        let mut native = middle.clone();
        native["file"]["aio"] = json!("native");
        let words =
            ["--daemonize", "--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
        drop(Run::new(program).args(words).current_dir(scratch.path()).ok());
        let mut qmp = Qmp::connect(&scratch.file("q"));
        let refused = qmp.ask("blockdev-add", native).err().map(|(class, _)| class);
        qmp.ok("blockdev-add", image("top", middle));
        qmp.ok(
            "block-commit",
            json!({ "device": "top", "job-id": "j", "top-node": "middle", "base-node": "base", "speed": 1,
                "filter-node-name": "filter" }),
        );
        let nodes = qmp.ok("query-named-block-nodes", json!({ "flat": true }));
        let top = nodes.as_array().expect("a list").iter().find(|node| node["node-name"] == "top");
        let name = top.expect("a node")["image"]["filename"].as_str().expect("a name").to_owned();
        let options: Value =
            serde_json::from_str(name.strip_prefix("json:").expect("options")).expect("JSON");
        qmp.ok("block-job-cancel", json!({ "device": "j", "force": true }));
        while qmp.ok("query-jobs", json!({})) != json!([]) {}
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        let drivers = [&options, &options["backing"], &options["backing"]["backing"]];
        (refused, drivers.map(|node| node["driver"].clone()))
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours.1[1], "commit_top");
}

/// A monitor may be in files and pipes, and write for people; one on nothing hears of nothing.
#[test]
fn monitors_are_where_their_character_devices_are_as_qemus() {
    let commands =
        "{\"execute\":\"qmp_capabilities\"}{\"execute\":\"query-block-exports\"}{\"execute\":\"quit\"}\n";
    let look = |program: &Path, chardev: &str, monitor: &str| {
        let scratch = images();
        std::fs::write(scratch.file("in"), commands).expect("a file");
        let words = ["--chardev", "null,id=n", "--monitor", "n", "--chardev", chardev, "--monitor", monitor];
        let run = Run::new(program).args(words).input(commands).current_dir(scratch.path()).outcome();
        assert!(run.status.success(), "{run}");
        let text = match std::fs::read_to_string(scratch.file("out")) {
            Ok(text) => text,
            Err(_) => run.stdout,
        };
        let values: Vec<Value> =
            serde_json::Deserializer::from_str(&text).into_iter().map(|value| value.expect("JSON")).collect();
        let returned: Vec<Value> = values.into_iter().filter(|value| value.get("return").is_some()).collect();
        // A line for each member, or for each object.
        (returned, text.lines().count() > 8)
    };
    for (chardev, monitor) in [
        ("stdio,id=c", "c,pretty=on"),
        ("stdio,id=c", "c,pretty=off"),
        ("file,id=c,path=out,input-path=in", "c"),
        ("file,id=c,path=out,input-path=in,append=on", "c,pretty=on,mode=control"),
    ] {
        // QEMU 7.2 reads no commands from a file.
        let theirs = look(&newer_qemu("qemu-storage-daemon"), chardev, monitor);
        assert_eq!(look(&ours("qemu-storage-daemon"), chardev, monitor), theirs, "{chardev} {monitor}");
        assert_eq!(theirs.0.len(), 3, "{theirs:?}");
    }
}

/// QEMU's Python package listens, and has the daemon connect.
#[test]
fn a_monitor_connects_to_the_client_that_listens_as_qemus() {
    let look = |program: &Path| {
        let scratch = images();
        let listener = UnixListener::bind(scratch.file("listening")).expect("a socket");
        let words = ["--chardev", "socket,id=c,path=listening", "--monitor", "c"];
        let returned = std::thread::scope(|scope| {
            let run = scope.spawn(|| Run::new(program).args(words).current_dir(scratch.path()).outcome());
            let (mut stream, _) = listener.accept().expect("it connects");
            // A daemon ends at the brace: what came behind it would be unread, and reset the connection.
            let commands = "{\"execute\":\"qmp_capabilities\"}{\"execute\":\"query-block-exports\"}{\"execute\":\"quit\"}";
            stream.write_all(commands.as_bytes()).expect("it reads");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("it answers");
            let values = serde_json::Deserializer::from_str(&text)
                .into_iter()
                .map(|value: Result<Value, _>| value.expect("JSON"));
            let returned: Vec<Value> = values.filter(|value| value.get("return").is_some()).collect();
            let run = run.join().expect("it ends");
            assert!(run.status.success(), "{run}");
            returned
        });
        let refused = Run::new(program).args(["--chardev", "socket,id=c,path=none", "--monitor", "c"]);
        assert!(!refused.current_dir(scratch.path()).outcome().status.success());
        returned
    };
    let theirs = look(Path::new("qemu-storage-daemon"));
    assert_eq!(theirs.len(), 3);
    assert_eq!(look(&ours("qemu-storage-daemon")), theirs);
}
