//! Random requests to a file, in process: what the loop and the storage cost without a door.
//!
//! `io_loop FILE read|tryread|write DEPTH COUNT [SIZE] [direct] [threads]`

#![expect(clippy::unwrap_used, reason = "an experiment may end")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use reactor::{Backend, Reactor, spawn, yield_now};
use rustix::time::{ClockId, clock_gettime};
use storage::{FileOptions, FileStorage, Hints, IoBuf, IoBytes, Storage};

/// CPU time of all threads, those of the kernel's workers included.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Makes requests until none are left.
async fn work(storage: Rc<FileStorage>, left: Rc<Cell<u64>>, kind: String, size: usize, seed: u64) {
    let blocks = storage.length() / size as u64;
    let data = IoBytes::copy_from(&vec![7; size]);
    let mut buf = IoBuf::uninit(size);
    let mut random = seed;
    while left.get() > 0 {
        left.set(left.get() - 1);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (random >> 33) % blocks * size as u64;
        if kind == "write" {
            storage.write(offset, data.clone().into(), Hints::NONE).await.unwrap();
        } else if kind == "tryread" && storage.try_read(offset, &mut buf, Hints::NONE) {
            yield_now().await;
        } else {
            let (result, back) = storage.read(offset, buf, Hints::NONE).await;
            result.unwrap();
            buf = back;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let backend = if has("threads") { Backend::Threads } else { Backend::Ring };
    let options = FileOptions { direct: has("direct"), read_only: false, no_flush: false, aio: backend };
    let storage = Rc::new(FileStorage::open(&arguments[0], &options).unwrap());
    let (depth, count): (u64, u64) = (arguments[2].parse().unwrap(), arguments[3].parse().unwrap());
    let size = arguments.get(4).and_then(|size| size.parse().ok()).unwrap_or(4096);
    let reactor = Reactor::new(backend).unwrap();
    let (start, cpu_start) = (Instant::now(), cpu_time());
    reactor.run(async {
        let left = Rc::new(Cell::new(count));
        let worker = |seed| work(Rc::clone(&storage), Rc::clone(&left), arguments[1].clone(), size, seed);
        let workers: Vec<_> = (1..=depth).map(|seed| spawn(worker(seed))).collect();
        for worker in workers {
            worker.await;
        }
    });
    let (wall, cpu) = (start.elapsed().as_secs_f64() / count as f64, (cpu_time() - cpu_start).as_secs_f64());
    println!(
        "{}: {:.1} thousand a second; a request: {:.2} us, {:.2} us of CPU time, {:.2} system calls",
        arguments[1..].join(" "),
        1e-3 / wall,
        wall * 1e6,
        cpu / count as f64 * 1e6,
        reactor.stats().calls as f64 / count as f64
    );
}
