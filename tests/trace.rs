//! A trace that a sandboxed server records, and the advice that is based on it.

use std::os::unix::fs::PermissionsExt;

use black_box::{Run, Scratch, Server, peer, program};

#[test]
fn a_sandboxed_server_records_a_trace_that_advice_is_based_on() {
    let scratch = Scratch::new();
    let (disk, trace) = (scratch.name("disk.qcow2"), scratch.file("day.trace"));
    peer::qemu_img([
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        "cluster_size=4k,preallocation=metadata",
        &disk,
        "512M",
    ])
    .ok();
    let name = trace.to_str().unwrap();
    let server = Server::start(["--trace", name, &disk]);
    // 64 of the 256 slices of 4 KiB (2 MiB of disk each), ten times over; what was written is read at once.
    let script = "for i in range(640): h.pwrite(b'x' * 4096, i * 7 % 64 * (2 << 20)); h.pread(4096, i * 7 % 64 * (2 << 20))\nh.flush()";
    peer::nbdsh(&server.uri("disk"), script).ok();
    server.stop();
    assert_eq!(std::fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o600);

    let advise = || Run::new(program::path()).args(["cache", "advise", "--trace", name, &disk]);
    let found = advise().arg("--output=json").json();
    let curve = &found["trace"];
    assert_eq!(
        (&curve["complete"], &curve["whole"], &curve["lost"]),
        (&true.into(), &true.into(), &0.into()),
        "{found}"
    );
    assert_eq!((&curve["requests"], &curve["first-requests"]), (&1280.into(), &64.into()), "{found}");
    // LRU keeps none of 64 slices that come in turn where only 32 fit: what hits is the read after each write.
    let point = |bytes: u64| {
        curve["points"].as_array().unwrap().iter().find(|point| point["bytes"] == bytes).unwrap()
    };
    assert_eq!(point(128 << 10)["hits-in-qemu"], 640, "{found}");
    assert_eq!(point(256 << 10)["hits-in-qemu"], 1216, "{found}");
    // In order the slices are next to nothing.
    assert_eq!(point(64 << 10)["hits"], 1216, "{found}");
    assert_eq!(curve["sufficient"]["bytes"], 64 << 10, "{found}");
    assert_eq!(curve["sufficient"]["bytes-in-qemu"], 256 << 10, "{found}");
    let text = advise().ok();
    assert!(text.contains("64 KiB in cowhand and 256 KiB in QEMU suffice for 99 %"), "{text}");

    let refused = Server::refuses(["--trace", name, &disk]);
    assert!(refused.contains("never overwrites"), "{refused}");
    peer::qemu_img(["resize", "-q", &disk, "1G"]).ok();
    let refused = advise().fails();
    assert!(refused.contains("is of another disk"), "{refused}");
}

#[test]
fn a_start_that_fails_leaves_no_trace_in_the_way_of_the_next() {
    let scratch = Scratch::new();
    let (disk, other, trace) =
        (scratch.name("disk.qcow2"), scratch.name("other.qcow2"), scratch.name("day.trace"));
    peer::qemu_img(["create", "-q", "-f", "qcow2", &disk, "1M"]).ok();
    peer::qemu_img(["create", "-q", "-f", "qcow2", &other, "1M"]).ok();
    let holder = Server::start([&disk]);
    let taken = holder.socket().to_str().unwrap();
    let refused =
        Run::new(program::path()).args(["serve", "--trace", &trace, "--socket", taken, &other]).fails();
    assert!(refused.contains(taken), "{refused}");
    assert!(!std::path::Path::new(&trace).exists(), "{refused}");
    Server::start(["--trace", &trace, &other]).stop();
}
