//! Disks on servers under load while something goes wrong every second: no wrong byte, no request that fails or is never answered.
//!
//! `COWHAND_FAULT_SECONDS=60` is the length that says something; every run of the tests takes a few seconds of each.

use std::time::{Duration, Instant};

use black_box::ceph::{Objects, kill_workers_of};
use black_box::cutter::Cutter;
use black_box::peer::{fio, with_sums};
use black_box::ports::free_port;
use black_box::server::Start;
use black_box::{Ceph, Fault, FaultServer, Moto, QemuNbd, Scratch, Server, cowhand};

const SECONDS: u64 = 4;
const DISK: &str = "16m";

/// What is given to a request. What goes wrong is over sooner.
const DEADLINE: Duration = Duration::from_secs(10);

/// What a server does wrong that is worth another try.
const FAULTS: [Fault; 6] =
    [Fault::Status(503), Fault::ShortBody, Fault::Status(429), Fault::Slow, Fault::Reset, Fault::Status(500)];

fn seconds() -> u64 {
    let set = std::env::var("COWHAND_FAULT_SECONDS").ok();
    set.map_or(SECONDS, |text| text.parse().expect("COWHAND_FAULT_SECONDS is a number"))
}

/// A file in which every block has its sum.
fn made(scratch: &Scratch) -> Vec<u8> {
    with_sums(&scratch.file("disk.raw"), DISK);
    std::fs::read(scratch.file("disk.raw")).expect("a file")
}

/// fio on the server's disk, again and again, while `fault` is called once a second. Gives requests, and the longest that one took.
fn load(server: &Server, words: &[&str], mut fault: impl FnMut()) -> (u64, Duration) {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds());
    let mut next = begun + Duration::from_millis(500);
    let mut sum = (0, Duration::ZERO);
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let (uri, limit) = (server.uri("disk"), left + 6 * DEADLINE);
        let (runtime, size) = (format!("--runtime={}", left.as_secs().max(1)), format!("--size={DISK}"));
        let mut options = vec!["--name=load", "--bs=4k", "--iodepth=8", "--time_based", &runtime, &size];
        options.extend(["--verify_fatal=1", "--verify_state_save=0"]);
        options.extend(words);
        let said = std::thread::scope(|scope| {
            let load = scope.spawn(|| fio(&uri, &options, limit));
            while !load.is_finished() {
                if Instant::now() >= next {
                    fault();
                    next += Duration::from_secs(1);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            load.join().unwrap_or_else(|_| panic!("fio has failed: {}", server.stderr()))
        });
        for side in ["read", "write"].map(|side| &said["jobs"][0][side]) {
            sum.0 += side["total_ios"].as_u64().unwrap_or(0);
            sum.1 = sum.1.max(Duration::from_nanos(side["clat_ns"]["max"].as_u64().unwrap_or(0)));
        }
    }
    sum
}

const READ: [&str; 2] = ["--rw=randread", "--verify=crc32c"];
const WRITE: [&str; 4] = ["--rw=randwrite", "--verify=crc32c", "--verify_backlog=256", "--do_verify=1"];

fn judge(what: &str, (requests, longest): (u64, Duration), faults: usize) {
    println!("looked at in {what}: {requests} requests under {faults} faults, the longest took {longest:?}");
    assert!(requests > 0 && faults as u64 >= seconds() / 2, "{what}: {requests} requests, {faults} faults");
}

/// Cuts connections and silence, one after the other.
fn cutting(cutter: &Cutter, count: &mut usize) {
    *count += 1;
    match count.is_multiple_of(2) {
        true => cutter.be_silent(Duration::from_millis(400)),
        false => drop(cutter.cut()),
    }
}

fn listening(start: Start) -> Server {
    start.listen().unwrap_or_else(|error| panic!("{}", error.0))
}

