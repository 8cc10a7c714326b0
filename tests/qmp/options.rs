//! An option takes effect or is refused by name.

use std::os::unix::fs::MetadataExt;

use black_box::client::Failed;
use black_box::cowhand;
use black_box::peer::qemu_img;
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::{Steered, create, qcow2};

fn set(qmp: &mut Qmp, node: &str, options: &str) -> Result<Value, (String, String)> {
    qmp.ask("x-blockdev-set", json!({ "node-name": node, "options": options }))
}

/// `x-blockdev-set` said success to a name, to a driver and to `cache=none` after `cache.direct=off`, and did nothing;
/// the user went on to measure a cache that was not there.
#[test]
fn an_option_that_cannot_change_while_the_disk_is_open_is_refused_by_its_own_name() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "1M");
    let mut qmp = steered.talk();
    let mut options = qcow2("b", &path);
    options["cache"] = json!({ "direct": false, "no-flush": false });
    options["file"]["cache"] = json!({ "direct": false });
    qmp.ok("blockdev-add", options);
    let table = [
        ("node-name=other", "node-name"),
        ("id=other", "id"),
        ("file.node-name=other", "file.node-name"),
        ("file.driver=host_device", "file.driver"),
        ("file.locking=off", "file.locking"),
        ("file.aio=threads", "file.aio"),
        ("aio=threads", "aio"),
        ("cache.direct=on", "cache.direct"),
        ("cache=none", "cache.direct"),
        ("cache=unsafe", "cache.no-flush"),
        ("file.cache.direct=on", "file.cache.direct"),
        ("data-file.locking=off", "data-file"),
        ("driver=raw", "driver"),
        ("format=raw", "driver"),
        ("prefetch=all", "prefetch"),
        ("allocation-reserve=0", "allocation-reserve"),
        ("read-only=on,force-share=on", "force-share"),
        ("backing.file=x", "backing"),
        ("throttling.iops-total=5", "throttling"),
        ("offset=512", "offset"),
        ("no-such=1", "no-such"),
    ];
    for (text, name) in table {
        let refused = set(&mut qmp, "b", text).expect_err(text).1;
        assert!(
            refused.contains(&format!("option {name} ")) || refused.ends_with(&format!("option {name}")),
            "{text}: {refused}"
        );
    }
    for same in [
        "node-name=b",
        "driver=qcow2",
        "format=qcow2",
        "file.driver=file",
        "cache.direct=off",
        "backing=",
        "cache=writeback",
    ] {
        set(&mut qmp, "b", same).unwrap_or_else(|error| panic!("{same}: {error:?}"));
    }
    steered.server.stop();
}

/// What is said to an open disk, so that the option is another than before; nothing where it means nothing to this disk.
fn other_value(option: &Value) -> Option<String> {
    // The others are of raw images, LUKS files, and storage elsewhere: this disk is a qcow2 image in a file.
    let ours = [
        "a qcow2 image",
        "the disk's limits",
        "an image of any format",
        "the file below an image",
        "the disk",
    ];
    if !ours.contains(&option["of"].as_str().expect("what it belongs to")) {
        return None;
    }
    let name = option["name"].as_str().expect("a name");
    let value = match (name, option["type"].as_str().expect("a type")) {
        ("detect-zeroes", _) => "unmap,discard=unmap",
        ("force-share", _) => "on,read-only=on",
        ("cache", _) => "writethrough",
        ("driver", _) => "raw",
        ("file.driver", _) => "host_device",
        ("file.locking" | "file.drop-cache", _) => "off",
        ("throttling.iops-size", _) => "512,throttling.iops-total=1",
        ("throttling.discard", _) => "free",
        ("backing", _) => return Some("backing.file=other".to_owned()),
        ("cache.writeback" | "pass-discard-snapshot", _) => "off",
        (_, "switch") => "on",
        (_, "choice") => option["values"].as_array()?.last()?.as_str()?,
        (_, "size") => "1048576",
        (_, "number") => "1",
        _ => "other",
    };
    let of_limit = name.split_once("-max").filter(|_| name.starts_with("throttling."));
    let flow = of_limit.map_or_else(String::new, |(flow, length)| match length {
        "" => format!(",{flow}=1"),
        _ => format!(",{flow}=1,{flow}-max=1"),
    });
    let value = if name == "l2-cache-entry-size" { "4096" } else { value };
    Some(format!("{name}={value}{flow}"))
}

