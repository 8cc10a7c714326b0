//! A disk used by futures, here in futures-executor: `futures PATH`, where PATH does not exist yet.

use std::path::Path;

use cowhand::{Buffer, Disk, Error, NewImage, create};
use futures_executor::block_on;
use futures_util::future::try_join_all;

/// Requests at a time.
const DEPTH: u64 = 16;
/// Bytes of each.
const BYTES: usize = 64 << 10;

fn main() -> Result<(), Error> {
    run(std::env::args().nth(1).unwrap_or("disk.qcow2".into()).as_ref())
}

/// Makes the image and uses it.
pub fn run(path: &Path) -> Result<(), Error> {
    block_on(async {
        create(path, NewImage::qcow2(1 << 30)).await?;
        let disk = Disk::open(path).await?;
        fill(&disk).await?;
        disk.flush().await?;
        let read = (0..DEPTH).map(|index| disk.read(index * BYTES as u64, Buffer::new(BYTES)));
        for (index, buffer) in try_join_all(read).await?.iter().enumerate() {
            assert!(buffer.iter().all(|byte| usize::from(*byte) == index));
        }
        let snapshot = disk.create_snapshot("full").await?;
        println!("snapshot {} {:?} of {} bytes", snapshot.id, snapshot.name, disk.size()?);
        disk.close().await
    })
}

/// Every request gives its bytes back, for the next one.
async fn fill(disk: &Disk) -> Result<(), Error> {
    let written = (0..DEPTH as u8).map(async |index| {
        let mut buffer = Buffer::new(BYTES);
        buffer.fill(index);
        disk.write(u64::from(index) * BYTES as u64, buffer).await
    });
    let buffers = try_join_all(written).await?;
    println!("wrote {} buffers of {BYTES} bytes", buffers.len());
    Ok(())
}
