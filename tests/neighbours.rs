//! What others bring along to read and write an NBD disk: libnbd's tools, fio, qemu-img and qemu-io.

#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_clean, converted, fio, nbdsh, qemu_img, qemu_io_ok, qemu_version};
use black_box::{Random, Run, Scratch, Server, wire};

/// Seconds that fio writes and verifies, unless `COWHAND_FIO_SECONDS` says how many.
const FIO_SECONDS: u64 = 20;

fn create(scratch: &Scratch, size: &str) -> String {
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &path, size]).ok();
    path
}

/// A raw file with data and holes.
fn raw(scratch: &Scratch, bytes: u64) -> std::path::PathBuf {
    let path = scratch.write("source.raw", &[]);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
    file.set_len(bytes).expect("a length");
    let mut random = Random::new(bytes);
    for _ in 0..40 {
        let data = random.bytes(usize::try_from(random.clone().between(1, 200_000)).expect("small"));
        let at = random.below(bytes - data.len() as u64);
        std::os::unix::fs::FileExt::write_all_at(&file, &data, at).expect("write");
    }
    path
}

#[test]
fn nbdinfo_is_reported_the_truth() {
    let scratch = Scratch::new();
    let path = create(&scratch, "20G");
    let server = Server::start([&path]);
    let info = Run::new("nbdinfo").args(["--json", &server.uri("disk")]).json();
    let export = &info["exports"][0];
    assert_eq!(export["export-name"], "disk");
    assert_eq!(export["export-size"], 20_u64 << 30);
    for can in ["can_flush", "can_fua", "can_trim", "can_zero", "can_df", "can_multi_conn", "can_cache"] {
        assert_eq!(export[can], true, "{can}: {export}");
    }
    assert_eq!(export["is_read_only"], false, "{export}");
    assert_eq!(info["structured"], true, "{info}");
    let contexts = export["contexts"].to_string();
    assert!(contexts.contains("base:allocation"), "{contexts}");
    let listed = Run::new("nbdinfo").args(["--list", "--json", &server.uri("")]).json();
    assert_eq!(listed["exports"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["exports"][0]["export-name"], "disk");
    server.stop();
}

#[test]
fn maps_over_nbd_are_those_of_qemu_nbd() {
    let scratch = Scratch::new();
    let path = create(&scratch, "64M");
    let commands = ["write -P 1 1M 3M", "write -z 20M 64k", "write -c -P 2 8M 64k", "write -P 3 60M 4M"];
    qemu_io_ok(&["-f", "qcow2"], &path, &commands);
    let socket = scratch.name("theirs.sock");
    let server = Server::start(["--read-only", &path]);
    for context in ["base:allocation", "qemu:allocation-depth"] {
        let map = |uri: &str| Run::new("nbdinfo").args(["--json", &format!("--map={context}"), uri]).json();
        let ours = map(&server.uri("disk"));
        let theirs = {
            let serve = ["-r", "-A", "-f", "qcow2", "-k", &socket, "--fork", "--pid-file"];
            let pid = scratch.name("pid");
            Run::new("qemu-nbd").args(serve).args([&pid, &path]).ok();
            map(&format!("nbd+unix://?socket={socket}"))
        };
        assert_eq!(ours, theirs, "{context}: ours (left), qemu-nbd's (right)");
    }
    server.stop();
}

#[test]
fn zeroes_with_space_behind_them_are_no_hole() {
    let scratch = Scratch::new();
    let path = create(&scratch, "1M");
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 1 0 128k", "write -z 0 64k"]);
    let server = Server::start(["--read-only", &path]);
    let map = Run::new("nbdinfo").args(["--json", "--map", &server.uri("disk")]).json();
    // QEMU calls the first one a hole too (docs/reference/compat.md).
    let kinds: Vec<_> =
        map.as_array().expect("a list").iter().map(|extent| extent["type"].as_u64()).collect();
    assert_eq!(kinds, [Some(2), Some(0), Some(3)], "{map}");
    server.stop();
}

#[test]
fn a_hole_of_a_raw_disk_is_a_hole_also_below_an_overlay() {
    let scratch = Scratch::new();
    let raw = scratch.name("sparse.raw");
    // Not by qemu-img, which writes the first block.
    let file = std::fs::File::create(&raw).expect("a file");
    file.set_len(4 << 20).expect("a length");
    qemu_io_ok(&["-f", "raw"], &raw, &["write -P 1 1M 64k"]);
    let overlay = scratch.name("overlay.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &raw, &overlay]).ok();
    for (format, path, name) in [("raw", &raw, "sparse"), ("qcow2", &overlay, "overlay")] {
        let server = Server::start(["--read-only", "--format", format, path]);
        let map = Run::new("nbdinfo").args(["--json", "--map", &server.uri(name)]).json();
        // As qemu-nbd says.
        let kinds: Vec<_> =
            map.as_array().expect("a list").iter().map(|extent| extent["type"].as_u64()).collect();
        assert_eq!(kinds, [Some(3), Some(0), Some(3)], "{format}: {map}");
        server.stop();
    }
}

#[test]
fn bitmaps_stored_in_an_image_are_shown_as_qemu_shows_them() {
    let scratch = Scratch::new();
    let path = create(&scratch, "64M");
    qemu_img(["bitmap", "--add", &path, "backup"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &path, &["write 1M 64k", "write 30M 1M"]);
    let server = Server::start(["--read-only", &path]);
    let map =
        Run::new("nbdinfo").args(["--json", "--map=qemu:dirty-bitmap:backup", &server.uri("disk")]).json();
    let dirty: Vec<(u64, u64)> = map
        .as_array()
        .expect("a list")
        .iter()
        .filter(|extent| extent["type"] == 1)
        .map(|extent| {
            (extent["offset"].as_u64().expect("offset"), extent["length"].as_u64().expect("length"))
        })
        .collect();
    assert_eq!(dirty, [(1 << 20, 64 << 10), (30 << 20, 1 << 20)], "{map}");
    server.stop();
}

#[test]
fn nbdcopy_brings_a_disk_in_and_out() {
    let scratch = Scratch::new();
    let source = raw(&scratch, 96 << 20);
    let path = create(&scratch, "96M");
    let server = Server::start([format!("file={path},discard=unmap")]);
    Run::new("nbdcopy").arg(&source).arg(server.uri("disk")).ok();
    let back = scratch.file("back.raw");
    Run::new("nbdcopy").arg(server.uri("disk")).arg(&back).ok();
    assert_same(&source, &back);
    server.stop();
    assert_clean(Path::new(&path));
    assert!(converted(&path, "qcow2", &[], &back) == std::fs::read(&source).expect("a file"));
    let allocated = qemu_img(["map", "--output=json", &path]).json();
    let holes = allocated.as_array().expect("a list").iter().filter(|extent| extent["zero"] == true).count();
    assert!(holes > 1, "holes stay holes: {allocated}");
}

#[test]
fn nbdcopy_goes_from_one_of_our_exports_to_another() {
    let scratch = Scratch::new();
    let source = raw(&scratch, 32 << 20);
    let (a, b) = (scratch.name("a.qcow2"), scratch.name("b.qcow2"));
    qemu_img(["convert", "-f", "raw", "-O", "qcow2", "-c"]).arg(&source).arg(&a).ok();
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "extended_l2=on", &b, "32M"]).ok();
    let server = Server::start([&a, &b]);
    Run::new("nbdcopy").args([server.uri("a"), server.uri("b")]).ok();
    server.stop();
    assert_clean(Path::new(&b));
    qemu_img(["compare", &a, &b]).ok();
}

#[test]
fn qemu_img_converts_both_ways_over_nbd() {
    let scratch = Scratch::new();
    let source = raw(&scratch, 64 << 20);
    let path = create(&scratch, "64M");
    let server = Server::start([&path]);
    let uri = server.uri("disk");
    qemu_img(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&source).arg(&uri).ok();
    qemu_img(["compare", "-f", "raw", "-F", "raw"]).arg(&source).arg(&uri).ok();
    let back = scratch.file("back.raw");
    qemu_img(["convert", "-f", "raw", "-O", "raw", &uri]).arg(&back).ok();
    assert_same(&source, &back);
    server.stop();
    assert_clean(Path::new(&path));
    qemu_img(["compare", "-f", "raw", "-F", "qcow2"]).arg(&source).arg(&path).ok();
}

#[test]
fn qemu_io_reads_and_writes_over_nbd() {
    let scratch = Scratch::new();
    let path = create(&scratch, "16M");
    let server = Server::start([format!("file={path},discard=unmap")]);
    let commands = [
        "write -P 17 512 1M",
        "read -P 17 512 1M",
        "write -f -P 18 2M 64k",
        "aio_write -P 19 3M 256k",
        "aio_write -P 20 4M 256k",
        "aio_flush",
        "read -P 19 3M 256k",
        "read -P 20 4M 256k",
        "write -z 3M 128k",
        "read -P 0 3M 128k",
        "read -P 19 3200k 128k",
        "write -z -u 4M 128k",
        "read -P 0 4M 128k",
        "discard 4M 256k",
        "read -P 0 4M 256k",
        "flush",
    ];
    qemu_io_ok(&["-f", "raw"], &server.uri("disk"), &commands);
    server.stop();
    assert_clean(Path::new(&path));
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 17 512 1M", "read -P 18 2M 64k", "read -P 0 4M 256k"]);
}

#[test]
fn nbdsh_finds_every_command_and_every_error_as_the_protocol_has_them() {
    const SCRIPT: &str = r"
import errno
size = h.get_size()
assert size == 16 << 20, size
assert h.can_multi_conn() and h.can_fua() and h.can_df() and h.can_trim() and h.can_zero()
h.pwrite(b'a' * 4096, 8192, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 8192) == b'a' * 4096
h.zero(1000, 8200)
assert h.pread(4096, 8192) == b'a' * 8 + b'\0' * 1000 + b'a' * 3088
h.zero(65536, 65536, nbd.CMD_FLAG_NO_HOLE)
h.trim(65536, 131072)
h.flush()
h.cache(65536, 0)
chunks = []
def chunk(data, offset, status, error):
    chunks.append((offset, len(data), status))
h.pread_structured(65536, 0, chunk, nbd.CMD_FLAG_DF)
assert sum(length for _, length, _ in chunks) == 65536, chunks
extents = []
def extent(context, offset, entries, error):
    extents.append((context, offset, entries))
h.block_status(size, 0, extent)
assert extents[0][0] == 'base:allocation' and sum(extents[0][2][0::2]) <= size, extents
h.block_status(size, 0, extent, nbd.CMD_FLAG_REQ_ONE)
assert len(extents[-1][2]) == 2, extents
h.set_strict_mode(0)
def fails(what, number):
    try:
        what()
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number, error.string)
    else:
        raise AssertionError('it succeeds')
fails(lambda: h.pread(512, size), errno.EINVAL)
fails(lambda: h.pread(512, size - 256), errno.EINVAL)
fails(lambda: h.pwrite(b'x' * 512, size), errno.ENOSPC)
fails(lambda: h.zero(512, size), errno.ENOSPC)
fails(lambda: h.trim(512, 1 << 63), errno.EINVAL)
assert h.pread(4, 8192) == b'aaaa'
print('done')
";
    let scratch = Scratch::new();
    let path = create(&scratch, "16M");
    let server = Server::start([&path]);
    let said = nbdsh(&server.uri("disk"), SCRIPT).ok();
    assert!(said.contains("done"), "{said}");
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn a_flush_on_one_connection_covers_writes_of_another() {
    let scratch = Scratch::new();
    let path = create(&scratch, "16M");
    let server = Server::start([&path]);
    let (mut a, mut b) = (server.client("disk"), server.client("disk"));
    assert_ne!(a.flags() & wire::FLAG_MULTI_CONN, 0);
    a.write(1 << 20, &[7; 4096]).expect("write");
    b.flush().expect("flush");
    assert_eq!(b.read(1 << 20, 4096).expect("read"), [7; 4096]);
    server.kill();
    // The other's flush wrote the tables: QEMU finds the data without us.
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 7 1M 4k"]);
}

#[test]
fn fio_finds_what_it_wrote_with_four_jobs_on_four_connections() {
    let scratch = Scratch::new();
    let path = create(&scratch, "1G");
    let server = Server::start([format!("file={path},discard=unmap")]);
    let seconds = std::env::var("COWHAND_FIO_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let seconds: u64 = seconds.unwrap_or(FIO_SECONDS);
    let runtime = format!("--runtime={seconds}");
    let options = [
        "--name=verify",
        "--rw=randrw",
        "--rwmixread=30",
        "--bsrange=512-128k",
        "--iodepth=16",
        "--numjobs=4",
        "--size=64M",
        "--offset_increment=256M",
        "--verify=crc32c-intel",
        "--verify_state_save=0",
        "--verify_backlog=512",
        "--verify_fatal=1",
        "--fsync=64",
        "--time_based",
        &runtime,
        "--group_reporting",
    ];
    let result = fio(&server.uri("disk"), &options, Duration::from_secs(seconds * 4 + 60));
    let job = &result["jobs"][0];
    assert_eq!(job["error"], 0, "{job}");
    assert!(job["write"]["total_ios"].as_u64().is_some_and(|ios| ios > 1000), "{job}");
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn fio_finds_what_it_wrote_past_the_page_cache() {
    let scratch = Scratch::new();
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "cluster_size=16k,extended_l2=on", &path, "256M"]).ok();
    let server = Server::start([format!("file={path},cache=none,l2-cache-size=64k")]);
    let options = [
        "--name=verify",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=32",
        "--size=64M",
        "--io_size=24M",
        "--verify=crc32c-intel",
        "--verify_state_save=0",
        "--do_verify=1",
        "--verify_fatal=1",
    ];
    let result = fio(&server.uri("disk"), &options, Duration::from_secs(120));
    assert_eq!(result["jobs"][0]["error"], 0, "{}", result["jobs"][0]);
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn qemu_speaks_extended_headers_with_us_where_it_can() {
    if qemu_version() < (8, 2) {
        // The version that is installed does not have them: the protocol crate's own tests do.
        println!("qemu-img has no extended headers before 8.2");
    }
    let scratch = Scratch::new();
    let path = create(&scratch, "8G");
    let server = Server::start([&path]);
    // One zeroing of more than 4 GiB in the extended dialect, several otherwise: the same result.
    qemu_io_ok(&["-f", "raw"], &server.uri("disk"), &["write -z -u 0 1G", "read -P 0 1000M 1M"]);
    server.stop();
    assert_clean(Path::new(&path));
}

fn assert_same(a: &Path, b: &Path) {
    let read = |path| std::fs::read(path).expect("a file");
    assert!(read(a) == read(b), "{} and {} differ", a.display(), b.display());
}
