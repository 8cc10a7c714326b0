//! A trace, played against caches of many sizes: ours and QEMU's.

use std::fs::File;
use std::path::Path;

use graph::front::Kind;
use graph::trace::{ReadError, Reader, Record, TraceDisk, TraceRequest, disk_called, disks};
use qcow2::{Model, Qcow2, SliceKey};
use tool::failure::Failure;

use super::curve::{Curve, Point};
use super::recency::{Last, Recency};

/// The smallest cache that is looked at ...
const BYTES_MIN: u64 = 64 << 10;
/// ... and the largest.
const BYTES_MAX: u64 = 1 << 30;

/// Looks at slices that are played at most (a minute or so): a trace may be of any length, and a request in it
/// may cover all of a disk.
const LOOKS_MAX: u64 = 50_000_000;

/// Different slices at most: what is remembered of each takes about 64 bytes.
const SLICES_MAX: usize = 4 << 20;

/// QEMU's caches have so many slices at least.
const QEMU_SLICES_MIN: u64 = 2;

/// The disk whose requests are played.
#[derive(Debug)]
pub struct Played<'a> {
    /// Its image, with the whole map in memory.
    pub image: &'a Qcow2,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Sizes that cover the whole map here and in QEMU.
    pub full_bytes: [u64; 2],
}

/// All caches together.
struct Caches<'a> {
    image: &'a Qcow2,
    models: Vec<Model>,
    recency: Recency,
    /// For each size, the slices that fit in QEMU.
    qemu_slices: Vec<usize>,
    previous: Option<SliceKey>,
    looks: u64,
    /// For slices that did not get into memory.
    slice_bytes: u64,
}

/// What became of one request.
struct Outcome {
    first: bool,
    /// Whether it found everything, by size: here, and in QEMU.
    hits: Vec<[bool; 2]>,
}

/// Plays the requests of `path` that are for the disk called `name`.
///
/// # Errors
/// When the file cannot be read, is no trace, or is one of another disk.
pub fn play(path: &Path, name: &Path, played: &Played<'_>) -> Result<Curve, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot use trace {}", path.display()), error)
    };
    let all = File::open(path).map_err(ReadError::from).and_then(disks);
    let disk = disk_of(&all.map_err(|error| failed(&error))?, path, name, played.image.size())?;
    let sizes = sizes(played.full_bytes);
    let mut caches = Caches::new(played, &sizes);
    let point = |&bytes: &u64| Point { bytes, hits: 0, hits_in_qemu: 0 };
    let mut curve = Curve { whole: true, points: sizes.iter().map(point).collect(), ..Curve::default() };
    let mut reader = open(path).map_err(|error| failed(&error))?;
    let mut begun = None;
    while let Some(record) = reader.read().map_err(|error| failed(&error))? {
        match record {
            Record::Lost(lost) => curve.lost = curve.lost.saturating_add(lost),
            Record::Request(request) if usize::from(request.disk) == disk && uses_the_map(request.kind) => {
                if caches.are_tired() {
                    curve.whole = false;
                    break;
                }
                curve.duration_us = request.at_us - *begun.get_or_insert(request.at_us);
                count(&mut curve, &caches.request(&request));
            }
            Record::Disk(_) | Record::Request(_) | Record::End { .. } => {}
        }
    }
    curve.complete = reader.is_complete();
    Ok(curve)
}

fn open(path: &Path) -> Result<Reader<File>, ReadError> {
    Ok(Reader::new(File::open(path)?))
}

/// The number of the disk that is meant, if it is as long as `name`.
fn disk_of(disks: &[TraceDisk], path: &Path, name: &Path, bytes: u64) -> Result<usize, Failure> {
    let found = disk_called(disks, name).and_then(|at| Some((at, disks.get(at)?)));
    let trace = path.display();
    match found {
        Some((at, disk)) if disk.bytes == bytes => Ok(at),
        Some((_, disk)) => Err(Failure::new(format!(
            "trace {trace} is of another disk: {} had {} bytes, {} has {bytes}",
            disk.name,
            disk.bytes,
            name.display()
        ))),
        None if disks.is_empty() => Err(Failure::new(format!("trace {trace} has no disks"))),
        None => {
            let names: Vec<&str> = disks.iter().take(8).map(|disk| disk.name.as_str()).collect();
            let more = if disks.len() > names.len() { ", ..." } else { "" };
            let names = names.join(", ");
            Err(Failure::new(format!(
                "trace {trace} has nothing of {}; it is of {names}{more}",
                name.display()
            )))
        }
    }
}

