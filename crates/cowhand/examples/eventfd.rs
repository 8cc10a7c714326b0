//! A disk in an event loop of the caller's: a queue whose completions wake epoll. `eventfd PATH`, where PATH does not exist yet.

use std::io;
use std::path::Path;

use cowhand::{Buffer, Completion, NewImage, OpenOptions, Queue, Request, create};
use rustix::event::epoll;
use rustix::io::retry_on_intr;

/// Requests at a time.
const DEPTH: u64 = 16;
/// Requests in all.
const COUNT: u64 = 256;

fn main() -> io::Result<()> {
    run(std::env::args().nth(1).unwrap_or("disk.qcow2".into()).as_ref())
}

/// Makes the image and uses it.
pub fn run(path: &Path) -> io::Result<()> {
    create(path, NewImage::qcow2(1 << 30)).wait()?;
    let disk = OpenOptions::new(path).open().wait()?;
    let mut queue = disk.queue(DEPTH as usize)?;

    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&waiting, queue.completion_fd()?, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;

    for number in 0..DEPTH {
        submit(&mut queue, number, Buffer::new(4096))?;
    }
    let (mut ended, mut wakes, mut done) = (0, 0, Vec::new());
    while ended < COUNT {
        let mut events = Vec::with_capacity(4);
        retry_on_intr(|| epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None))?;
        wakes += 1;
        queue.completions(&mut done, 0, None)?;
        for Completion { user_data, result, buffer } in done.drain(..) {
            result?;
            ended += 1;
            if user_data + DEPTH < COUNT {
                submit(&mut queue, user_data + DEPTH, buffer)?;
            }
        }
    }
    println!("{ended} requests, at most {DEPTH} at a time, woken {wakes} times");
    drop(queue);
    Ok(disk.close().wait()?)
}

/// The buffer of a request that has ended serves the next one.
fn submit(queue: &mut Queue, number: u64, mut buffer: Buffer) -> io::Result<()> {
    buffer.fill(number as u8);
    Ok(queue.submit(Request::Write { offset: number * 4096, buffer, fua: false }, number)?)
}
