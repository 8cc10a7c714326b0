//! Clients that others wrote: nbdinfo, nbdcopy, nbdsh, qemu-io, qemu-img, fio.

use crate::support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::client::Client;
use support::memory_export::PAGE;
use support::{TestServer, peer, peer_succeeds};
use wire::nbd::client::ExportRequest;
use wire::nbd::{CommandFlags, Dialect, ErrorCode, command_number as n};

const MIB: u64 = 1 << 20;

fn pattern(len: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut step = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| step()).collect()
}

#[test]
fn nbdinfo_sees_the_exports_and_what_they_can() {
    let server = TestServer::start(64 * MIB);
    let list = peer_succeeds("nbdinfo", &["--list", "--json", &server.uri("")]);
    for expected in ["\"disk\"", "\"other\"", "a disk in memory"] {
        assert!(list.contains(expected), "{list}");
    }
    assert_eq!(peer_succeeds("nbdinfo", &["--size", &server.uri("disk")]).trim(), "67108864");
    let all = peer_succeeds("nbdinfo", &[&server.uri("disk")]);
    for expected in [
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_maximum: 33554432",
        "base:allocation",
        "qemu:allocation-depth",
        "qemu:dirty-bitmap:dirty",
    ] {
        assert!(all.contains(expected), "{expected}: {all}");
    }
    let unknown = peer("nbdinfo", &[&server.uri("nope")]);
    assert!(!unknown.status.success());
}

#[test]
fn nbdcopy_carries_a_disk_in_and_out_with_its_holes() {
    let server = TestServer::start(64 * MIB);
    let (source, target) = (server.directory().join("source"), server.directory().join("target"));
    let mut image = pattern(8 * MIB);
    image.resize(64 << 20, 0);
    image[40 << 20..][..MIB as usize].copy_from_slice(&pattern(MIB));
    std::fs::write(&source, &image).expect("space for 64 MiB");
    peer_succeeds("nbdcopy", &[source.to_str().expect("a path"), &server.uri("disk")]);
    assert!(server.disk.peek(0, 64 << 20) == image);
    let map = peer_succeeds("nbdinfo", &["--map", &server.uri("disk")]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let kinds: Vec<(&str, &str)> = rows.iter().map(|row| (row[1], row[3])).collect();
    assert_eq!(
        kinds,
        [("8388608", "data"), ("33554432", "hole,zero"), ("1048576", "data"), ("24117248", "hole,zero"),]
    );
    peer_succeeds("nbdcopy", &[&server.uri("disk"), target.to_str().expect("a path")]);
    assert!(std::fs::read(&target).expect("a copy") == image);
}

#[test]
fn nbdsh_gets_data_and_errors_as_the_protocol_says() {
    let server = TestServer::start(4 * MIB);
    let script = r#"
import errno
h.set_strict_mode(0)
h.add_meta_context("base:allocation")
h.add_meta_context("qemu:dirty-bitmap:dirty")
h.connect_uri(URI)
assert h.get_size() == 4 << 20
h.pwrite(b"x" * 10000, 5000, nbd.CMD_FLAG_FUA)
assert bytes(h.pread(10002, 4999)) == b"\0" + b"x" * 10000 + b"\0"
h.zero(4096, 8192)
assert bytes(h.pread(4096, 8192)) == bytes(4096)
h.trim(8192, 0)
h.cache(4096, 0)
h.flush()
def fails(expected, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == expected, error
    else:
        assert False, "no error"
fails(errno.EINVAL, lambda: h.pread(2, (4 << 20) - 1))
fails(errno.ENOSPC, lambda: h.pwrite(b"ab", (4 << 20) - 1))
fails(errno.ENOSPC, lambda: h.zero(2, (4 << 20) - 1))
fails(errno.EINVAL, lambda: h.trim(2, (4 << 20) - 1))
fails(errno.EINVAL, lambda: h.block_status(0, 0, lambda *args: 0))
seen = {}
h.block_status(65536, 0, lambda name, offset, extents, err: seen.__setitem__(name, extents))
assert set(seen) == {"base:allocation", "qemu:dirty-bitmap:dirty"}, seen
one = []
h.block_status(65536, 0, lambda n, o, extents, e: one.append(len(extents)), nbd.CMD_FLAG_REQ_ONE)
assert one == [2, 2], one
"#;
    let script = script.replace("URI", &format!("{:?}", server.uri("disk")));
    peer_succeeds("/usr/bin/python3", &["-m", "nbd", "-c", &script]);
    assert!(server.disk.flushes() >= 2);
}

#[test]
fn qemu_io_writes_what_it_reads() {
    let server = TestServer::start(64 * MIB);
    let uri = server.uri("disk");
    let commands = [
        "write -P 0x11 0 1M",
        "write -P 0x22 -f 1M 64k",
        "write -z 512k 4k",
        "write -z -u 600k 64k",
        "aio_write -P 0x33 2M 2M",
        "aio_write -P 0x44 4M 2M",
        "aio_flush",
        "discard 8M 1M",
        "flush",
        "read -P 0x11 0 512k",
        "read -P 0 512k 4k",
        "read -P 0 600k 64k",
        "read -P 0x22 1M 64k",
        "read -P 0x33 2M 2M",
        "read -P 0x44 4M 2M",
        "read -P 0 7M 3M",
    ];
    let mut arguments = vec!["-f", "raw", &uri];
    arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
    let output = peer_succeeds("qemu-io", &arguments);
    assert!(!output.contains("failed"), "{output}");
    assert!(server.disk.flushes() >= 2);
}

#[test]
fn qemu_img_maps_converts_and_compares() {
    let server = TestServer::start(16 * MIB);
    let source = server.directory().join("source.qcow2");
    let source = source.to_str().expect("a path");
    peer_succeeds("qemu-img", &["create", "-q", "-f", "qcow2", source, "16M"]);
    peer_succeeds("qemu-io", &["-c", "write -P 5 1M 1M", "-c", "write -P 6 9M 64k", source]);
    let uri = server.uri("disk");
    peer_succeeds("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", source, &uri]);
    peer_succeeds("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", source, &uri]);
    let map = peer_succeeds("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"start\": 1048576, \"length\": 1048576"), "{map}");
    let bitmap = format!(
        "driver=nbd,server.type=unix,server.path={},export=disk,x-dirty-bitmap=qemu:dirty-bitmap:dirty",
        server.socket().display()
    );
    let map = peer_succeeds("qemu-img", &["map", "--output=json", "--image-opts", &bitmap]);
    assert!(map.contains("\"start\": 9437184, \"length\": 65536"), "{map}");
}

