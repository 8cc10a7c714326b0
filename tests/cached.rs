//! What is kept of a remote disk on this machine: never a wrong byte, whatever ends when.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use black_box::media::Mounted;
use black_box::metrics::{self, figure};
use black_box::peer::{assert_clean, assert_leaks_at_most};
use black_box::random::Random;
use black_box::server::{Server, Start};
use black_box::{Client, Moto, Run, Scratch, cowhand};

use crate::remote::Scene;

/// Kills of a server that fetches.
const KILLS: u64 = 12;
/// The lowest ceiling, and more than a cache of so small a disk has beside its data.
const CEILING_BYTES: u64 = 16 << 20;
const METADATA_BYTES_MAX: u64 = 2 << 20;

/// A drive over HTTP whose cache is `cache`.
fn drive(id: &str, format: &str, url: &str, cache: &Path, more: &str) -> String {
    let cache = cache.display();
    format!(
        "id={id},driver={format},read-only=on,file.driver=http,file.url={url},file.cache-file={cache}{more}"
    )
}

fn serve(drives: &[String]) -> Server {
    Start::new(drives).listen().unwrap_or_else(|error| panic!("{}", error.0))
}

fn raw(scene: &Scene) -> Vec<u8> {
    std::fs::read(scene.scratch.file("disk.raw")).expect("the disk")
}

#[test]
fn what_was_read_once_is_read_without_its_server_also_at_the_next_start() {
    let mut scene = Scene::new();
    let (cache, bytes) = (scene.scratch.file("cache"), raw(&scene));
    let drives = [drive("disk", "qcow2", &scene.nginx.url("/disk.qcow2"), &cache, "")];
    let server = serve(&drives);
    assert!(server.client("disk").read_all().unwrap() == bytes);
    scene.nginx.kill();
    assert!(server.client("disk").read_all().unwrap() == bytes);
    server.stop();
    assert_clean(&cache);
    scene.nginx.restart();
    let server = serve(&drives);
    scene.nginx.kill();
    assert!(server.client("disk").read_all().unwrap() == bytes);
    server.stop();
    assert_clean(&cache);
}

#[test]
fn another_version_of_the_file_empties_the_cache_and_says_so() {
    let scene = Scene::new();
    let cache = scene.scratch.file("cache");
    let drives = [drive("disk", "raw", &scene.nginx.url("/disk.raw"), &cache, "")];
    let server = serve(&drives);
    server.client("disk").read_all().unwrap();
    server.stop();
    let changed = vec![9; 5 << 20];
    scene.scratch.write("disk.raw", &changed);
    let server = serve(&drives);
    assert!(server.client("disk").read_all().unwrap() == changed);
    let said = server.stderr_at_end();
    assert!(said.contains("begins anew"), "{said}");
    assert_clean(&cache);
}

/// What a kill leaves is used at the next start: it must be what the server has, byte by byte.
#[test]
fn a_server_that_is_killed_while_it_fetches_leaves_a_cache_that_is_true() {
    let scene = Scene::new();
    let (cache, bytes) = (scene.scratch.file("cache"), raw(&scene));
    let drives = [drive("disk", "qcow2", &scene.nginx.url("/disk.qcow2"), &cache, "")];
    let mut random = Random::of_name("cached kills");
    for _ in 0..KILLS {
        let server = serve(&drives);
        let mut client = server.client("disk");
        let (seed, expected) = (random.next_u64(), bytes.clone());
        let reader = std::thread::spawn(move || {
            let mut random = Random::new(seed);
            loop {
                let len = random.between(1, 64) as u32 * 1024;
                let at = random.below(expected.len() as u64 - u64::from(len)) & !511;
                let Ok(read) = client.read(at, len) else { return };
                assert!(read == expected[at as usize..at as usize + len as usize], "{len} bytes at {at}");
            }
        });
        std::thread::sleep(Duration::from_millis(random.below(80)));
        server.kill();
        reader.join().unwrap();
        assert_leaks_at_most(&cache);
    }
    let server = serve(&drives);
    assert!(server.client("disk").read_all().unwrap() == bytes);
    server.stop();
    assert_clean(&cache);
}

