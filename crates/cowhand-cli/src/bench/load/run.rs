//! Running a workload.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use async_lock::RwLock;
use block::pace::Unpaced;
use block::{ReadKind, ZeroOptions};
use graph::Disk;
use storage::{Hints, IoBuf, IoBytes, IoVec};
use thiserror::Error;

use crate::bench::load::cost::{CpuTimes, resident_bytes};
use crate::bench::load::latency::Latencies;
use crate::bench::load::offsets::{Access, Offsets, Places, Random};
use crate::bench::load::report::{MapReport, Report};
use crate::bench::load::workload::{Operation, Workload};

/// A run that did not end.
#[derive(Debug, Error)]
pub enum Failure {
    /// The disk is smaller than one request.
    #[error("a request of {size} bytes at offset {offset} does not fit the disk ({disk} bytes) or the range")]
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
    random: RefCell<Random>,
    left: Cell<u64>,
    end: Cell<Option<Instant>>,
    changes: Cell<u64>,
    flushes: Cell<u64>,
    latencies: RefCell<Latencies>,
    /// Held shared by each request of a draining workload, alone by its flush.
    in_flight: RwLock<()>,
    pattern: IoBytes,
}

/// Runs `workload` on this thread's loop and says what it cost. The CPU time is the process's.
pub async fn run(disk: &Arc<Disk>, workload: Workload) -> Result<Report, Failure> {
    let shared = Rc::new(Shared::new(disk, workload)?);
    shared.warm_up().await?;
    let map_before = map_report(disk);
    let (cpu, start) = (CpuTimes::now(), Instant::now());
    shared.end.set(workload.runtime.map(|runtime| start + runtime));
    shared.make(workload.count).await?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = CpuTimes::now().since(cpu);
    let map = map_report(disk).zip(map_before).map(|(now, before)| now.since(before));
    Ok(shared.report(seconds, cpu, map))
}

/// The order of requests on `disk`; nothing if not one fits.
fn offsets(disk: &Disk, workload: &Workload) -> Option<Offsets> {
    let Workload { access, offset, range, step, size, seed, .. } = *workload;
    let end = range.map_or(disk.size(), |range| offset.saturating_add(range).min(disk.size()));
    // Without a range, sequential requests go round the whole disk wherever they start.
    let first = if access == Access::Sequential && range.is_none() { 0 } else { offset };
    Offsets::new(access, Places { first, end, start: offset, step, size }, seed)
}

impl Shared {
    fn new(disk: &Arc<Disk>, workload: Workload) -> Result<Self, Failure> {
        let Workload { offset, size, seed, .. } = workload;
        let offsets =
            offsets(disk, &workload).ok_or(Failure::TooSmall { size, offset, disk: disk.size() })?;
        let pattern = match workload.operation {
            Operation::Write { pattern } | Operation::Mixed { pattern, .. } => {
                IoBytes::copy_from(&vec![pattern; usize::try_from(size).unwrap_or(0)])
            }
            Operation::Read | Operation::WriteZeroes { .. } | Operation::Discard => IoBytes::copy_from(&[]),
        };
        Ok(Self {
            workload,
            disk: Arc::clone(disk),
            offsets: RefCell::new(offsets),
            random: RefCell::new(Random::new(!seed)),
            left: Cell::new(0),
            end: Cell::new(None),
            changes: Cell::new(0),
            flushes: Cell::new(0),
            latencies: RefCell::default(),
            in_flight: RwLock::new(()),
            pattern,
        })
    }

