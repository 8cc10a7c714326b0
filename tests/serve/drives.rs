//! Which disks are served, under which names and options.

use std::path::Path;

use black_box::client::Failed;
use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::{Client, Run, Scratch, Server, wire};

use super::create;

#[test]
fn several_drives_are_several_exports() {
    let scratch = Scratch::new();
    let (a, b) = (create(&scratch, "a.qcow2", "1M"), create(&scratch, "b.img.qcow2", "2M"));
    let c = create(&scratch, "c.qcow2", "3M");
    let server = Server::start([&a, &b, &format!("file={c},id=data disk")]);
    for (name, bytes) in [("a", 1 << 20), ("b.img", 2 << 20), ("data disk", 3 << 20)] {
        assert_eq!(server.client(name).size(), bytes, "{name:?}");
    }
    let refused = Client::connect(server.socket(), "c").expect_err("there is no such export");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
    let listed = Run::new("nbdinfo").args(["--list", "--json", &server.uri("")]).json();
    let names: Vec<_> =
        listed["exports"].as_array().expect("a list").iter().map(|e| &e["export-name"]).collect();
    assert_eq!(names, ["a", "b.img", "data disk"]);
    server.stop();
    let renamed = Server::start(["--export", "other", &a]);
    assert_eq!(renamed.client("other").size(), 1 << 20);
    renamed.stop();
    let said = Server::refuses(["--export", "other", &a, &b]);
    assert!(said.contains("other"), "{said}");
}

#[test]
fn drives_are_written_as_qemu_writes_them() {
    let scratch = Scratch::new();
    let path = create(&scratch, "odd,name=1.qcow2", "4M");
    let doubled = path.replace(',', ",,");
    let drives = [
        path.clone(),
        format!("file={doubled},l2-cache-size=2M,l2-cache-entry-size=4k,refcount-cache-size=256k"),
        format!("file={doubled},cache-size=1M,cache-clean-interval=60,lazy-refcounts=off,overlap-check=all"),
        format!("file={doubled},format=qcow2,cache=none,aio=io_uring,discard=unmap,detect-zeroes=unmap"),
        format!("file.filename={doubled},cache.direct=on,cache.no-flush=off,pass-discard-request=off"),
        format!(r#"json:{{"driver":"qcow2","file":{{"driver":"file","filename":"{path}"}}}}"#),
        format!(r#"json:{{"file":{{"filename":"{path}"}},"l2-cache-size":1048576,"discard":"unmap"}}"#),
    ];
    for (index, drive) in drives.iter().enumerate() {
        let server = Server::start([drive]);
        let mut client = server.client("");
        let pattern = [u8::try_from(index + 1).expect("a few drives"); 512];
        client.write(1 << 20, &pattern).expect("write");
        assert_eq!(client.read(1 << 20, 512).expect("read"), pattern, "{drive}");
        client.disconnect();
        server.stop();
        assert_clean(Path::new(&path));
    }
}

#[test]
fn options_that_contradict_each_other_are_refused_by_name() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let table = [
        ("cache-size=1M,l2-cache-size=1M,refcount-cache-size=1M", "cache-size"),
        ("cache-size=1M,l2-cache-size=2M", "l2-cache-size"),
        ("cache-size=1M,refcount-cache-size=2M", "refcount-cache-size"),
        ("l2-cache-entry-size=3000", "l2-cache-entry-size"),
        ("l2-cache-entry-size=256", "l2-cache-entry-size"),
        ("l2-cache-entry-size=128k", "l2-cache-entry-size"),
        ("l2-cache-size=much", "l2-cache-size"),
        ("l2-cache-sise=1M", "l2-cache-size"),
        ("cache=fast", "cache"),
        ("overlap-check=some", "overlap-check"),
        ("detect-zeroes=unmap", "discard"),
        ("format=qed", "qed"),
    ];
    for (options, word) in table {
        let said = Server::refuses([format!("file={path},{options}")]);
        assert!(said.contains(word), "{options}: {said}");
    }
    let old = scratch.name("old.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "compat=0.10", &old, "1M"]).ok();
    let said = Server::refuses([format!("file={old},lazy-refcounts=on")]);
    assert!(said.contains("lazy-refcounts"), "{said}");
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 9 0 64k"]);
    let before = std::fs::read(&path).expect("an image");
    for args in [vec!["--read-only".to_owned(), path.clone()], vec![format!("file={path},read-only=on")]] {
        let server = Server::start(args);
        let mut client = server.client("");
        assert_ne!(client.flags() & wire::FLAG_READ_ONLY, 0);
        // What was not offered is an invalid request, and a write is one without permission.
        assert!(matches!(client.write(0, &[1; 512]), Err(Failed::Refused(wire::EPERM))));
        assert!(matches!(client.trim(0, 512), Err(Failed::Refused(wire::EPERM | wire::EINVAL))));
        assert!(matches!(client.write_zeroes(0, 512, 0), Err(Failed::Refused(wire::EPERM | wire::EINVAL))));
        assert_eq!(client.read(0, 512).expect("read"), [9; 512]);
        server.stop();
    }
    assert!(std::fs::read(&path).expect("an image") == before, "it is changed");
}

#[test]
fn connections_are_bounded_and_a_place_is_free_again_when_one_leaves() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "1M");
    let mut server = Server::start(["--shared", "2", &path]);
    // The connection that found the server ready is gone when two others are in.
    let mut join = || server.wait_until(|server| Client::connect(server.socket(), "").ok());
    let (first, second) = (join().expect("a client"), join().expect("a client"));
    assert!(Client::connect(server.socket(), "").is_err(), "two are enough");
    first.disconnect();
    let third = server.wait_until(|server| Client::connect(server.socket(), "").ok());
    let mut third = third.expect("a place is free");
    assert_eq!(third.read(0, 512).expect("read"), [0; 512]);
    drop((second, third));
    server.stop();
}

#[test]
fn options_of_the_backing_file_are_reached_by_dots() {
    let scratch = Scratch::new();
    create(&scratch, "base.qcow2", "1M");
    qemu_io_ok(&["-f", "qcow2"], &scratch.name("base.qcow2"), &["write -P 3 0 64k"]);
    let over = ["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "top.qcow2"];
    qemu_img(over).current_dir(scratch.path()).ok();
    let top = scratch.name("top.qcow2");
    // Names in the image are relative to the image, wherever the server was started.
    let drive = format!("file={top},backing.l2-cache-size=1M,backing.cache=none");
    let server = Server::start([drive]);
    assert_eq!(server.client("").read(0, 512).expect("read"), [3; 512]);
    server.stop();
    let said = Server::refuses([format!("file={top},backing.l2-cache=1M")]);
    assert!(said.contains("l2-cache"), "{said}");
}