#[test]
fn over_http() {
    let scratch = Scratch::new();
    let store = FaultServer::start(made(&scratch));
    let options = format!("file.remote-timeout={}", DEADLINE.as_secs());
    let drive = format!("id=disk,format=raw,read-only=on,file={},{options}", store.url());
    let server = listening(Start::new([drive]));
    let mut count = 0;
    let loaded = load(&server, &READ, || {
        store.fail(&[FAULTS[count % FAULTS.len()], FAULTS[(count + 1) % FAULTS.len()]]);
        count += 1;
    });
    judge("http", loaded, count);
    server.stop();
}

fn with_keys(start: Start, endpoint: &str) -> Start {
    let keys =
        [("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "hush"), ("AWS_ENDPOINT_URL", endpoint)];
    keys.into_iter().fold(start, |start, (name, value)| start.env(name, value))
}

#[test]
fn over_an_object_store_and_in_chunks_there() {
    let (scratch, store) = (Scratch::new(), Moto::start());
    let bytes = made(&scratch);
    store.put("/images", b"");
    store.put("/images/disk.raw", &bytes);
    let push = ["push", "-q", "-f", "raw", "disk.raw", "s3://images/base/disk"];
    store.below(cowhand(push).current_dir(scratch.path())).ok();
    std::thread::scope(|scope| {
        for (what, name) in [("s3", "s3://images/disk.raw"), ("chunked", "chunked:s3://images/base/disk")] {
            let to = store.port();
            scope.spawn(move || {
                let cutter = Cutter::start(to);
                let endpoint = format!("http://127.0.0.1:{}", cutter.port());
                let timeout = format!("file.remote-timeout={}", DEADLINE.as_secs());
                let drive = format!("id=disk,format=raw,read-only=on,file={name},{timeout}");
                let server = listening(with_keys(Start::new([drive]), &endpoint));
                let mut count = 0;
                judge(what, load(&server, &READ, || cutting(&cutter, &mut count)), count);
                server.stop();
            });
        }
    });
}

#[test]
fn over_nbd_where_it_is_written() {
    let scratch = Scratch::new();
    made(&scratch);
    let port = free_port();
    let _there = QemuNbd::start(&scratch.file("disk.raw"), &["-b", "127.0.0.1", "-p", &port.to_string()]);
    let cutter = Cutter::start(port);
    let options = "file.open-timeout=10,file.reconnect-delay=20";
    let drive = format!(
        "id=disk,format=raw,file=nbd://127.0.0.1:{}/disk,{options},file.remote-timeout={}",
        cutter.port(),
        DEADLINE.as_secs()
    );
    let server = listening(Start::new([drive]));
    let mut count = 0;
    judge("nbd", load(&server, &WRITE, || cutting(&cutter, &mut count)), count);
    server.stop();
}

/// The process that has Ceph's library is killed, and the OSD rests, one after the other.
#[test]
fn over_rbd_where_it_is_written() {
    let (scratch, ceph) = (Scratch::new(), Ceph::start(Objects::Memory));
    made(&scratch);
    // The lock of a client that is gone would be held for half a minute.
    ceph.rbd(["create", "-s", "16M", "--image-feature", "layering", "rbd/disk"]);
    let name = ceph.name("disk");
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "disk.raw", &name];
    cowhand(convert).current_dir(scratch.path()).limit(Duration::from_secs(120)).ok();
    let timeout = DEADLINE.as_secs();
    let drive = format!("id=disk,format=raw,file.remote-timeout={timeout},file={name}");
    let server = listening(Start::new([drive]));
    let (mut count, mut killed) = (0_usize, 0);
    let loaded = load(&server, &WRITE, || {
        count += 1;
        match count.is_multiple_of(2) {
            true => ceph.rest_osd(Duration::from_millis(400)),
            false => killed += kill_workers_of(&server),
        }
    });
    judge("rbd", loaded, count);
    assert!(killed > 0, "no worker was found");
    server.stop();
}
