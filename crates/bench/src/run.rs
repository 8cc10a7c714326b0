//! Running a workload.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::Disk;
use rustix::time::{ClockId, Timespec, clock_gettime};
use storage::{IoBuf, IoBytes, IoVec};
use thiserror::Error;

use crate::latency::Latencies;
use crate::offsets::{Access, Offsets};
use crate::report::Report;

/// What is asked of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Requests in all.
    pub count: u64,
    /// Requests in flight at a time.
    pub depth: u32,
    /// Bytes of a request.
    pub size: u64,
    /// First offset.
    pub offset: u64,
    /// Distance of neighbouring requests in bytes.
    pub step: u64,
    /// Order of offsets.
    pub access: Access,
    /// Repeats the same random offsets.
    pub seed: u64,
    /// Write instead of read, with this byte.
    pub write: Option<u8>,
    /// A flush after so many writes; 0 is never.
    pub flush_interval: u64,
    /// Requests that are made first and not counted.
    pub warm_up: u64,
}

/// A run that did not end.
#[derive(Debug, Error)]
pub enum Failure {
    /// The disk is smaller than one request.
    #[error("a request of {size} bytes at offset {offset} does not fit the disk ({disk} bytes)")]
    TooSmall {
        /// Bytes of a request.
        size: u64,
        /// First offset.
        offset: u64,
        /// Size of the disk.
        disk: u64,
    },
    /// A request failed.
    #[error(transparent)]
    Disk(#[from] qcow2::Error),
}

/// What the workers share.
struct Shared {
    workload: Workload,
    disk: Arc<Disk>,
    offsets: RefCell<Offsets>,
    left: Cell<u64>,
    writes: Cell<u64>,
    latencies: RefCell<Latencies>,
    pattern: IoBytes,
}

/// Runs `workload` on this thread's loop and says what it cost. The CPU time is the process's.
pub async fn run(disk: &Arc<Disk>, workload: Workload) -> Result<Report, Failure> {
    let Workload { access, offset, step, size, seed, .. } = workload;
    let offsets = Offsets::new(access, offset, step, size, disk.size(), seed).ok_or(Failure::TooSmall {
        size,
        offset,
        disk: disk.size(),
    })?;
    let byte = workload.write.unwrap_or(0);
    let pattern = IoBytes::copy_from(&vec![byte; usize::try_from(size).unwrap_or(0)]);
    let shared = Rc::new(Shared {
        workload,
        disk: Arc::clone(disk),
        offsets: RefCell::new(offsets),
        left: Cell::new(0),
        writes: Cell::new(0),
        latencies: RefCell::default(),
        pattern,
    });
    if workload.warm_up > 0 {
        shared.make(workload.warm_up).await?;
        shared.latencies.take();
    }
    let ((user, system), start) = (cpu_times(), Instant::now());
    shared.make(workload.count).await?;
    let seconds = start.elapsed().as_secs_f64();
    let (user_end, system_end) = cpu_times();
    let per_request = |since: Duration, now: Duration| {
        now.saturating_sub(since).as_secs_f64() * 1e6 / workload.count as f64
    };
    let latencies = shared.latencies.borrow();
    let micros = |per_mille| latencies.quantile(per_mille).as_secs_f64() * 1e6;
    Ok(Report {
        requests: workload.count,
        bytes: workload.count * size,
        seconds,
        requests_per_second: workload.count as f64 / seconds,
        user_us_per_request: per_request(user, user_end),
        system_us_per_request: per_request(system, system_end),
        p50_us: micros(500),
        p99_us: micros(990),
        p999_us: micros(999),
    })
}

impl Shared {
    /// Makes `count` requests, `depth` at a time.
    async fn make(self: &Rc<Self>, count: u64) -> Result<(), Failure> {
        self.left.set(count);
        let workers: Vec<_> = (0..self.workload.depth.max(1))
            .map(|_| {
                let shared = Rc::clone(self);
                reactor::spawn(async move { shared.work().await })
            })
            .collect();
        for worker in workers {
            worker.await?;
        }
        Ok(())
    }

    async fn work(&self) -> Result<(), Failure> {
        let mut buf = Some(IoBuf::zeroed(usize::try_from(self.workload.size).unwrap_or(0)));
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let offset = self.offsets.borrow_mut().next_offset();
            let start = Instant::now();
            match (self.workload.write, buf.take()) {
                (None, Some(mut bytes)) => {
                    if !self.disk.try_read(offset, &mut bytes) {
                        let (result, back) = self.disk.read(offset, bytes).await;
                        result?;
                        bytes = back;
                    }
                    buf = Some(bytes);
                }
                _ => self.write(offset).await?,
            }
            self.latencies.borrow_mut().add(start.elapsed());
        }
        Ok(())
    }

    async fn write(&self, offset: u64) -> Result<(), Failure> {
        self.disk.write(offset, IoVec::from(self.pattern.clone()), false).await?;
        let writes = self.writes.get() + 1;
        self.writes.set(writes);
        let interval = self.workload.flush_interval;
        if interval > 0 && writes.is_multiple_of(interval) {
            self.disk.flush().await?;
        }
        Ok(())
    }
}

/// User and system CPU time of this process so far.
fn cpu_times() -> (Duration, Duration) {
    let ClockTicks { user, system } = ClockTicks::read();
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    let total = Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0));
    // The kernel tells the sum to the nanosecond, and how it splits in ticks.
    let share = user as f64 / ((user + system).max(1)) as f64;
    (total.mul_f64(share), total.mul_f64(1.0 - share))
}

/// CPU time in clock ticks.
struct ClockTicks {
    user: u64,
    system: u64,
}

impl ClockTicks {
    /// Reads fields 14 and 15 of /proc/self/stat; the second field, in parentheses, may hold anything.
    fn read() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = behind_name.split_whitespace().skip(11).map(|field| field.parse().unwrap_or(0));
        Self { user: fields.next().unwrap_or(0), system: fields.next().unwrap_or(0) }
    }
}