    /// Makes the requests that do not count.
    async fn warm_up(self: &Rc<Self>) -> Result<(), Failure> {
        self.make(self.workload.warm_up).await?;
        if let Some(time) = self.workload.warm_up_time {
            self.end.set(Some(Instant::now() + time));
            self.make(u64::MAX).await?;
        }
        self.latencies.take();
        self.flushes.set(0);
        Ok(())
    }

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
        let reads = matches!(self.workload.operation, Operation::Read | Operation::Mixed { .. });
        let size = if reads { usize::try_from(self.workload.size).unwrap_or(0) } else { 0 };
        let mut buf = IoBuf::zeroed(size);
        let mut start = Instant::now();
        while let Some(left) = self.left.get().checked_sub(1)
            && self.end.get().is_none_or(|end| start < end)
        {
            self.left.set(left);
            let offset = self.offsets.borrow_mut().next_offset();
            buf = self.request(offset, buf).await?;
            // The end of one request is the start of the next: one look at the clock for both.
            let end = Instant::now();
            self.latencies.borrow_mut().add(end.saturating_duration_since(start));
            start = end;
        }
        Ok(())
    }

    /// One request, the way a door makes it; gives the buffer of reads back.
    async fn request(&self, offset: u64, mut buf: IoBuf) -> Result<IoBuf, Failure> {
        let (size, operation) = (self.workload.size, self.workload.operation);
        let hints = Hints { more_waiting: self.workload.depth > 1 };
        let draining = self.workload.barrier.is_some_and(|barrier| barrier.drain);
        let entered = if draining { Some(self.in_flight.read().await) } else { None };
        let reads = match operation {
            Operation::Read => true,
            Operation::Mixed { reads_percent, .. } => {
                self.random.borrow_mut().below(100) < u64::from(reads_percent)
            }
            Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard => false,
        };
        match operation {
            _ if reads => {
                match self.disk.try_read(offset, &mut buf, hints) {
                    Some(ReadKind::Data) => {}
                    Some(ReadKind::Zeroes) => buf.fill(0),
                    None => {
                        let (result, back) = self.disk.read(offset, buf, hints).await;
                        result?;
                        buf = back;
                    }
                }
                return Ok(buf);
            }
            Operation::WriteZeroes { unmap } => {
                self.disk
                    .zero(offset, size, ZeroOptions { unmap, fast_only: false }, false, &Unpaced)
                    .await?;
            }
            Operation::Discard => self.disk.discard(offset, size, false, &Unpaced).await?,
            Operation::Read | Operation::Write { .. } | Operation::Mixed { .. } => {
                self.disk.write(offset, IoVec::from(self.pattern.clone()), false, hints).await?;
            }
        }
        drop(entered);
        self.flush_if_due().await?;
        Ok(buf)
    }

    async fn flush_if_due(&self) -> Result<(), Failure> {
        let changes = self.changes.get() + 1;
        self.changes.set(changes);
        let Some(barrier) = self.workload.barrier else { return Ok(()) };
        if changes.is_multiple_of(barrier.interval.max(1)) {
            let _alone = if barrier.drain { Some(self.in_flight.write().await) } else { None };
            self.disk.flush().await?;
            self.flushes.set(self.flushes.get() + 1);
        }
        Ok(())
    }

    fn report(&self, seconds: f64, cpu: CpuTimes, map: Option<MapReport>) -> Report {
        let latencies = self.latencies.borrow();
        let requests = latencies.count();
        let bytes = requests * self.workload.size;
        let micros = |per_mille| latencies.quantile(per_mille).as_secs_f64() * 1e6;
        let (resident, most) = resident_bytes();
        Report {
            requests,
            bytes,
            flushes: self.flushes.get(),
            seconds,
            requests_per_second: requests as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            user_us_per_request: cpu.user.as_secs_f64() * 1e6 / requests.max(1) as f64,
            system_us_per_request: cpu.system.as_secs_f64() * 1e6 / requests.max(1) as f64,
            p50_us: micros(500),
            p90_us: micros(900),
            p99_us: micros(990),
            p999_us: micros(999),
            max_us: latencies.longest().as_secs_f64() * 1e6,
            resident_bytes: resident,
            resident_bytes_max: most,
            map,
        }
    }
}

fn map_report(disk: &Disk) -> Option<MapReport> {
    let status = disk.status()?;
    Some(MapReport {
        hits: status.map.hits,
        misses: status.map.misses,
        loaded_bytes: status.map.loaded_bytes,
        evictions: status.map.evictions,
        resident_bytes: status.map.resident_bytes,
        covered_bytes: status.covered_bytes,
        cache_bytes_max: status.cache_sizes.l2_bytes,
    })
}
