//! Checkpoints of a disk in use, without a server: `checkpoints DIRECTORY`, which is empty.

use std::path::Path;

use cowhand::{Disk, Error, Forget, NewCheckpoint, NewImage, Removal, create};

fn main() -> Result<(), Error> {
    run(std::env::args().nth(1).unwrap_or(".".into()).as_ref())
}

/// Takes, forks, compares and forgets checkpoints of a disk in `directory`.
pub fn run(directory: &Path) -> Result<(), Error> {
    let path = directory.join("vm.qcow2");
    create(&path, NewImage::qcow2(64 << 20)).wait()?;
    let disk = Disk::open(&path).wait()?;
    disk.write(0, vec![1; 1 << 20]).wait()?;

    // The guest goes on meanwhile.
    disk.checkpoint(NewCheckpoint::named("clean")).wait()?;
    disk.write(0, vec![2; 4096]).wait()?;

    // Two new disks that begin as the checkpoint is; each shares its layer.
    let forks = disk.fork("clean", directory.join("fork.qcow2"), Some(2)).wait()?;
    for path in &forks {
        let fork = Disk::open(path).wait()?;
        fork.write(4096, vec![3; 4096]).wait()?;
        fork.close().wait()?;
    }

    for range in disk.differences("clean", None, 0).wait()?.ranges {
        println!("{} bytes at {}: {}", range.len, range.offset, range.other.name());
    }

    // The guest is stopped for this: its caches are of the disk as it was.
    let left = disk.rollback("clean").wait()?;
    println!("the disk is as it was, and what it had been is {left}");
    for checkpoint in disk.checkpoints().wait()? {
        let name = checkpoint.name.unwrap_or(checkpoint.id);
        println!("{name}: {} bytes, used by {:?}", checkpoint.allocated_bytes, checkpoint.users);
    }

    disk.delete_checkpoints([left], Removal::Remove).wait()?;
    let forgotten = disk.forget(Forget { depth_max: Some(16), ..Forget::default() }).wait()?;
    if let Some(job) = forgotten.job {
        job.ended().wait()?;
    }
    disk.close().wait()
}
