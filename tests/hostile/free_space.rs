//! Refcounts that make the free space of a file as complicated as it can be.

use std::os::unix::fs::FileExt;

use black_box::peer::qemu_img;
use black_box::{Scratch, Server};

const CLUSTER: u64 = 64 << 10;
/// Refcount blocks, each for 32 GiB of the file.
const BLOCKS: u64 = 128;
/// Memory of the server, whatever the image says.
const PEAK_BYTES_MAX: u64 = 128 << 20;

/// An image of 9 MiB whose refcounts are 1, 0, 1, 0 and so on, over 4 TiB.
fn every_second_cluster_is_free(scratch: &Scratch) -> String {
    let path = scratch.name("pieces.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "refcount_bits=1", &path, "1G"]).ok();
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("an image");
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).expect("inside");
        u64::from_be_bytes(bytes)
    };
    let write = |bytes: &[u8], at: u64| file.write_all_at(bytes, at).expect("room for an image");
    let table = word(48);
    let first = file.metadata().expect("an image").len().next_multiple_of(CLUSTER);
    for index in 1..BLOCKS {
        write(&(first + index * CLUSTER).to_be_bytes(), table + 8 * index);
        write(&[0x55; CLUSTER as usize], first + index * CLUSTER);
    }
    let mut block = [0x55; CLUSTER as usize];
    // All metadata is in use.
    block[..32].fill(0xff);
    write(&block, word(table));
    file.set_len(BLOCKS * CLUSTER * 8 * CLUSTER).expect("a sparse file");
    path
}

/// 12 MiB of writes, each of which looks for free clusters in one more block, once took 659 to 1,185 MiB.
#[test]
fn free_space_in_countless_pieces_takes_bounded_memory() {
    let scratch = Scratch::new();
    let path = every_second_cluster_is_free(&scratch);
    // A reserve would be filled once, and looked for no more.
    let server = Server::start([format!("file={path},allocation-reserve=0")]);
    let mut client = server.client("");
    // Not one behind the other: each asks for a place of its own.
    for index in 0..192 {
        client.write(2 * index * CLUSTER, &[7; CLUSTER as usize]).expect("write");
    }
    client.flush().expect("flush");
    let peak = server.peak_rss_bytes();
    assert!(peak <= PEAK_BYTES_MAX, "{peak} bytes");
    client.disconnect();
    server.stop();
}