/// The lists of what can change were four, and did not agree.
#[test]
fn each_option_changes_an_open_disk_or_is_refused_by_name_as_the_list_of_options_says() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "1M");
    let mut qmp = steered.talk();
    let listed = cowhand(["serve", "--drive-options=json"]).json();
    let mut seen = 0;
    for option in listed.as_array().expect("a list") {
        let Some(text) = other_value(option) else { continue };
        qmp.ok("blockdev-add", qcow2("b", &path));
        let name = option["name"].as_str().expect("a name");
        match (set(&mut qmp, "b", &text), option["changed-by"].as_str()) {
            (Ok(_), Some("blockdev-reopen" | "x-blockdev-set")) => {}
            (Err((_, refused)), None | Some("block_set_io_throttle")) => {
                let said = match name {
                    "file.filename" => "option file ",
                    name if name.starts_with("throttling.") && name != "throttling.discard" => "throttling",
                    name => name,
                };
                assert!(refused.contains(said), "{text}: {refused}");
                assert!(refused.contains("cannot change"), "{text}: {refused}");
            }
            (found, said) => panic!("{text}: {found:?}, but the list says {said:?}"),
        }
        qmp.ok("blockdev-del", json!({ "node-name": "b" }));
        seen += 1;
    }
    assert!(seen > 60, "{seen}");
    steered.server.stop();
}

/// Each option that may change, and what shows that it did.
#[test]
fn an_option_that_changes_takes_effect() {
    let mut steered = Steered::new();
    let path = steered.scratch.name("a.qcow2");
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    let mut ok = |text: &str| {
        set(&mut qmp, "a", text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        qmp.ok("query-named-block-nodes", json!({}))[0].clone()
    };
    assert_eq!(ok("cache=writethrough")["cache"]["writeback"], false);
    assert_eq!(ok("cache.writeback=on")["cache"]["writeback"], true);
    assert_eq!(ok("discard=unmap,detect-zeroes=unmap")["detect_zeroes"], "unmap");
    client.write(1 << 20, &[7; 1 << 20]).expect("a write");
    client.flush().expect("a flush");
    let blocks = || std::fs::metadata(&path).expect("the image").blocks();
    let full = blocks();
    client.write(1 << 20, &[0; 1 << 20]).expect("a write of zeroes");
    client.flush().expect("a flush");
    // Space goes back after the answer.
    steered
        .server
        .wait_until(|_| (blocks() + 2000 < full).then_some(()))
        .expect("zeroes give their space back");
    ok("detect-zeroes=off,discard=ignore");
    client.write(1 << 20, &[0; 1 << 20]).expect("a write of zeroes");
    client.flush().expect("a flush");
    assert!(blocks() + 100 > full, "zeroes are written: {full}, {}", blocks());
    assert_eq!(ok("read-only=on")["ro"], true);
    client.write(0, &[1; 512]).expect_err("read-only");
    assert_eq!(ok("readonly=off")["ro"], false);
    client.write(0, &[1; 512]).expect("writable");
    ok("l2-cache-size=16k,l2-cache-entry-size=4k,refcount-cache-size=512k");
    let stats = qmp.ok("query-blockstats", json!({}));
    let map = &stats[0]["driver-specific"]["map-cache"];
    assert_eq!((&map["l2-cache-size"], &map["l2-cache-entry-size"]), (&json!(16 << 10), &json!(4 << 10)));
    assert_eq!(map["refcount-cache-size"], 512 << 10);
    steered.server.stop();
}

#[test]
fn no_backing_file_is_what_a_disk_without_one_is_reopened_with() {
    let steered = Steered::new();
    let path = steered.scratch.name("a.qcow2");
    let mut qmp = steered.talk();
    let mut options = qcow2("a", &path);
    options["backing"] = Value::Null;
    qmp.ok("blockdev-reopen", json!({ "options": [options.clone()] }));
    options["discard"] = json!("unmap");
    qmp.ok("blockdev-reopen", json!({ "options": [options] }));
    let base = create(&steered.scratch, "base.qcow2", "64M");
    let top = steered.scratch.name("over.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top]).ok();
    qmp.ok("blockdev-add", qcow2("top", &top));
    let mut options = qcow2("top", &top);
    qmp.ok("blockdev-reopen", json!({ "options": [options.clone()] }));
    // What is left out stays, and may be said again.
    let mut whole = options.clone();
    whole["backing"] = qcow2("below", &base);
    qmp.ok("blockdev-del", json!({ "node-name": "top" }));
    qmp.ok("blockdev-add", whole.clone());
    for options in [&options, &whole] {
        qmp.ok("blockdev-reopen", json!({ "options": [options] }));
    }
    // Other options of what is below are no change that is made this way.
    whole["backing"]["discard"] = json!("unmap");
    let refused = qmp.refused("blockdev-reopen", json!({ "options": [whole] }));
    assert!(refused.contains("option backing of node \"top\""), "{refused}");
    options["backing"] = Value::Null;
    qmp.ok("blockdev-reopen", json!({ "options": [options] }));
    steered.server.stop();
}

/// A file opened for writing although its own options said read-only; a filter that was asked to detect zeroes and did
/// not: what a node cannot follow is refused.
#[test]
fn an_option_in_a_place_where_it_means_nothing_is_refused() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "1M");
    let mut qmp = steered.talk();
    for (name, value) in
        [("read-only", json!(true)), ("force-share", json!(true)), ("detect-zeroes", json!("on"))]
    {
        let mut options = qcow2("b", &path);
        (options["read-only"], options["file"][name]) = (json!(false), value);
        let refused = qmp.refused("blockdev-add", options);
        assert!(refused.contains(&format!("'file.{name}'")), "{refused}");
    }
    // An image is as its file is where nothing else is said.
    let mut options = qcow2("b", &path);
    options["file"]["read-only"] = json!(true);
    qmp.ok("blockdev-add", options);
    assert_eq!(super::node(&mut qmp, "b").expect("it is there")["ro"], json!(true));
    let mut options = qcow2("c", &path);
    (options["read-only"], options["file"]["driver"]) = (json!(true), json!("host_device"));
    let refused = qmp.refused("blockdev-add", options);
    assert!(refused.contains("file.driver is host_device, which is for devices"), "{refused}");
    let mut options = qcow2("c", &path);
    (options["read-only"], options["data-file"]) =
        (json!(true), json!({ "driver": "file", "filename": path }));
    let refused = qmp.refused("blockdev-add", options);
    assert!(refused.contains("option data-file is for images with an external data file"), "{refused}");
    qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g" }));
    let mut filter = json!({ "driver": "throttle", "node-name": "t", "throttle-group": "g", "file": "b" });
    for (name, value) in
        [("detect-zeroes", json!("on")), ("discard", json!("unmap")), ("read-only", json!(true))]
    {
        filter[name] = value;
        qmp.ok("blockdev-add", filter.clone());
        qmp.ok("blockdev-del", json!({ "node-name": "t" }));
        filter.as_object_mut().expect("an object").remove(name);
    }
    filter["cache"] = json!({ "direct": true });
    filter["discard"] = json!("ignore");
    qmp.ok("blockdev-add", filter.clone());
    filter["discard"] = json!("unmap");
    let refused = qmp.refused("blockdev-reopen", json!({ "options": [filter] }));
    assert!(refused.contains("discard or detect-zeroes of node \"t\" cannot change"), "{refused}");
    steered.server.stop();
}

