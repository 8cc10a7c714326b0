//! Jobs on a disk in use, without a server: `jobs DIRECTORY`, which is empty.

use std::path::Path;

use cowhand::{Backup, Commit, Disk, Error, Mirror, NewImage, OpenOptions, create};

const SIZE: u64 = 64 << 20;

fn main() -> Result<(), Error> {
    run(std::env::args().nth(1).unwrap_or(".".into()).as_ref())
}

/// Makes images in `directory` and runs jobs on them.
pub fn run(directory: &Path) -> Result<(), Error> {
    let [base, overlay, copy, backup] =
        ["base.qcow2", "overlay.qcow2", "copy.qcow2", "backup.qcow2"].map(|name| directory.join(name));
    create(&base, NewImage::qcow2(SIZE)).wait()?;
    create(&overlay, NewImage::overlay(SIZE, "base.qcow2", cowhand::Format::Qcow2)).wait()?;
    let disk = Disk::open(&overlay).wait()?;
    disk.write(0, vec![1; 1 << 20]).wait()?;

    // A copy of the disk as it is now, whatever is written meanwhile.
    create(&backup, NewImage::qcow2(SIZE)).wait()?;
    let job = disk.backup(OpenOptions::new(&backup), Backup::default()).wait()?;
    disk.write(0, vec![2; 1 << 20]).wait()?;
    job.ended().wait()?;

    // What the overlay has goes into its base, and the disk switches to that.
    let job = disk.commit(Commit::default()).wait()?;
    job.ready().wait()?;
    job.complete().wait()?;
    job.ended().wait()?;
    println!("after the commit: {:?}", disk.info()?.chain);

    // The disk moves to another file while it is used.
    create(&copy, NewImage::qcow2(SIZE)).wait()?;
    let job = disk.mirror(OpenOptions::new(&copy), Mirror::default()).wait()?;
    job.ready().wait()?;
    disk.write(1 << 20, vec![3; 4096]).wait()?;
    println!("{:?}", job.info().wait()?);
    job.complete().wait()?;
    job.ended().wait()?;
    println!("after the mirror: {:?}", disk.info()?.chain);
    disk.close().wait()
}
