//! Refcounts that say "free" of what is in use: nothing of it is overwritten, and the image says that it is damaged.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use crate::harness;

use std::collections::BTreeMap;

use harness::judge::{self, Piece};
use harness::{Qcow2Target, config};
use qcow2::cache_sizes::CacheRequest;
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2::{Error, ErrorKind, Qcow2};
use qcow2_layout::Incompatible;
use sim::Content;
use storage::{Hints, IoBuf, IoBytes, IoVec};

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
                image.write(cluster * CLUSTER, IoVec::from(IoBytes::copy_from(&GUEST)), Hints::NONE).await?;
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
    let read = async |image: &Qcow2| image.read(CLUSTER, IoBuf::zeroed(512), Hints::NONE).await.0.map(drop);
    let write = async |image: &Qcow2| {
        image.write(CLUSTER, IoVec::from(IoBytes::copy_from(&[1; 512])), Hints::NONE).await
    };
    let ([read, closed], ..) = after(&target, read);
    assert_corrupt(&read, "must be the guest offset, 0x1000");
    assert_corrupt(&closed, "corrupt");
    let ([written, closed], _, image) = after(&target, write);
    assert_corrupt(&written, "must be the guest offset, 0x1000");
    assert_corrupt(&closed, "corrupt");
    assert!(is_marked(&image));
}

/// An image of 4 KiB clusters whose first L2 table a snapshot shares.
fn with_shared_table() -> Qcow2Target {
    Qcow2Target::new(config("c4k_snapshots"))
}

/// Where the first L2 table of the active image is.
fn first_active_l2(image: &Content) -> u64 {
    let mut entry = [0; 8];
    image.read(judge::header(image).unwrap().l1_table_offset.0, &mut entry);
    u64::from_be_bytes(entry) & 0x00ff_ffff_ffff_fe00
}

async fn write_at(image: &Qcow2, at: u64) -> Result<(), Error> {
    image.write(at, IoVec::from(IoBytes::copy_from(&[7; 512])), Hints::NONE).await
}

/// After a snapshot the first write copied the L2 table. The old one was the snapshot's alone from then on, and nothing looked at its
/// place any more: an entry that led there let a guest overwrite the snapshot.
#[test]
fn the_table_that_a_snapshot_keeps_is_metadata_as_before_the_copy() {
    let target = with_shared_table();
    let world = target.world(1);
    let shared = first(&judge::pieces(&world.current(0)), Piece::L2);
    for copied in [false, true] {
        let world = target.world(1);
        let result = sim::run(&world, 1, |_| async {
            let image = target.open_with(&world, target.config().options(0)).await.unwrap();
            if copied {
                write_at(&image, 0).await.unwrap();
                image.flush().await.unwrap();
            }
            let own = first_active_l2(&world.current(0));
            assert_eq!(own != shared, copied, "the first write copies the table, and no other");
            let entry = (1u64 << 63 | shared).to_be_bytes();
            image.file().write(own + 8 * 100, IoBytes::copy_from(&entry).into(), Hints::NONE).await.unwrap();
            image
                .set_caches(CacheRequest { l2_entry_bytes: Some(512), ..CacheRequest::default() })
                .await
                .unwrap();
            let written = write_at(&image, 100 * CLUSTER).await;
            let read = image.read(100 * CLUSTER, IoBuf::zeroed(512), Hints::NONE).await.0;
            let _ = image.close().await;
            (written, read.map(drop))
        });
        let (written, read) = result.unwrap();
        assert_corrupt(&written, "l2");
        assert_corrupt(&read, "l2");
        let (mut before, mut after) = ([0; 16], [0; 16]);
        target.world(1).current(0).read(shared, &mut before);
        world.current(0).read(shared, &mut after);
        assert_eq!(before, after, "the snapshot's table was overwritten");
    }
}

/// The same where the engine takes the snapshot: it leaves its tables to the snapshot then and there.
#[test]
fn the_tables_that_a_new_snapshot_takes_over_are_metadata_as_before() {
    let target = Qcow2Target::new(config("c4k"));
    let world = target.world(1);
    let result = sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await.unwrap();
        let taken_over = first_active_l2(&world.current(0));
        image.create_snapshot(NewSnapshot::default()).await.unwrap();
        let own = first_active_l2(&world.current(0));
        assert!(own != taken_over);
        let entry = (1u64 << 63 | taken_over).to_be_bytes();
        image.file().write(own + 8 * 100, IoBytes::copy_from(&entry).into(), Hints::NONE).await.unwrap();
        image
            .set_caches(CacheRequest { l2_entry_bytes: Some(512), ..CacheRequest::default() })
            .await
            .unwrap();
        let written = write_at(&image, 100 * CLUSTER).await;
        let _ = image.close().await;
        written
    });
    assert_corrupt(&result.unwrap(), "inactive-l2");
}

/// Clusters of a snapshot's table that are not used any more are clusters like others.
#[test]
fn a_table_that_went_with_its_snapshot_is_no_metadata_any_more() {
    let target = Qcow2Target::new(config("c4k"));
    let world = target.world(1);
    let result = sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await?;
        for round in 0..3u64 {
            let snapshot = image.create_snapshot(NewSnapshot::default()).await?;
            write_at(&image, round * CLUSTER).await?;
            image.flush().await?;
            image.delete_snapshot(SnapshotName::Id(snapshot.id_text().into_owned())).await?;
        }
        for cluster in 0..image.size() / CLUSTER {
            write_at(&image, cluster * CLUSTER).await?;
        }
        image.close().await
    });
    result.unwrap().unwrap();
}
