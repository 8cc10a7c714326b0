//! Kill -9 leaves bitmaps that say dirty of all that changed.
//!
//! Incremental backups by a bitmap that misses a change lose that change, and no client notices until a restore. So nothing that was sent is
//! ever clean, whether it was acknowledged or not, however often the server is killed; and most of what was never written stays clean.

use std::collections::BTreeSet;
use std::time::Duration;

use black_box::peer::{assert_leaks_at_most, dirty, qemu_img};
use black_box::{Random, Run, Scratch, Server, cowhand};

/// Kills.
const ROUNDS: u64 = 50;

const GRANULARITY: u64 = 64 << 10;
const DISK: u64 = 4 << 30;

/// What a crash makes dirty beside what was written: a thousandth of the disk.
const REGION: u64 = 4 << 20;

fn dirty_in(server: &Server) -> Vec<(u64, u64)> {
    dirty(&Run::new("nbdinfo").args(["--json", "--map=qemu:dirty-bitmap:inc", &server.uri("disk")]).json())
}

/// Everything in `answered` is dirty, and what is dirty for nothing lies in regions that were written to, or were to be: a region is recorded before
/// the first write to it, which may never have been answered.
fn judge(server: &Server, answered: &BTreeSet<u64>, sent: &BTreeSet<u64>, round: u64) {
    let found = dirty_in(server);
    for &block in answered {
        let offset = block * GRANULARITY;
        let is_dirty = found.iter().any(|(start, len)| (*start..start + len).contains(&offset));
        assert!(is_dirty, "round {round}: {offset:#x} was written and is clean: {found:?}");
    }
    let regions: BTreeSet<u64> = sent.iter().map(|block| block * GRANULARITY / REGION).collect();
    let bytes: u64 = found.iter().map(|(_, len)| len).sum();
    // Who writes into the next region may have some ahead recorded.
    let most = regions.len() as u64 * 8 * REGION;
    assert!(bytes <= most, "round {round}: {bytes} bytes are dirty, {most} at most");
}

#[test]
fn kill_9_in_the_middle_of_writes_never_leaves_clean_what_changed() {
    let scratch = Scratch::new();
    let path = scratch.name("disk.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &path, &DISK.to_string()]).ok();
    qemu_img(["bitmap", "--add", &path, "inc"]).ok();
    kill_in_the_middle_of_writes(&path, &path);
}

/// A raw disk's bitmaps lie in another file than its data.
#[test]
fn nor_does_it_where_the_bitmaps_of_a_raw_disk_have_a_file_of_their_own() {
    let scratch = Scratch::new();
    let (path, bitmaps) = (scratch.name("disk.raw"), scratch.name("disk.bitmaps"));
    qemu_img(["create", "-q", "-f", "raw", &path, &DISK.to_string()]).ok();
    let drive = format!("id=disk,format=raw,file={path},bitmaps={bitmaps}");
    cowhand(["bitmap", "--add", &drive, "inc"]).ok();
    kill_in_the_middle_of_writes(&drive, &bitmaps);
}

/// Kills servers of `drive`, whose bitmap "inc" is in the image `bitmaps`.
fn kill_in_the_middle_of_writes(drive: &str, bitmaps: &str) {
    let rounds = super::number("COWHAND_KILL_ROUNDS").unwrap_or(ROUNDS);
    let mut random = Random::new(super::number("COWHAND_KILL_SEED").unwrap_or(1));
    let (mut answered, mut sent) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..rounds {
        let server = Server::start([drive]);
        judge(&server, &answered, &sent, round);
        let mut client = server.client("disk");
        let blocks: Vec<u64> = (0..200).map(|_| random.below(DISK / GRANULARITY / 64)).collect();
        let wait = Duration::from_micros(random.below(20_000));
        let blocks = std::thread::scope(|scope| {
            let load = scope.spawn(move || {
                let mut write = |block: &u64| client.write(block * GRANULARITY + 512, &[7; 512]).is_ok();
                // The last one was sent, too, and may have landed.
                let answered = blocks.iter().take_while(|block| write(block)).count();
                blocks.into_iter().take(answered + 1).collect::<Vec<u64>>()
            });
            std::thread::sleep(wait);
            server.kill();
            load.join().expect("it ends with the server")
        });
        // What the server never received may be clean: only the last one.
        answered.extend(blocks.split_last().map(|(_, answered)| answered).unwrap_or_default());
        sent.extend(blocks);
    }
    let server = Server::start([drive]);
    judge(&server, &answered, &sent, rounds);
    server.stop();
    assert!(!answered.is_empty(), "nothing was ever answered");
    assert_leaks_at_most(std::path::Path::new(bitmaps));
    let shown = qemu_img(["info", "--output=json", bitmaps]).json();
    let flags = &shown["format-specific"]["data"]["bitmaps"][0]["flags"];
    assert_eq!(*flags, serde_json::json!(["auto"]), "a clean close leaves it to QEMU");
    println!("looked at in kill: {rounds} kills with a bitmap, {} blocks written", answered.len());
}
