//! The commands for people, against a running server.

use black_box::cowhand;
use serde_json::json;

use super::{Steered, create, qcow2};

#[test]
fn status_top_and_throttle_tell_and_change_what_is_there() {
    let steered = Steered::new();
    let qmp = steered.qmp.to_str().expect("text").to_owned();
    steered.server.client("a").write(0, &[1; 4096]).expect("a write");
    let status = cowhand(["status", &qmp]).ok();
    for expected in ["cowhand", "a: qcow2, 64 MiB", "writes    1, 4 KiB", "limits    none", "\"a\", writable"]
    {
        assert!(status.contains(expected), "{status}");
    }
    let status = cowhand(["status", "--output", "json", &qmp]).json();
    assert_eq!(status["disks"][0]["stats"]["wr_bytes"], 4096);
    let set =
        cowhand(["throttle", "set", &qmp, "--total-iops-sec", "100", "--total-iops-sec-max", "200"]).ok();
    assert!(set.starts_with("a: iops-total=100,iops-total-max=200"), "{set}");
    // What is not named stays.
    let set = cowhand(["throttle", "set", &qmp, "bps_rd=10M,group=g"]).ok();
    assert!(set.contains("iops-total=100") && set.contains("bps-read=10485760 in group g"), "{set}");
    let shown = cowhand(["throttle", "show", &qmp]).ok();
    assert!(shown.contains("in group g; 0 waiting"), "{shown}");
    let shown = cowhand(["throttle", "show", "--output", "json", &qmp]).json();
    assert_eq!(shown[0]["limits"]["iops-total-max"], 200);
    assert!(cowhand(["throttle", "set", &qmp, "iops_rd=5"]).fails().contains("iops"));
    assert!(cowhand(["throttle", "set", &qmp]).fails().contains("no limit is given"));
    let set = cowhand(["throttle", "set", &qmp, "--none"]).ok();
    assert_eq!(set, "a: none\n");
    let top = cowhand(["top", "--once", &qmp]).ok();
    assert!(top.starts_with("DISK") && top.contains("AT LIMIT") && top.contains("\na "), "{top}");
    steered.server.stop();
}

#[test]
fn reopen_and_resize_need_no_name_where_there_is_one_disk_only() {
    let mut steered = Steered::new();
    let qmp = steered.qmp.to_str().expect("text").to_owned();
    cowhand(["reopen", &qmp, "discard=unmap,cache-clean-interval=9"]).ok();
    assert!(cowhand(["reopen", &qmp, "aio=threads"]).fails().contains("option aio of node"));
    assert!(cowhand(["reopen", &qmp, "discrad=unmap"]).fails().contains("did you mean discard"));
    assert_eq!(cowhand(["resize", &qmp, "128M"]).ok(), "a: 128 MiB (134217728 bytes)\n");
    assert!(cowhand(["resize", &qmp, "1M"]).fails().contains("shrink"));
    cowhand(["resize", &qmp, "1M", "--shrink"]).ok();
    let path = create(&steered.scratch, "b.qcow2", "1M");
    steered.talk().ok("blockdev-add", qcow2("b", &path));
    let several = cowhand(["resize", &qmp, "2M"]).fails();
    assert!(several.contains(r#"name one of "a" and "b""#) && several.contains("--disk"), "{several}");
    let status = cowhand(["status", "--disk", "b", &qmp]).ok();
    assert!(status.contains("\nb: qcow2, 1 MiB") && !status.contains("\na: "), "{status}");
    let status = cowhand(["status", "--disk", "b", "--output", "json", &qmp]).json();
    assert_eq!(status["disks"].as_array().map(Vec::len), Some(1));
    assert!(
        cowhand(["status", "--disk", "c", &qmp]).fails().contains(r#"no disk "c"; name one of "a" and "b""#)
    );
    cowhand(["resize", &qmp, "2M", "--disk", "b"]).ok();
    steered.talk().ok("quit", json!({}));
    assert!(steered.server.outcome().status.success());
    let nobody = cowhand(["status", &qmp]).fails();
    assert!(nobody.contains("cannot talk to the server") && nobody.contains("--qmp"), "{nobody}");
}