#[test]
fn a_cache_stays_below_its_ceiling_and_right() {
    let scene = Scene::new();
    let (cache, bytes) = (scene.scratch.file("cache"), Random::of_name("cached ceiling").bytes(48 << 20));
    scene.scratch.write("large.raw", &bytes);
    let more = format!(",file.cache-size={CEILING_BYTES}");
    let server = serve(&[drive("disk", "raw", &scene.nginx.url("/large.raw"), &cache, &more)]);
    for _ in 0..3 {
        assert!(server.client("disk").read_all().unwrap() == bytes);
        let held = std::fs::metadata(&cache).unwrap().blocks() * 512;
        assert!(held <= CEILING_BYTES + METADATA_BYTES_MAX, "{held}");
    }
    server.stop();
    assert_clean(&cache);
    let refused = Server::refuses([drive(
        "disk",
        "raw",
        &scene.nginx.url("/large.raw"),
        &cache,
        ",file.cache-size=1M",
    )]);
    assert!(refused.contains("cache-size is 1048576; allowed: 0, or from 16777216 on"), "{refused}");
}

#[test]
fn disks_of_one_process_share_a_cache_and_others_are_refused() {
    let mut scene = Scene::new();
    let (cache, bytes) = (scene.scratch.file("cache"), raw(&scene));
    let url = scene.nginx.url("/disk.qcow2");
    let drives = ["one", "two"].map(|id| drive(id, "qcow2", &url, &cache, ""));
    let server = serve(&drives);
    assert!(server.client("one").read_all().unwrap() == bytes);
    let refused = Server::refuses(&drives[..1]);
    assert!(refused.contains("cache-file"), "{refused}");
    scene.nginx.kill();
    assert!(server.client("two").read_all().unwrap() == bytes);
    server.stop();
    scene.nginx.restart();
    let other = drive("other", "raw", &scene.nginx.url("/disk.raw"), &cache, "");
    let refused = Server::refuses([&drives[0], &other]);
    assert!(refused.contains("uses it as the cache of"), "{refused}");
}

/// Overlays of one base: what one has fetched none fetches again, and each costs the server little memory.
#[test]
fn two_hundred_disks_of_one_base_fetch_and_keep_it_once() {
    const DISKS: usize = 200;
    /// Of each disk: tables, sockets and what its client asks for.
    const EACH_BYTES_MAX: u64 = 256 << 10;
    let scene = Scene::new();
    let (cache, bytes, url) = (scene.scratch.file("cache"), raw(&scene), scene.nginx.url("/disk.qcow2"));
    let create = ["create", "-q", "-f", "qcow2", "0.qcow2", "6M"];
    Run::new("qemu-img").args(create).current_dir(scene.scratch.path()).ok();
    for disk in 1..DISKS {
        std::fs::copy(scene.scratch.file("0.qcow2"), scene.scratch.file(&format!("{disk}.qcow2"))).unwrap();
    }
    let drive = |disk: usize| {
        let top = scene.scratch.file(&format!("{disk}.qcow2"));
        let below = format!("backing.driver=qcow2,backing.file.driver=http,backing.file.url={url}");
        format!("id=d{disk},file={},{below},backing.file.cache-file={}", top.display(), cache.display())
    };
    let served = |disks: usize| {
        let start = Start::new(["--metrics", "127.0.0.1:0"]).args((0..disks).map(drive));
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        let figures = metrics::address(&mut server);
        for disk in 0..disks {
            assert!(server.client(&format!("d{disk}")).read_all().unwrap() == bytes, "disk {disk}");
        }
        let of = |name: &str| figure(&figures, &format!("cowhand_remote_cache_{name}"));
        // What was fetched is written behind those who read it.
        let fetched = of("fetched_bytes_total");
        server.wait_until(|_| (of("size_bytes") == fetched).then_some(())).expect("all of it is kept");
        let found = (fetched, server.peak_rss_bytes());
        server.stop();
        found
    };
    let (fetched, alone) = served(1);
    let length = std::fs::metadata(scene.scratch.file("disk.qcow2")).unwrap().len() as f64;
    assert!(fetched <= length + 65_536.0, "{fetched} bytes were fetched of {length}");
    std::fs::remove_file(&cache).unwrap();
    let all = served(DISKS);
    assert_eq!(all.0, fetched, "what all fetched, and what they hold of it");
    let most = alone + DISKS as u64 * EACH_BYTES_MAX;
    println!("looked at in cached: {} bytes of memory with one disk, {} with {DISKS}", alone, all.1);
    assert!(all.1 <= most, "{} bytes of memory with {DISKS} disks, {alone} with one", all.1);
    assert_clean(&cache);
}

