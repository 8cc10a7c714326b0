//! Disks in the object store of a Ceph cluster, which checks every signature: what is uploaded is read back, and nothing is lost when the
//! store is killed.

use std::time::Duration;

use black_box::ceph::Objects;
use black_box::peer::{fio, with_sums};
use black_box::random::Random;
use black_box::server::{Server, Start};
use black_box::{Ceph, Radosgw, Run, Scratch, cowhand};

use crate::remote::certificates;

const MIB: usize = 1 << 20;

/// A store with a bucket, and a disk that takes more than two parts.
struct Scene {
    scratch: Scratch,
    store: Radosgw,
    ceph: Ceph,
}

impl Scene {
    fn new() -> Self {
        let (scratch, ceph) = (Scratch::new(), Ceph::start(Objects::Memory));
        let store = Radosgw::start(&ceph, &certificates());
        store.make_bucket("images");
        let mut disk = Random::of_name("radosgw").bytes(30 * MIB);
        disk[3 * MIB..5 * MIB].fill(0);
        disk[20 * MIB..24 * MIB].fill(b'x');
        scratch.write("disk.raw", &disk);
        Self { scratch, store, ceph }
    }

    fn run(&self, endpoint: &str, words: &[&str]) -> Run {
        let (id, secret) = black_box::radosgw::USER;
        let run = cowhand(words).current_dir(self.scratch.path()).limit(Duration::from_secs(120));
        run.env("AWS_ACCESS_KEY_ID", id)
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .env("AWS_ENDPOINT_URL", endpoint)
    }
}

#[test]
fn what_is_uploaded_is_read_back_and_nothing_is_without_the_secret() {
    let scene = Scene::new();
    let trusting = |run: Run| run.env("SSL_CERT_FILE", certificates().join("ca.pem"));
    let disk = format!("driver=raw,read-only=on,file.filename={}", scene.scratch.name("disk.raw"));
    let server = Server::start(["--trace", &scene.scratch.name("start.trace"), &disk]);
    server.client("disk").read(0, 4096).expect("a read");
    server.stop();
    for (endpoint, key) in [(scene.store.endpoint(), "plain"), (scene.store.tls_endpoint(), "encrypted")] {
        let run = |words: &[&str]| trusting(scene.run(&endpoint, words));
        let (object, pushed) = (format!("s3://images/{key}.qcow2"), format!("s3://images/base/{key}"));
        let upload = ["convert", "--verify", "-f", "raw", "-O", "qcow2", "-c", "disk.raw", &object];
        run(&upload).ok();
        run(&["compare", "-f", "qcow2", "-F", "raw", &object, "disk.raw"]).ok();
        let again = run(&upload).fails();
        assert!(again.contains("there is an object already"), "{again}");
        run(&["convert", "--force", "-f", "raw", "-O", "raw", "disk.raw", &object]).ok();
        run(&["compare", "-f", "raw", "-F", "raw", &object, "disk.raw"]).ok();
        run(&["push", "-q", "-f", "raw", "disk.raw", &pushed]).ok();
        run(&["pull", "-q", &pushed, &format!("{key}.raw")]).ok();
        let sum = |words: &[&str]| run(words).ok().split(' ').next().map(str::to_owned);
        let verified = sum(&["verify", "-f", "raw", &format!("chunked:{pushed}")]);
        assert_eq!(verified, sum(&["verify", "-f", "raw", "disk.raw"]));
        let packed = run(&["pack", "--output", "json", "start.trace", &pushed]).json();
        assert_eq!((&packed["packs"], &packed["changed"]), (&1.into(), &true.into()), "{packed}");
        // What the store lists: nothing of these images is unused, and what an image leaves that is pushed anew is.
        let prune =
            ["prune", "--output", "json", "--remove", "--force", "--unused-for", "0s", "s3://images/base"];
        let pruned = run(&prune).json();
        assert_eq!(pruned["unused"], serde_json::json!([]), "{pruned}");
        run(&["push", "-q", "-f", "raw", "--chunk-size", "4M", "disk.raw", &pushed]).ok();
        let pruned = run(&prune).json();
        assert!(pruned["unused"].as_array().is_some_and(|unused| unused.len() > 20), "{pruned}");
        run(&["pull", "-q", &pushed, &format!("{key}.raw")]).ok();
        let back = std::fs::read(scene.scratch.file(&format!("{key}.raw"))).unwrap();
        assert!(back == std::fs::read(scene.scratch.file("disk.raw")).unwrap(), "{key}");
        let said = run(&["info", &object]).env("AWS_SECRET_ACCESS_KEY", "wrong-secret").fails();
        assert!(said.contains("403") && !said.contains("wrong-secret"), "{said}");
    }
    let said = scene.run(&scene.store.tls_endpoint(), &["info", "s3://images/plain.qcow2"]).fails();
    assert!(said.contains("certificate"), "{said}");
}

#[test]
fn a_store_that_is_killed_under_load_and_comes_back_costs_time_and_no_byte() {
    let mut scene = Scene::new();
    with_sums(&scene.scratch.file("sums.raw"), "32m");
    let endpoint = scene.store.endpoint();
    scene.run(&endpoint, &["convert", "-f", "raw", "-O", "raw", "sums.raw", "s3://images/sums.raw"]).ok();
    // Through a cache that is too small for the disk: it fetches, gives up and fills all the time.
    let cache = scene.scratch.name("cache.qcow2");
    for cache in [String::new(), format!(",file.cache-file={cache},file.cache-size=16M")] {
        let drive = format!(
            "id=disk,format=raw,read-only=on,file=s3://images/sums.raw,file.on-remote-error=wait{cache}"
        );
        scene.reads_through_a_kill(&drive);
    }
    Run::new("qemu-img").args(["check", "-q", "-f", "qcow2", &cache]).ok();
}

impl Scene {
    /// fio reads and verifies while the store is killed and comes back.
    fn reads_through_a_kill(&mut self, drive: &str) {
        let endpoint = self.store.endpoint();
        let (id, secret) = black_box::radosgw::USER;
        let start = Start::new([drive]).env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
        let server: Server =
            start.env("AWS_ENDPOINT_URL", &endpoint).listen().unwrap_or_else(|error| panic!("{}", error.0));
        let uri = server.uri("disk");
        let load = std::thread::spawn(move || {
            let job =
                ["--name=load", "--rw=randread", "--bs=4k", "--iodepth=8", "--size=32m", "--time_based"];
            let verify = [
                "--runtime=15",
                "--rate_iops=1000",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
            ];
            fio(&uri, &[&job[..], &verify].concat(), Duration::from_secs(300))
        });
        std::thread::sleep(Duration::from_secs(3));
        assert!(!load.is_finished());
        self.store.kill();
        std::thread::sleep(Duration::from_secs(1));
        self.store.restart(&self.ceph);
        load.join().expect("fio finds what it wrote");
        server.stop();
    }
}
