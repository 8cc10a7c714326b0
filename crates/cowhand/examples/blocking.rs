//! A disk used by threads that wait: `blocking PATH`, where PATH does not exist yet.

use std::path::Path;

use cowhand::{Disk, Error, NewImage, ZeroOptions, create};

fn main() -> Result<(), Error> {
    run(std::env::args().nth(1).unwrap_or("disk.qcow2".into()).as_ref())
}

/// Makes the image and uses it.
pub fn run(path: &Path) -> Result<(), Error> {
    create(path, NewImage::qcow2(1 << 30)).wait()?;
    let disk = Disk::open(path).wait()?;

    // Four threads, each with a handle of its own.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u8)
            .map(|number| {
                let disk = disk.clone();
                scope.spawn(move || {
                    let offset = u64::from(number) << 20;
                    disk.write_at(offset, &[number; 4096])?;
                    let mut bytes = [0; 4096];
                    disk.read_at(offset, &mut bytes)?;
                    assert_eq!(bytes, [number; 4096]);
                    Ok(())
                })
            })
            .collect();
        let joined = threads.into_iter().filter_map(|thread| thread.join().ok());
        joined.collect::<Result<Vec<()>, Error>>()
    })?;

    disk.write_zeroes(0, 1 << 20, ZeroOptions::default()).wait()?;
    disk.flush().wait()?;
    for extent in disk.extents(0, 8 << 20).wait()? {
        let what = if extent.data { "data" } else { "zeroes" };
        println!("{:>8} {:>8} {what}", extent.offset, extent.len);
    }

    match disk.read_at(1 << 30, &mut [0]) {
        Err(error) => println!("{:?}, error number {}: {error}", error.kind(), error.errno()),
        Ok(()) => println!("the disk has grown"),
    }
    disk.close().wait()
}