/// A wrong path must not cost a disk.
#[test]
fn a_file_that_is_no_cache_is_left_as_it_is() {
    let scene = Scene::new();
    let (image, text) = (scene.scratch.file("disk.qcow2"), scene.scratch.write("notes", b"do not lose"));
    for file in [&image, &text] {
        let before = std::fs::read(file).unwrap();
        let refused = Server::refuses([drive("disk", "raw", &scene.nginx.url("/disk.raw"), file, "")]);
        assert!(refused.contains("is no cache of cowhand's"), "{refused}");
        assert!(std::fs::read(file).unwrap() == before);
    }
}

#[test]
fn a_full_file_system_below_the_cache_fails_no_read() {
    let Some(files) = Mounted::tmpfs(2 << 20) else { return };
    let scene = Scene::new();
    let (cache, bytes) = (files.file("cache"), raw(&scene));
    let drives = [drive("disk", "raw", &scene.nginx.url("/disk.raw"), &cache, "")];
    for _ in 0..2 {
        let server = serve(&drives);
        for _ in 0..2 {
            assert!(server.client("disk").read_all().unwrap() == bytes);
        }
        let said = server.stderr_at_end();
        assert!(said.contains("is cached"), "{said}");
        assert_leaks_at_most(&cache);
    }
}

#[test]
fn an_overlay_over_a_cached_disk_is_written_to() {
    let mut scene = Scene::new();
    let (cache, top) = (scene.scratch.file("cache"), scene.scratch.file("top.qcow2"));
    let url = scene.nginx.url("/disk.qcow2");
    let base = format!("driver=qcow2,file.driver=http,file.url={url},file.cache-file={}", cache.display());
    let start = || Start::new(["--overlay"]).arg(&top).arg(&base).listen();
    let mut expected = raw(&scene);
    let server = start().unwrap_or_else(|error| panic!("{}", error.0));
    let mut client = server.client("top");
    assert!(client.read_all().unwrap() == expected);
    client.write(5000, &[7; 3000]).unwrap();
    drop(client);
    server.stop();
    expected[5000..8000].fill(7);
    let server = start().unwrap_or_else(|error| panic!("{}", error.0));
    scene.nginx.kill();
    assert!(server.client("top").read_all().unwrap() == expected);
    server.stop();
    assert_clean(&cache);
}

/// What a start over `top` reads of `base`: it is traced.
fn read_traced(scratch: &Scratch, base: &str, ranges: &[(u64, u32)], expected: &[u8]) -> String {
    let trace = scratch.name("start.trace");
    let top = scratch.file("traced.qcow2");
    let server = Start::new(["--trace", &trace, "--overlay"]).arg(&top).arg(base).listen();
    let server = server.unwrap_or_else(|error| panic!("{}", error.0));
    let mut client = server.client("traced");
    read_ranges(&mut client, ranges, expected);
    drop(client);
    server.stop();
    std::fs::remove_file(top).expect("the image over it");
    trace
}

fn read_ranges(client: &mut Client, ranges: &[(u64, u32)], expected: &[u8]) {
    for &(at, len) in ranges {
        let read = client.read(at, len).expect("a range of the disk");
        assert!(read == expected[at as usize..at as usize + len as usize], "{len} bytes at {at}");
    }
}

