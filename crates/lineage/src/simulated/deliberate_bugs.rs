//! The simulation can fail: each bug that is put in on purpose is found, and soon.

use super::{Scope, sequence};
use crate::deliberate::{Bug, put_in};

/// Seeds among which a bug must be found.
const SEEDS: u64 = 6000;

/// The first of the seeds that finds the bug. Without the bug that seed must find nothing.
fn found(bug: Bug) {
    found_in(bug, Scope::Any);
}

/// The same for one that two rare things together show: among the commands that do them.
fn found_in(bug: Bug, scope: Scope) {
    put_in(Some(bug));
    let first = (0..SEEDS).find_map(|seed| sequence(seed, scope).err().map(|error| (seed, error)));
    put_in(None);
    let Some((seed, error)) = first else { panic!("{bug:?} is not found in {SEEDS} seeds") };
    println!("{bug:?}: seed {seed}: {}", error.lines().next().unwrap_or_default());
    if let Err(error) = sequence(seed, scope) {
        panic!("not the bug was found but another one: {error}");
    }
}

#[test]
fn layer_not_awaited() {
    found(Bug::LayerNotAwaited);
}

#[test]
fn overlay_not_awaited() {
    found(Bug::OverlayNotAwaited);
}

/// A second server was started on a disk in the middle of a rollback, and what it had flushed was in a file without a name.
#[test]
fn overlay_not_locked() {
    found(Bug::OverlayNotLocked);
}

#[test]
fn merged_not_awaited() {
    found_in(Bug::MergedNotAwaited, Scope::Removals);
}

#[test]
fn seal_not_awaited() {
    found(Bug::SealNotAwaited);
}

#[test]
fn manifest_not_awaited() {
    found(Bug::ManifestNotAwaited);
}

/// The first checkpoint was killed behind the making of `layers`, and a power cut in the next one took that directory away, with the disk in it.
#[test]
fn directory_not_awaited() {
    found_in(Bug::DirectoryNotAwaited, Scope::Removals);
}

#[test]
fn needed_layer_removed() {
    found(Bug::NeededLayerRemoved);
}

#[test]
fn fork_meanwhile_missed() {
    found(Bug::ForkMeanwhileMissed);
}

#[test]
fn others_merge_removed() {
    found(Bug::OthersMergeRemoved);
}

#[test]
fn unused_name_adopted() {
    found(Bug::UnusedNameAdopted);
}

#[test]
fn not_undone() {
    found(Bug::NotUndone);
}

#[test]
fn nothing_adopted() {
    found(Bug::NothingAdopted);
}

/// A checkpoint that was killed behind its rename, a guest that wrote and flushed before the next command, and a power cut: what was flushed was lost.
#[test]
fn disk_not_awaited() {
    found(Bug::DiskNotAwaited);
}

/// A merge removed a layer and was killed, the next command took its entry away, and a power cut brought the file back: a deleted checkpoint was one again.
#[test]
fn gone_not_awaited() {
    found_in(Bug::GoneNotAwaited, Scope::Removals);
}

/// A switch failed, and so did what takes it back: the server went on with the layer, and the next command sealed it.
#[test]
fn used_sealed() {
    found_in(Bug::UsedSealed, Scope::Transactions);
}

/// A checkpoint that was killed behind its rename, completed by the next command, and a power cut: the disk's path led to the sealed layer again, whose header
/// named its parent from the directory of the layers. The disk did not open.
#[test]
fn found_not_awaited() {
    found_in(Bug::FoundNotAwaited, Scope::Transactions);
}
