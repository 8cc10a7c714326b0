//! What a trace says is worth reading ahead.

use std::collections::HashSet;
use std::io::{Read, Seek};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{ReadError, Reader, Record, TraceDisk, TraceRequest};
use crate::front::Kind;

/// What is read ahead or not as a whole: a cluster of a cache.
const UNIT_BYTES: u64 = 16 << 10;
/// Of what is read in order, so much is read at a time: short enough not to be in a guest's way for long.
pub(crate) const RANGE_BYTES_MAX: u64 = 256 << 10;
/// Units of a plan at most: 16 GiB of a disk, and 20 MiB of memory while the plan is made.
const UNITS_MAX: u64 = (16 << 30) / UNIT_BYTES;

/// What a plan is made for.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The drive's path: a trace can be of several.
    pub drive: PathBuf,
    /// Bytes of the disk that is read ahead.
    pub size: u64,
    /// More is not read; `None`: up to what a plan can hold.
    pub bytes_max: Option<u64>,
}

/// What to read, in the order in which the trace has it first. No byte is in two ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// At most 256 KiB each, inside the disk.
    pub ranges: Vec<Range<u64>>,
    /// Reads of the trace that end beyond the disk: what is beyond is left out.
    pub beyond: u64,
    /// There is more in the trace than fits.
    pub is_cut: bool,
}

/// Plans what to read of the trace `source`; `None` if it is of other disks. Reads it twice, in little memory.
///
/// # Errors
/// When the source fails, or is no trace, or is damaged.
pub fn plan(mut source: impl Read + Seek, wanted: &PlanRequest) -> Result<Option<Plan>, ReadError> {
    let Some(disk) = disk_called(&disks(&mut source)?, &wanted.drive) else { return Ok(None) };
    source.rewind()?;
    let mut reader = Reader::new(source);
    let mut planning = Planning::new(wanted);
    while let Some(record) = reader.read()? {
        let Record::Request(request) = record else { continue };
        if usize::from(request.disk) == disk && request.kind == Kind::Read && !planning.add(&request) {
            break;
        }
    }
    Ok(Some(planning.plan))
}

struct Planning {
    plan: Plan,
    size: u64,
    met: HashSet<u64>,
    units_max: u64,
}

impl Planning {
    fn new(wanted: &PlanRequest) -> Self {
        let units_max = wanted.bytes_max.map_or(UNITS_MAX, |bytes| (bytes / UNIT_BYTES).min(UNITS_MAX));
        Self { plan: Plan::default(), size: wanted.size, met: HashSet::new(), units_max }
    }

    /// Says whether more fits.
    fn add(&mut self, request: &TraceRequest) -> bool {
        let end = request.offset + request.len;
        self.plan.beyond += u64::from(end > self.size);
        for unit in request.offset / UNIT_BYTES..end.min(self.size).div_ceil(UNIT_BYTES) {
            if self.met.contains(&unit) {
                continue;
            }
            if self.met.len() as u64 == self.units_max {
                self.plan.is_cut = true;
                return false;
            }
            self.met.insert(unit);
            self.append(unit * UNIT_BYTES..((unit + 1) * UNIT_BYTES).min(self.size));
        }
        true
    }

    fn append(&mut self, unit: Range<u64>) {
        match self.plan.ranges.last_mut() {
            Some(last) if last.end == unit.start && unit.end - last.start <= RANGE_BYTES_MAX => {
                last.end = unit.end;
            }
            _ => self.plan.ranges.push(unit),
        }
    }
}

/// All disks of the trace that `source` gives.
///
/// # Errors
/// When the source fails, or is no trace.
pub fn disks(source: impl Read) -> Result<Vec<TraceDisk>, ReadError> {
    let mut reader = Reader::new(source);
    let mut disks = Vec::new();
    while let Some(record) = reader.read()? {
        if let Record::Disk(disk) = record {
            disks.push(disk);
        }
    }
    Ok(disks)
}

/// The number of the disk that is meant by `name`, a path: the one of this path, else of this file name, else the only one. Later ones go before
/// earlier ones.
pub fn disk_called(disks: &[TraceDisk], name: &Path) -> Option<usize> {
    let real = std::fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
    let by_path = disks.iter().rposition(|disk| Path::new(&disk.name) == real);
    let by_name = || disks.iter().rposition(|disk| Path::new(&disk.name).file_name() == real.file_name());
    let only = || (disks.len() == 1).then_some(0);
    by_path.or_else(by_name).or_else(only)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::trace::{Encoder, TraceDisk};

    const UNIT: u64 = UNIT_BYTES;

    fn trace(disks: &[&str], requests: &[(u16, Kind, Range<u64>)]) -> Cursor<Vec<u8>> {
        let (mut encoder, mut bytes) = Encoder::new();
        for name in disks {
            let disk = TraceDisk { name: (*name).to_owned(), bytes: 1 << 30, cluster_bytes: 0 };
            encoder.put(&mut bytes, &Record::Disk(disk));
        }
        for (disk, kind, range) in requests.iter().cloned() {
            let (offset, len) = (range.start, range.end - range.start);
            let request = TraceRequest { at_us: 0, offset, len, disk, kind };
            encoder.put(&mut bytes, &Record::Request(request));
        }
        Cursor::new(bytes)
    }

    fn wanted(size: u64, bytes_max: Option<u64>) -> PlanRequest {
        PlanRequest { drive: "/a".into(), size, bytes_max }
    }

    #[test]
    fn what_was_read_is_planned_once_in_order_and_inside_the_disk() {
        let size = 40 * UNIT + 100;
        let trace = trace(
            &["/b", "/a"],
            &[
                (1, Kind::Read, 9 * UNIT + 5..9 * UNIT + 6),
                (0, Kind::Read, 0..UNIT),
                (1, Kind::Write, 20 * UNIT..21 * UNIT),
                (1, Kind::Read, 8 * UNIT..28 * UNIT),
                (1, Kind::Read, 40 * UNIT..50 * UNIT),
                (1, Kind::Read, 70 * UNIT..u64::MAX),
            ],
        );
        let expected = vec![
            9 * UNIT..10 * UNIT,
            8 * UNIT..9 * UNIT,
            10 * UNIT..26 * UNIT,
            26 * UNIT..28 * UNIT,
            40 * UNIT..size,
        ];
        let found = plan(trace.clone(), &wanted(size, None)).unwrap().unwrap();
        assert_eq!(found, Plan { ranges: expected.clone(), beyond: 2, is_cut: false });
        let found = plan(trace, &wanted(size, Some(3 * UNIT))).unwrap().unwrap();
        let ranges = vec![9 * UNIT..10 * UNIT, 8 * UNIT..9 * UNIT, 10 * UNIT..11 * UNIT];
        assert_eq!(found, Plan { ranges, beyond: 0, is_cut: true });
    }

    #[test]
    fn a_trace_of_other_disks_plans_nothing_and_one_that_reads_all_of_the_world_ends() {
        assert_eq!(plan(trace(&["/b", "/c"], &[]), &wanted(UNIT, None)).unwrap(), None);
        let whole = trace(&["/b"], &[(0, Kind::Read, 0..u64::MAX)]);
        let found = plan(whole, &wanted(1 << 62, None)).unwrap().unwrap();
        assert!(found.is_cut && found.ranges.len() as u64 == UNITS_MAX * UNIT_BYTES / RANGE_BYTES_MAX);
        plan(Cursor::new(b"letters of somebody".to_vec()), &wanted(UNIT, None)).unwrap_err();
    }
}