/// Has the web server give the disk as the chunked image `base/disk`, too.
fn push(scene: &Scene) {
    let store = Moto::start();
    store.put("/images", b"");
    let words = ["push", "-q", "-f", "raw", "disk.raw", "s3://images/base/disk"];
    store.below(cowhand(words).current_dir(scene.scratch.path())).ok();
    store.save("images", scene.scratch.path());
}

/// A start that was never made before on this machine has what another one read before it asks.
#[test]
fn what_an_earlier_start_read_is_in_the_cache_before_anybody_asks() {
    let mut scene = Scene::new();
    let bytes = raw(&scene);
    let compressed = ["convert", "-c", "-O", "qcow2", "disk.raw", "compressed.qcow2"];
    Run::new("qemu-img").args(compressed).current_dir(scene.scratch.path()).ok();
    push(&scene);
    let ranges = [(3 << 20, 70_000), (4096, 4096), (5 << 20, 300_000), (4096, 4096)];
    for (format, driver, name) in [
        ("raw", "http", "disk.raw"),
        ("qcow2", "http", "disk.qcow2"),
        ("qcow2", "http", "compressed.qcow2"),
        ("raw", "chunked", "base/disk"),
    ] {
        let url = scene.nginx.url(&format!("/{name}"));
        let base = format!("driver={format},file.driver={driver},file.url={url}");
        let trace = read_traced(&scene.scratch, &base, &ranges, &bytes);
        let (cache, top) = (scene.scratch.file("cache"), scene.scratch.file("top.qcow2"));
        let base = format!("{base},file.cache-file={},file.prefetch-trace={trace}", cache.display());
        let start = Start::new(["--log", "info", "--metrics", "127.0.0.1:0", "--overlay"])
            .arg(&top)
            .arg(&base)
            .listen();
        let mut server = start.unwrap_or_else(|error| panic!("{}", error.0));
        let figures = metrics::address(&mut server);
        let read_ahead = |server: &Server| server.stderr().contains("bytes were read ahead").then_some(());
        server.wait_until(read_ahead).unwrap();
        let fetched = figure(&figures, "cowhand_remote_cache_prefetched_bytes_total");
        assert!(fetched > 0.0 && fetched < bytes.len() as f64, "{fetched} of {name}");
        assert_eq!(figure(&figures, "cowhand_remote_cache_prefetched_used_bytes_total"), 0.0);
        scene.nginx.kill();
        read_ranges(&mut server.client("top"), &ranges, &bytes);
        let used = figure(&figures, "cowhand_remote_cache_prefetched_used_bytes_total");
        assert!(used > 0.0 && used <= fetched + 65_536.0, "{used} of {fetched} of {name}");
        server.stop();
        assert_clean(&cache);
        scene.nginx.restart();
        [&*cache, &*top, Path::new(&trace)].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
}

/// A hint that is of no use costs no disk; one that is not there was meant otherwise.
#[test]
fn a_trace_that_is_no_trace_is_said_and_served_without() {
    let scene = Scene::new();
    let (cache, bytes) = (scene.scratch.file("cache"), raw(&scene));
    let url = scene.nginx.url("/disk.raw");
    let with = |more: &str| drive("disk", "raw", &url, &cache, more);
    let letters = scene.scratch.write("letters", b"do not lose these");
    let drive = with(&format!(",file.prefetch-trace={}", letters.display()));
    let mut server = serve(&[drive]);
    let said =
        |server: &Server| server.stderr().contains("not a trace of cowhand serve --trace").then_some(());
    server.wait_until(said).unwrap();
    assert!(server.client("disk").read_all().unwrap() == bytes);
    server.stop();
    let refused = Server::refuses([with(",file.prefetch-trace=/nowhere/start.trace")]);
    assert!(refused.contains("prefetch-trace /nowhere/start.trace: No such file"), "{refused}");
    let no_cache = format!("driver=raw,read-only=on,file.driver=http,file.url={url},file.prefetch-trace=x");
    let refused = Server::refuses([no_cache]);
    assert!(refused.contains("give cache-file with it"), "{refused}");
}
