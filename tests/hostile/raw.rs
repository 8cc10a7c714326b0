//! Raw disks: what a guest writes never decides what the disk is.

use black_box::{Scratch, Server};

use super::victim::{Kind, Victim};

#[test]
fn a_raw_disk_is_never_written_because_it_was_guessed_to_be_raw() {
    let scratch = Scratch::new();
    scratch.write("disk.raw", &[0; 1 << 20]);
    let refused = Server::refuses([scratch.name("disk.raw")]);
    assert!(refused.contains("raw"), "it says what to do: {refused}");
}

#[test]
fn a_guest_that_writes_a_qcow2_header_to_a_raw_disk_gains_nothing() {
    let scratch = Scratch::new();
    let path = scratch.write("disk.raw", &vec![0; 8 << 20]);
    let drive = format!("file={},format=raw", path.display());
    let mut victim = Victim::new(Kind::Plain);
    victim.set_backing(b"/etc/passwd", "raw");

    let server = Server::start([&drive]);
    let mut client = server.client("");
    client.write(0, &victim.bytes).expect("a raw disk takes any bytes");
    client.flush().expect("flush");
    client.disconnect();
    server.stop();

    // Named as raw it stays raw, byte for byte.
    let server = Server::start([&drive]);
    let found = server.client("").read_all().expect("read");
    assert!(found[..victim.bytes.len()] == victim.bytes[..], "it is no longer raw");
    server.stop();
    // Unnamed it may be taken for qcow2, and then what it names is not opened.
    let refused = Server::refuses(["--read-only", path.to_str().expect("text")]);
    assert!(refused.contains("/etc/passwd"), "{refused}");
}
