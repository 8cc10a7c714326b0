//! Refcounts that say "free" of what is in use: nothing of it is overwritten, and the image says that it is damaged.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod harness;

use std::collections::BTreeMap;

use harness::judge::{self, Piece};
use harness::{Qcow2Target, config};
use qcow2::snapshot::NewSnapshot;
use qcow2::{Error, ErrorKind, Qcow2};
use qcow2_layout::Incompatible;
use sim::Content;
use storage::{IoBuf, IoBytes, IoVec};

const CLUSTER: u64 = 4 << 10;

/// Where the cluster's refcount of 16 bits is.
fn refcount_at(image: &Content, cluster: u64) -> u64 {
    first(&judge::pieces(image), Piece::RefcountBlock) + cluster * 2
}

fn first(pieces: &BTreeMap<u64, Piece>, wanted: Piece) -> u64 {
    *pieces.iter().find(|(_, piece)| **piece == wanted).unwrap().0
}

/// An image in which `piece` has no refcount.
fn with_free(piece: Piece) -> Qcow2Target {
    Qcow2Target::patched(config("c4k"), |image| {
        let at = first(&judge::pieces(image), piece);
        image.write(refcount_at(image, at / CLUSTER), &[0, 0]);
    })
}

/// What `act` and the close after it come to, and the image file before and after.
fn after(
    target: &Qcow2Target,
    act: impl AsyncFn(&Qcow2) -> Result<(), Error>,
) -> ([Result<(), Error>; 2], Content, Content) {
    let world = target.world(1);
    let before = world.current(0);
    let results = sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await.unwrap();
        [act(&image).await, image.close().await]
    });
    (results.unwrap(), before, world.current(0))
}

fn is_marked(image: &Content) -> bool {
    judge::header(image).unwrap().incompatible.contains(Incompatible::CORRUPT)
}

fn assert_corrupt(result: &Result<(), Error>, word: &str) {
    let error = result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(word), "{word}: {error}");
}

#[test]
fn metadata_that_passes_for_free_is_not_given_to_a_guest() {
    for (piece, name) in [
        (Piece::RefcountTable, "refcount-table"),
        (Piece::RefcountBlock, "refcount-block"),
        (Piece::L1, "active-l1"),
        (Piece::L2, "active-l2"),
    ] {
        const GUEST: [u8; CLUSTER as usize] = [0xee; CLUSTER as usize];
        let fill = async |image: &Qcow2| {
            for cluster in 0..image.size() / CLUSTER {
                image.write(cluster * CLUSTER, IoVec::from(IoBytes::copy_from(&GUEST))).await?;
            }
            Ok(())
        };
        let ([filled, closed], before, image) = after(&with_free(piece), fill);
        assert_corrupt(&filled, name);
        assert_corrupt(&closed, "corrupt");
        assert!(is_marked(&image), "{piece:?}");
        let mut found = [0; CLUSTER as usize];
        image.read(first(&judge::pieces(&before), piece), &mut found);
        assert!(found != GUEST, "{piece:?} was overwritten");
    }
}

#[test]
fn data_that_passes_for_free_is_freed_by_nobody_and_the_image_says_so() {
    let target = with_free(Piece::Data);
    let discard = async |image: &Qcow2| image.discard(0, CLUSTER).await;
    let ([discarded, closed], _, image) = after(&target, discard);
    discarded.unwrap();
    assert_corrupt(&closed, "could not be freed");
    assert!(is_marked(&image));
}

#[test]
fn data_that_passes_for_free_is_in_no_snapshot() {
    let snapshot = async |image: &Qcow2| image.create_snapshot(NewSnapshot::default()).await.map(drop);
    let ([taken, closed], _, image) = after(&with_free(Piece::Data), snapshot);
    assert_corrupt(&taken, "refcount is 0");
    assert_corrupt(&closed, "corrupt");
    assert!(is_marked(&image) && judge::header(&image).unwrap().snapshots == 0);
}

#[test]
fn two_guest_clusters_that_share_one_of_the_data_file_are_neither_read_nor_written() {
    let target = Qcow2Target::patched(config("c4k_data_file"), |image| {
        let l2 = first(&judge::pieces(image), Piece::L2);
        // COPIED at offset 0: the place of the first cluster.
        image.write(l2 + 8, &(1u64 << 63).to_be_bytes());
    });
    let read = async |image: &Qcow2| image.read(CLUSTER, IoBuf::zeroed(512)).await.0.map(drop);
    let write = async |image: &Qcow2| image.write(CLUSTER, IoVec::from(IoBytes::copy_from(&[1; 512]))).await;
    let ([read, closed], ..) = after(&target, read);
    assert_corrupt(&read, "must be the guest offset, 0x1000");
    assert_corrupt(&closed, "corrupt");
    let ([written, closed], _, image) = after(&target, write);
    assert_corrupt(&written, "must be the guest offset, 0x1000");
    assert_corrupt(&closed, "corrupt");
    assert!(is_marked(&image));
}
