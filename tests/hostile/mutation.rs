//! Real images, changed byte by byte: no value of any byte may cost more than an error message.

use std::time::Duration;

use black_box::client::Failed;
use black_box::server::{NotStarted, Start};
use black_box::{Random, Run, Scratch, cowhand};

use super::trial::place;
use super::victim::{Kind, L1_OFFSET, Victim};

/// Bytes changed in the tables of each image, unless `COWHAND_MUTATIONS` says how many.
const MUTATIONS: u64 = 60;

#[test]
fn no_value_of_a_header_byte_breaks_a_tool() {
    let victim = Victim::new(Kind::Plain);
    let scratch = Scratch::new();
    for at in 4..112 {
        let mut bytes = victim.bytes.clone();
        for value in [0x00, 0xff, victim.bytes[at] ^ 0x80, victim.bytes[at].wrapping_add(1)] {
            bytes[at] = value;
            place(&scratch, &bytes).expect("cannot write an image");
            let path = scratch.name("disk.qcow2");
            orderly(cowhand(["info", "-f", "qcow2", &path]), &format!("byte {at} is {value:#x}"));
            orderly(cowhand(["check", "-f", "qcow2", &path]), &format!("byte {at} is {value:#x}"));
        }
    }
}

#[test]
fn no_value_of_a_table_byte_breaks_the_server() {
    for kind in [Kind::Plain, Kind::Snapshot, Kind::Small, Kind::Extended, Kind::Old] {
        let victim = Victim::new(kind);
        let mut random = Random::of_name(&format!("{kind:?}"));
        for _ in 0..mutations() {
            let mut bytes = victim.bytes.clone();
            let mut changed = Vec::new();
            for _ in 0..random.between(1, 3) {
                let (at, value) = mutate(&victim, &mut random, &mut bytes);
                changed.push(format!("byte {at:#x} is {value:#x}"));
            }
            serve_mutant(&bytes, &format!("{kind:?}: {}", changed.join(", ")));
        }
    }
}

fn mutations() -> u64 {
    std::env::var("COWHAND_MUTATIONS").ok().and_then(|number| number.parse().ok()).unwrap_or(MUTATIONS)
}

/// Changes a byte in a table, mostly in the part that is used.
fn mutate(victim: &Victim, random: &mut Random, bytes: &mut [u8]) -> (usize, u8) {
    let tables =
        [victim.get(L1_OFFSET), victim.l2_table(), victim.refcount_table(), victim.refcount_block(), 0];
    let span = *random.pick(&[16, 64, 256]);
    let at = *random.pick(&tables) + random.below(span.min(victim.cluster()));
    let at = usize::try_from(at).expect("inside");
    let value = *random.pick(&[0, 0xff, 0x80, 0x40, 1, 2, 3, bytes[at] ^ 1, bytes[at] ^ 0x10]);
    bytes[at] = value;
    (at, value)
}

fn orderly(run: Run, what: &str) {
    let outcome = run.limit(Duration::from_secs(4)).outcome();
    assert!(outcome.status.code().is_some(), "{what}: {outcome}");
}

/// Serves it for writing, reads and writes everywhere, ends it; errors are fine.
fn serve_mutant(bytes: &[u8], what: &str) {
    let scratch = Scratch::new();
    place(&scratch, bytes).expect("cannot write an image");
    let path = scratch.name("disk.qcow2");
    orderly(cowhand(["check", "-f", "qcow2", &path]), what);
    let mut server = match Start::new([format!("file={path},format=qcow2,discard=unmap")]).listen() {
        Ok(server) => server,
        Err(NotStarted(outcome)) => return assert_eq!(outcome.status.code(), Some(1), "{what}: {outcome}"),
    };
    let mut client = server.client("");
    for offset in (0..client.size().saturating_sub(65536)).step_by(32768) {
        let outcomes = [
            client.read(offset, 32768).map(drop),
            client.write(offset + 100, &[0xa7; 1000]),
            if offset % 3 == 0 { client.trim(offset, 32768) } else { client.write_zeroes(offset, 32768, 0) },
        ];
        for outcome in outcomes {
            assert!(!matches!(outcome, Err(Failed::Gone(_))), "{what}: {outcome:?}");
        }
    }
    drop(client);
    server.signal(rustix::process::Signal::TERM);
    let outcome = server.outcome();
    assert!(matches!(outcome.status.code(), Some(0 | 1)), "{what}: {outcome}");
    assert!(outcome.peak_rss_bytes < 256 << 20, "{what}: {outcome}");
}