/// Sizes to look at: powers of two until every cache has all of the map.
fn sizes(full_bytes: [u64; 2]) -> Vec<u64> {
    let full = full_bytes.into_iter().max().unwrap_or(0).min(BYTES_MAX);
    let doubled = |bytes: &u64| (*bytes < full).then_some(bytes * 2);
    std::iter::successors(Some(BYTES_MIN), doubled).collect()
}

fn uses_the_map(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Write | Kind::Zero | Kind::Discard)
}

fn count(curve: &mut Curve, outcome: &Outcome) {
    curve.requests += 1;
    if outcome.first {
        curve.first_requests += 1;
        return;
    }
    for (point, [here, there]) in curve.points.iter_mut().zip(&outcome.hits) {
        point.hits += u64::from(*here);
        point.hits_in_qemu += u64::from(*there);
    }
}

impl<'a> Caches<'a> {
    fn new(played: &Played<'a>, sizes: &[u64]) -> Self {
        let slices = |bytes: &u64| (bytes / played.slice_bytes).max(QEMU_SLICES_MIN) as usize;
        let qemu_slices: Vec<usize> = sizes.iter().map(slices).collect();
        let per_table = played.image.map_slices_per_table();
        Self {
            image: played.image,
            models: sizes.iter().map(|&bytes| Model::new(bytes, per_table)).collect(),
            recency: Recency::new(qemu_slices.last().copied().unwrap_or(1)),
            qemu_slices,
            previous: None,
            looks: 0,
            slice_bytes: played.slice_bytes,
        }
    }

    /// Whether enough was played.
    fn are_tired(&self) -> bool {
        self.looks >= LOOKS_MAX || self.recency.slices() >= SLICES_MAX
    }

    fn request(&mut self, request: &TraceRequest) -> Outcome {
        let mut outcome = Outcome { first: false, hits: vec![[true; 2]; self.models.len()] };
        let end = (request.offset + request.len).min(self.image.size());
        let mut at = request.offset;
        while at < end && !self.are_tired() {
            let slice = self.image.map_slice(at);
            self.looks += 1;
            // The slice of the request before is on top everywhere.
            if slice.exists && self.previous.replace(slice.key) != Some(slice.key) {
                self.look(slice.key, &mut outcome);
            }
            at = slice.end;
        }
        outcome
    }

    fn look(&mut self, key: SliceKey, outcome: &mut Outcome) {
        let bytes = self.image.map_slice_memory(key).unwrap_or(self.slice_bytes);
        let last = self.recency.use_now(u64::from(key.l1_index) << 32 | u64::from(key.slice));
        outcome.first |= last == Last::Never;
        let caches = self.models.iter_mut().zip(&self.qemu_slices);
        for ([here, there], (model, &slices)) in outcome.hits.iter_mut().zip(caches) {
            *here &= model.access(key, bytes);
            *there &= matches!(last, Last::Ago(ago) if ago <= slices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, bytes: u64) -> TraceDisk {
        TraceDisk { name: name.to_owned(), bytes, cluster_bytes: 65536 }
    }

    fn found(disks: &[TraceDisk], name: &str) -> Result<usize, String> {
        disk_of(disks, Path::new("t"), Path::new(name), 100).map_err(|failure| failure.to_string())
    }

    #[test]
    fn sizes_double_until_both_maps_fit() {
        assert_eq!(sizes([1000, 200 << 10]), [64 << 10, 128 << 10, 256 << 10]);
        assert_eq!(sizes([0, 0]), [64 << 10]);
        assert_eq!(sizes([u64::MAX, 0]).last(), Some(&BYTES_MAX));
    }

    #[test]
    fn a_disk_is_found_by_its_path_then_by_its_name_then_for_want_of_others() {
        let disks = [disk("/x/a", 100), disk("/y/a", 100), disk("/y/b", 100)];
        assert_eq!(found(&disks, "/x/a"), Ok(0));
        assert_eq!(found(&disks, "/elsewhere/b"), Ok(2));
        assert_eq!(found(&disks[..1], "/renamed"), Ok(0));
        let error = found(&disks, "/renamed").unwrap_err();
        assert!(error.contains("nothing of /renamed; it is of /x/a, /y/a, /y/b"), "{error}");
    }

    #[test]
    fn a_trace_of_a_disk_of_another_size_is_refused() {
        let error = found(&[disk("/x/a", 99)], "/x/a").unwrap_err();
        assert!(error.contains("another disk: /x/a had 99 bytes, /x/a has 100"), "{error}");
        assert!(found(&[], "/x/a").unwrap_err().contains("no disks"));
    }
}