/// The limits of the command line made every reopen fail: QMP has no words for them.
#[test]
fn limits_of_the_command_line_stay_where_blockdev_reopen_does_not_know_them() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "1M");
    let drive = format!("file={path},throttling.iops-total=1000");
    let qmp = steered.scratch.name("other");
    let server = black_box::Server::start(["--qmp", &qmp, &drive]);
    let mut client = Qmp::connect(qmp.as_ref());
    let mut options = qcow2("b", &path);
    options["discard"] = json!("unmap");
    client.ok("blockdev-reopen", json!({ "options": [options] }));
    let nodes = client.ok("query-named-block-nodes", json!({}));
    assert_eq!((&nodes[0]["discard"], &nodes[0]["iops"]), (&json!("unmap"), &json!(1000)));
    server.stop();
    steered.server.stop();
}

/// `aio=threads` of the command line made every blockdev-reopen fail, and `prefetch` and `allocation-reserve` could not be said.
#[test]
fn every_fixed_option_stays_or_can_be_said_at_blockdev_reopen() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "1M");
    let drive = format!("file={path},id=first,aio=threads,prefetch=table,allocation-reserve=0");
    let qmp = steered.scratch.name("other");
    let server = black_box::Server::start(["--qmp", &qmp, &drive]);
    let mut client = Qmp::connect(qmp.as_ref());
    let nodes = client.ok("query-named-block-nodes", json!({}));
    let mut options = qcow2(nodes[0]["node-name"].as_str().expect("a name"), &path);
    options["discard"] = json!("unmap");
    let refused = client.refused("blockdev-reopen", json!({ "options": [options.clone()] }));
    assert!(refused.contains("option prefetch "), "{refused}");
    (options["prefetch"], options["allocation-reserve"]) = (json!("table"), json!(0));
    client.ok("blockdev-reopen", json!({ "options": [options] }));
    assert_eq!(client.ok("query-named-block-nodes", json!({}))[0]["discard"], "unmap");
    server.stop();
    steered.server.stop();
}

/// A client that goes by the size that it received writes past a shrink: the protocol's answer is that there is no room.
#[test]
fn a_write_past_a_live_shrink_finds_no_room_and_a_read_is_invalid() {
    const EINVAL: u32 = 22;
    const ENOSPC: u32 = 28;
    let steered = Steered::new();
    let (mut qmp, mut client) = (steered.talk(), steered.server.client("a"));
    qmp.ok("block_resize", json!({ "node-name": "a", "size": 1 << 20, "x-shrink": true }));
    let error = |result: Result<(), Failed>| match result {
        Err(Failed::Refused(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(error(client.write(1 << 20, &[1; 4096])), ENOSPC);
    assert_eq!(error(client.write((1 << 20) - 512, &[1; 1024])), ENOSPC, "partly inside");
    assert_eq!(error(client.write_zeroes(2 << 20, 4096, 0)), ENOSPC);
    assert_eq!(error(client.trim(2 << 20, 4096)), EINVAL);
    assert_eq!(error(client.read(2 << 20, 4096).map(drop)), EINVAL);
    client.write(0, &[1; 4096]).expect("inside");
    steered.server.stop();
}
