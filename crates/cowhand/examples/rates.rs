//! Random reads of 4 KiB through the library, to be compared with `cowhand bench --access random` on the same image, which is only
//! read: `rates PATH [COUNT]`. The first pass over the image warms it up.

use std::path::Path;
use std::time::Instant;

use cowhand::{Buffer, Disk, Error, OpenOptions, Request};

/// Bytes of a read.
const BYTES: usize = 4096;
/// Requests at a time in the queue.
const DEPTH: usize = 16;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().map_or("disk.qcow2", String::as_str);
    let count = arguments.get(1).and_then(|count| count.parse().ok()).unwrap_or(500_000);
    run(path.as_ref(), count)
}

/// Reads `count` times in each way.
pub fn run(path: &Path, count: u64) -> Result<(), Error> {
    let disk = OpenOptions::new(path).read_only(true).open().wait()?;
    let size = disk.size()?;
    for offset in (0..size).step_by(1 << 20) {
        disk.read(offset, Buffer::new((size - offset).min(1 << 20) as usize)).wait()?;
    }
    tell("blocking, borrowed slice", count, || blocking(&disk, count))?;
    tell("blocking, own buffer", count, || waiting(&disk, count))?;
    tell("queue, depth 16", count, || queued(&disk, count))?;
    disk.close().wait()
}

fn tell(what: &str, count: u64, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let start = Instant::now();
    work()?;
    println!("{what}: {:.0} reads a second", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Offsets all over the disk, the same on every run.
fn offsets(disk: &Disk) -> Result<impl FnMut() -> u64 + use<>, Error> {
    let blocks = disk.size()? / BYTES as u64;
    let mut random = 1u64;
    Ok(move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % blocks * BYTES as u64
    })
}

fn blocking(disk: &Disk, count: u64) -> Result<(), Error> {
    let (mut next, mut bytes) = (offsets(disk)?, [0; BYTES]);
    (0..count).try_for_each(|_| disk.read_at(next(), &mut bytes))
}

fn waiting(disk: &Disk, count: u64) -> Result<(), Error> {
    let (mut next, mut buffer) = (offsets(disk)?, Buffer::new(BYTES));
    for _ in 0..count {
        buffer = disk.read(next(), buffer).wait()?;
    }
    Ok(())
}

fn queued(disk: &Disk, count: u64) -> Result<(), Error> {
    let (mut next, mut queue) = (offsets(disk)?, disk.queue(DEPTH)?);
    let mut free: Vec<_> = (0..DEPTH).map(|_| Buffer::new(BYTES)).collect();
    let (mut left, mut done) = (count, Vec::new());
    while left > 0 || queue.in_flight() > 0 {
        while left > 0
            && let Some(buffer) = free.pop()
        {
            queue.submit(Request::Read { offset: next(), buffer }, left)?;
            left -= 1;
        }
        queue.completions(&mut done, 1, None)?;
        for completion in done.drain(..) {
            completion.result?;
            free.push(completion.buffer);
        }
    }
    Ok(())
}
