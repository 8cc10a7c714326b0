//! Adding up what a survey of an image comes by.

use qcow2::Surveyed;
use qcow2_layout::{Cluster, Geometry, L2Entry};

use super::cells::{Cell, Cells};
use super::kind::Kind;
use super::picture::{Clusters, Subclusters, Usage};
use super::runs::Runs;

/// The sums.
#[derive(Debug)]
pub struct Tally {
    geometry: Geometry,
    clusters: Clusters,
    subclusters: Subclusters,
    /// How scattered the data is.
    pub runs: Runs,
    /// Where things are in the file.
    file: Cells,
    /// What the refcounts say is in use.
    used: Cells,
}

impl Tally {
    /// Of an image whose disk has `size` bytes and whose file has `length`.
    pub fn new(geometry: Geometry, size: u64, length: u64) -> Self {
        let cells = Cells::new(length, geometry.cluster_size());
        Self {
            geometry,
            clusters: Clusters { total: geometry.clusters_for(size), ..Clusters::default() },
            subclusters: Subclusters::default(),
            runs: Runs::default(),
            used: cells.clone(),
            file: cells,
        }
    }

    /// One thing more.
    pub fn take(&mut self, seen: &Surveyed) {
        match *seen {
            Surveyed::Metadata { offset, bytes } => self.file.add(offset, bytes, Kind::Metadata),
            Surveyed::Used { offset, bytes } => self.used.add(offset, bytes, Kind::Other),
            Surveyed::Cluster { entry: L2Entry::Compressed(compressed), .. } => {
                self.clusters.compressed += 1;
                self.file.add(compressed.host.0, compressed.len, Kind::Compressed);
            }
            Surveyed::Cluster { entry: L2Entry::Standard(cluster), .. } => self.standard(&cluster),
        }
    }

    fn standard(&mut self, cluster: &Cluster) {
        let (all, mask) = (self.geometry.subclusters(), self.geometry.subcluster_mask());
        self.subclusters.data += u64::from(cluster.alloc.count_ones());
        self.subclusters.zeroes += u64::from(cluster.zero.count_ones());
        self.subclusters.unallocated += u64::from(all - (cluster.alloc | cluster.zero).count_ones());
        let state = match (cluster.alloc, cluster.zero) {
            (alloc, _) if alloc == mask => &mut self.clusters.data,
            (_, zero) if zero == mask => &mut self.clusters.zeroes,
            (0, 0) => &mut self.clusters.unallocated,
            _ => &mut self.clusters.mixed,
        };
        *state += 1;
        let Some(host) = cluster.host else { return };
        let bytes = self.geometry.cluster_size();
        if cluster.alloc != 0 {
            self.runs.add(host.0, bytes);
        }
        if !self.geometry.external_data {
            self.file.add(host.0, bytes, if cluster.alloc == 0 { Kind::Reserved } else { Kind::Data });
        }
    }

    /// Nothing refers to these clusters.
    pub fn leaked(&mut self, first: u64, clusters: u64) {
        let bits = self.geometry.cluster_bits;
        self.file.add(first.saturating_mul(1 << bits), clusters.saturating_mul(1 << bits), Kind::Leaked);
    }

    /// The clusters of the disk.
    pub fn clusters(&self) -> Clusters {
        let Clusters { total, data, compressed, zeroes, mixed, .. } = self.clusters;
        Clusters {
            unallocated: total.saturating_sub(data + compressed + zeroes + mixed),
            subclusters: self.geometry.extended_l2.then_some(self.subclusters),
            ..self.clusters
        }
    }

    /// The file, which occupies `actual` bytes on disk. Clusters that are in use and not in the map belong to
    /// snapshots and their like; where there are none, to the compressed clusters beside them.
    pub fn file(&self, has_other: bool, actual: Option<u64>) -> (Cells, Usage) {
        let mut file = self.file.clone();
        for (index, used) in self.used.cells.iter().enumerate() {
            let bytes = self.file.bytes_of(index);
            if let Some(cell) = file.cells.get_mut(index) {
                let met = cell.total();
                let slack =
                    if has_other || cell.of(Kind::Compressed) == 0 { Kind::Other } else { Kind::Compressed };
                cell.add(slack, used.total().saturating_sub(met));
                cell.add(Kind::Free, bytes.saturating_sub(met.max(used.total())));
            }
        }
        let usage = usage(&file.sum(), actual);
        (file, usage)
    }
}

fn usage(sum: &Cell, actual: Option<u64>) -> Usage {
    let (leaked, reserved, free) = (sum.of(Kind::Leaked), sum.of(Kind::Reserved), sum.of(Kind::Free));
    let used = sum.total() - free;
    let free_and_held = actual.map_or(free, |actual| free.min(actual.saturating_sub(used)));
    Usage {
        data: sum.of(Kind::Data),
        compressed: sum.of(Kind::Compressed),
        metadata: sum.of(Kind::Metadata),
        other: sum.of(Kind::Other),
        reserved,
        leaked,
        free,
        reclaimable: leaked + reserved + free_and_held,
    }
}

#[cfg(test)]
mod tests {
    use qcow2_layout::{HostOffset, Version};

    use super::*;

    fn cluster(host: u64, alloc: u32, zero: u32) -> Surveyed {
        let host = (host > 0).then_some(HostOffset(host));
        let entry = L2Entry::Standard(Cluster { host, copied: host.is_some(), alloc, zero });
        Surveyed::Cluster { guest: 0, entry }
    }

    #[test]
    fn every_cluster_has_one_state_and_subclusters_are_counted_beside() {
        let geometry = Geometry::new(Version::V3, 16, 4).unwrap().with_extended_l2().unwrap();
        let mut tally = Tally::new(geometry, 10 << 16, 1 << 20);
        let all = u32::MAX;
        for seen in [
            cluster(1 << 16, all, 0),
            cluster(2 << 16, 0xff, 0xff00),
            cluster(0, 0, all),
            cluster(3 << 16, 0, all),
            cluster(4 << 16, 0, 0),
        ] {
            tally.take(&seen);
        }
        let subclusters = Subclusters { data: 40, zeroes: 72, unallocated: 48 };
        let expected = Clusters {
            total: 10,
            data: 1,
            compressed: 0,
            zeroes: 2,
            mixed: 1,
            unallocated: 6,
            subclusters: Some(subclusters),
        };
        assert_eq!(tally.clusters(), expected);
        assert_eq!(tally.runs.figures().runs, 1);
    }

    #[test]
    fn what_is_used_and_not_met_belongs_to_snapshots_and_the_rest_is_free() {
        let geometry = Geometry::new(Version::V3, 16, 4).unwrap();
        let mut tally = Tally::new(geometry, 1 << 20, 8 << 16);
        tally.take(&Surveyed::Metadata { offset: 0, bytes: 2 << 16 });
        tally.take(&cluster(2 << 16, 1, 0));
        tally.take(&cluster(3 << 16, 0, 1));
        tally.take(&Surveyed::Used { offset: 0, bytes: 6 << 16 });
        tally.leaked(4, 1);
        let (cells, usage) = tally.file(true, Some(7 << 16));
        let one = 1 << 16;
        let expected = Usage {
            data: one,
            compressed: 0,
            metadata: 2 * one,
            other: one,
            reserved: one,
            leaked: one,
            free: 2 * one,
            reclaimable: 3 * one,
        };
        assert_eq!(usage, expected);
        assert_eq!(cells.sum().total(), 8 * one);
    }
}
