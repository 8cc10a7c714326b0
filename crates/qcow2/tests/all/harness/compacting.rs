//! Compacting the image of a world, and what it must keep.

use std::ops::ControlFlow;

use qcow2::{CompactOptions, CompactReport};
use sim::{Management, Subject, Target, World};
use storage::{Hints, IoBuf};

use super::Qcow2Target;

/// Compacts the image of a world, which is not in use.
pub fn compact(world: &World, options: CompactOptions) -> CompactReport {
    let done = sim::run(world, 1, async |_| {
        qcow2::compact(&world.open(0), None, options, &mut |_| ControlFlow::Continue(())).await
    });
    done.expect("nobody waits for ever").expect("nothing fails")
}

/// What a guest reads of the disk, and of the disk as each snapshot of a client's has it. The world stays as it is.
pub fn contents(target: &Qcow2Target, world: &World) -> Vec<Vec<u8>> {
    let (disk, snapshots) = read(target, &world.copy(1), None);
    let of_snapshot = |number| read(target, &world.copy(1), Some(number)).0;
    std::iter::once(disk).chain(snapshots.into_iter().map(of_snapshot)).collect()
}

fn read(target: &Qcow2Target, world: &World, snapshot: Option<u32>) -> (Vec<u8>, Vec<u32>) {
    let content = sim::run(world, 1, async |_| {
        let subject = target.open(world, 0).await.expect("it is sound");
        let snapshots = subject.snapshots().await.expect("they can be read").unwrap_or_default();
        if let Some(number) = snapshot {
            subject.manage(Management::SnapshotApply(number)).await.expect("it is there");
        }
        let (result, bytes) = subject.0.read(0, IoBuf::uninit(subject.size() as usize), Hints::NONE).await;
        result.expect("it can be read");
        subject.close().await.expect("nothing fails");
        (bytes.to_vec(), snapshots)
    });
    content.expect("nobody waits for ever")
}