#[test]
fn fio_verifies_what_four_connections_write() {
    let server = TestServer::start(64 * MIB);
    let uri = format!("--uri={}", server.uri("disk"));
    let jobs = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bsrange=512-128k",
        "--blockalign=512",
        "--numjobs=4",
        "--iodepth=16",
        "--size=16M",
        "--offset_increment=16M",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--verify_fatal=1",
        "--verify_backlog=64",
        "--fsync=50",
        "--io_size=48M",
        "--group_reporting",
    ];
    let output = peer_succeeds("fio", &jobs);
    assert!(output.contains("err= 0"), "{output}");
    let counted = server.entry.counters().snapshot();
    assert!(counted.write.requests > 1000 && counted.errors() == 0, "{counted:?}");
    assert!(server.disk.peek(0, PAGE as usize).iter().any(|&byte| byte != 0));
}

/// A server that others wrote.
struct OtherServer(Child);

impl OtherServer {
    fn start(program: &str, arguments: &[&str], socket: &Path) -> Self {
        let child = Command::new(program).args(arguments).stderr(Stdio::null()).spawn();
        let server = Self(child.unwrap_or_else(|error| panic!("{program} is needed for this test: {error}")));
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < deadline, "{program} does not listen");
            std::thread::yield_now();
        }
        server
    }
}

impl Drop for OtherServer {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every request that a client can send, and a refused one, against another server's export "".
fn exercise(socket: &Path, dialect: Dialect) {
    let contexts = vec!["base:allocation".to_owned()];
    let wanted = ExportRequest { export: String::new(), tls: false, dialect, contexts };
    let mut client = Client::negotiate(socket, wanted).expect("the server to agree");
    assert_eq!(client.agreed.size, 4 * MIB);
    client.send_write(1, 4096, &pattern(100_000));
    assert_eq!(client.reply(0).result, Ok(()));
    client.send_read(2, 4096, 100_000);
    assert!(client.reply(100_000).data == pattern(100_000));
    let flags = CommandFlags::NONE;
    assert!(client.call(Client::header(n::FLUSH, flags, 3, (0, 0)), &[]).is_ok());
    assert!(client.call(Client::header(n::WRITE_ZEROES, flags, 4, (4096, 4096)), &[]).is_ok());
    client.send_read(5, 4096, 4096);
    assert!(client.reply(4096).data == [0; 4096]);
    let past_the_end = Client::header(n::READ, flags, 6, (4 * MIB - 1, 2));
    assert_eq!(client.call(past_the_end, &[]), Err(ErrorCode::Inval));
    if client.agreed.dialect > Dialect::Simple {
        let status = Client::header(n::BLOCK_STATUS, flags, 7, (0, MIB));
        let found = client.call(status, &[]).expect("a status").status;
        assert_eq!(found.len(), 1);
        assert!(found[0].1.iter().map(|extent| extent.len).sum::<u64>() >= 4096);
    }
    client.send(Client::header(n::DISCONNECT, flags, 0, (0, 0)), &[]);
}

#[test]
fn our_half_of_the_client_works_with_the_servers_of_others() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (socket, image) = (scratch.path().join("socket"), scratch.path().join("image"));
    let socket_name = socket.to_str().expect("a path");
    for dialect in [Dialect::Simple, Dialect::Structured, Dialect::Extended] {
        let _nbdkit = OtherServer::start("nbdkit", &["-f", "-U", socket_name, "memory", "4M"], &socket);
        exercise(&socket, dialect);
        std::fs::remove_file(&socket).expect("the socket of a server that goes");

        std::fs::write(&image, vec![0; 4 << 20]).expect("space");
        let image_name = image.to_str().expect("a path");
        let arguments = ["-t", "-e", "0", "-k", socket_name, "-f", "raw", image_name];
        let _qemu = OtherServer::start("qemu-nbd", &arguments, &socket);
        exercise(&socket, dialect);
        std::fs::remove_file(&socket).expect("the socket of a server that goes");
    }
}
