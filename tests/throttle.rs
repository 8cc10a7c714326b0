//! Limits as a client meets them.
//!
//! A limit promises that something takes at least so long: that is asserted, and holds on the slowest machine. That
//! it takes no longer is measured by `cargo xtask bench`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use black_box::client::Request;
use black_box::peer::{assert_clean, qemu_img};
use black_box::{Client, Scratch, Server, cowhand};

/// How long anything may take on a machine that is fully loaded.
const PATIENCE: Duration = Duration::from_secs(60);

fn create(scratch: &Scratch, name: &str) -> String {
    let path = scratch.name(name);
    qemu_img(["create", "-q", "-f", "qcow2", &path, "64M"]).ok();
    path
}

/// Sends all of `requests` at once and waits for every reply; gives the time it took.
fn ask_all(client: &mut Client, requests: &[Request<'_>]) -> Duration {
    let start = Instant::now();
    for request in requests {
        client.send(request).expect("send");
    }
    for _ in requests {
        assert_eq!(client.receive().expect("a reply").error, 0);
    }
    start.elapsed()
}

/// The least time that `count` requests may take under `iops`: the first bucket, and the one that fills it
/// beyond its brim, go at once.
fn least(count: u32, iops: u32) -> Duration {
    Duration::from_secs(1) * (count - iops / 10 - 1) / iops
}

fn holes(count: u64) -> Vec<Request<'static>> {
    (0..count).map(|number| Request::read(number * 4096, 4096)).collect()
}

#[test]
fn reads_of_holes_count_like_any_other() {
    let scratch = Scratch::new();
    let server = Server::start([format!("file={},throttling.iops-total=100", create(&scratch, "a.qcow2"))]);
    let took = ask_all(&mut server.client(""), &holes(70));
    assert!(took >= least(70, 100), "{took:?}");
    server.stop();
}

#[test]
fn reads_from_the_page_cache_count_however_they_are_asked_for() {
    let scratch = Scratch::new();
    let path = create(&scratch, "a.qcow2");
    let server = Server::start([format!("file={path},iops_rd=100,cache=writeback")]);
    let mut client = server.client("");
    client.write(0, &[7; 1 << 20]).expect("write");
    let start = Instant::now();
    for number in 0..50 {
        assert_eq!(client.read(number * 4096, 4096).expect("read"), [7; 4096]);
    }
    let took = start.elapsed();
    assert!(took >= least(50, 100), "one at a time: {took:?}");
    server.stop();
    assert_clean(std::path::Path::new(&path));
}

#[test]
fn zeroes_cost_as_much_as_the_bytes_they_stand_for_and_discards_one_cluster() {
    let scratch = Scratch::new();
    let path = create(&scratch, "a.qcow2");
    let server = Server::start([format!("file={path},discard=unmap,throttling.bps-write=16M")]);
    let mut client = server.client("");
    let start = Instant::now();
    client.write_zeroes(0, 16 << 20, 0).expect("zero");
    client.write(0, &[1; 512]).expect("write");
    let took = start.elapsed();
    // All but a tenth of a second's bytes and the last piece, which is as large.
    assert!(took >= Duration::from_millis(790), "{took:?}");
    let start = Instant::now();
    (0..50).for_each(|_| client.trim(0, 64 << 20).expect("trim"));
    assert!(start.elapsed() < PATIENCE, "4 seconds each, were they charged whole");
    server.stop();
    assert_clean(std::path::Path::new(&path));
}

#[test]
fn disks_that_name_a_group_share_its_limit() {
    let scratch = Scratch::new();
    let drive = |name: &str, rest: &str| format!("file={},{rest}", create(&scratch, name));
    let server = Server::start([
        drive("a.qcow2", "throttling.group=tenants,throttling.iops-total=100"),
        drive("b.qcow2", "throttling.group=tenants,throttling.weight=300"),
    ]);
    let (mut a, mut b) = (server.client("a"), server.client("b"));
    let start = Instant::now();
    for request in &holes(40) {
        a.send(request).expect("send");
        b.send(request).expect("send");
    }
    for client in [&mut a, &mut b] {
        (0..40).for_each(|_| assert_eq!(client.receive().expect("a reply").error, 0));
    }
    let took = start.elapsed();
    assert!(took >= least(80, 100), "{took:?}");
    server.stop();
}

#[test]
fn limits_stand_in_the_configuration_file_too() {
    let scratch = Scratch::new();
    let config = scratch.file("cowhand.toml");
    let text = format!(
        "[[drive]]\nfile = \"{}\"\n[drive.throttling]\niops-total = 100\ngroup = \"g\"\n",
        create(&scratch, "a.qcow2")
    );
    std::fs::File::create(&config).and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
    let server = Server::start(["--config".as_ref(), config.as_os_str()]);
    let took = ask_all(&mut server.client(""), &holes(40));
    assert!(took >= least(40, 100), "{took:?}");
    server.stop();
}

#[test]
fn a_client_that_is_gone_leaves_the_line_and_its_place() {
    let scratch = Scratch::new();
    let drive = format!("file={},iops=1", create(&scratch, "a.qcow2"));
    let server = Server::start(["--shared", "1", &drive]);
    let mut client = server.client("");
    // Four minutes' worth.
    for request in &holes(240) {
        client.send(request).expect("send");
    }
    assert_eq!(client.receive().expect("the first goes at once").error, 0);
    drop(client);
    let start = Instant::now();
    let mut next = loop {
        match Client::connect(server.socket(), "") {
            Ok(client) => break client,
            Err(error) => assert!(start.elapsed() < PATIENCE, "the place stays taken: {error}"),
        }
    };
    // Behind at most what was charged before: two seconds.
    assert_eq!(next.read(0, 4096).expect("read").len(), 4096);
    server.stop();
}

#[test]
fn what_waits_for_a_limit_is_answered_when_the_server_ends() {
    let scratch = Scratch::new();
    let path = create(&scratch, "a.qcow2");
    let mut server = Server::start([format!("file={path},iops=1")]);
    let mut client = server.client("");
    let data = [9; 512];
    for number in 0..240 {
        client.send(&Request::write(number * 4096, &data)).expect("send");
    }
    // The second one goes after a second: the server has taken them all in by then.
    (0..2).for_each(|_| assert_eq!(client.receive().expect("a reply").error, 0));
    let start = Instant::now();
    server.signal(rustix::process::Signal::TERM);
    for _ in 2..240 {
        assert_eq!(client.receive().expect("a reply").error, 0);
    }
    drop(client);
    let outcome = server.outcome();
    assert!(outcome.status.success(), "{outcome}");
    assert!(start.elapsed() < PATIENCE, "240 seconds under the limit");
    let server = Server::start([&path]);
    let mut client = server.client("");
    for number in 0..240 {
        assert_eq!(client.read(number * 4096, 512).expect("read"), data);
    }
    server.stop();
    assert_clean(std::path::Path::new(&path));
}

#[test]
fn a_limit_that_cannot_be_is_refused_before_anything_is_served() {
    let scratch = Scratch::new();
    let path = create(&scratch, "a.qcow2");
    let said = Server::refuses([format!("file={path},iops=5,iops_rd=5")]);
    assert!(said.contains("iops and iops_rd are both given"), "{said}");
    let said = cowhand(["info", &format!("file={path},throttling.bps-total-max=5")]).fails();
    assert!(said.contains("throttling.bps-total-max is given, but throttling.bps-total is not"), "{said}");
}
