//! Rates between two readings of a disk's figures.

use std::time::Duration;

use graph::size::human_size;

use crate::remote::figures::{DiskFigures, KindFigures, MapFigures};
use crate::status::{nanos, percent, printable};

/// A disk between two looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    name: String,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    mean_ns: Option<u64>,
    in_flight: u64,
    hits: u64,
    lookups: u64,
    map: Option<MapFigures>,
    limit: String,
    waiting: u64,
    at_limit_per_mille: u64,
}

/// From `before` to `now`, which lie `elapsed` apart. A counter that went back belongs to a disk that was opened anew.
pub fn rates(before: &DiskFigures, now: &DiskFigures, elapsed: Duration) -> Rates {
    let per_second = |before: u64, now: u64| {
        let grown = u128::from(now.saturating_sub(before)) * 1_000_000;
        u64::try_from(grown / elapsed.as_micros().max(1)).unwrap_or(u64::MAX)
    };
    let (read, write) = (delta(&before.read, &now.read), delta(&before.write, &now.write));
    let both = read.and(write);
    let maps = |figures: &DiskFigures| figures.map.into_iter().chain(figures.chain).reduce(MapFigures::and);
    let (map, map_before) = (maps(now), maps(before).unwrap_or_default());
    let hits = map.map_or(0, |map| map.hits.saturating_sub(map_before.hits));
    let misses = map.map_or(0, |map| map.misses.saturating_sub(map_before.misses));
    let limited = now.throttle.at_limit_ns.saturating_sub(before.throttle.at_limit_ns);
    Rates {
        name: printable(&now.name),
        reads: per_second(0, read.requests),
        writes: per_second(0, write.requests),
        read_bytes: per_second(0, read.bytes),
        written_bytes: per_second(0, write.bytes),
        mean_ns: both.total_ns.checked_div(both.requests),
        in_flight: now.in_flight,
        hits,
        lookups: hits + misses,
        map,
        limit: now
            .throttle
            .limits
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(","),
        waiting: now.throttle.queue,
        at_limit_per_mille: (per_second(0, limited) / 1_000_000).min(1000),
    }
}

fn delta(before: &KindFigures, now: &KindFigures) -> KindFigures {
    KindFigures {
        requests: now.requests.saturating_sub(before.requests),
        failed: now.failed.saturating_sub(before.failed),
        bytes: now.bytes.saturating_sub(before.bytes),
        total_ns: now.total_ns.saturating_sub(before.total_ns),
        p99_ns: now.p99_ns,
        merged: now.merged.saturating_sub(before.merged),
    }
}

impl Rates {
    /// The headings. What says most comes first: a narrow screen shows the beginning.
    pub const COLUMNS: [&str; 12] = [
        "DISK",
        "READ/s",
        "WRITE/s",
        "READ B/s",
        "WRITE B/s",
        "LATENCY",
        "QUEUE",
        "MAP HITS",
        "AT LIMIT",
        "MAP MEM",
        "WAITING",
        "LIMIT",
    ];

    /// What decides which disk stands first: requests, then bytes, then what waits.
    pub fn load(&self) -> (u64, u64, u64) {
        let (requests, bytes) = self.totals();
        (requests, bytes, self.in_flight + self.waiting)
    }

    /// Requests and bytes a second.
    pub fn totals(&self) -> (u64, u64) {
        (self.reads + self.writes, self.read_bytes.saturating_add(self.written_bytes))
    }

    /// The cells of its row.
    pub fn cells(&self) -> [String; Self::COLUMNS.len()] {
        let memory =
            |map: MapFigures| format!("{}/{}", human_size(map.used_bytes), human_size(map.limit_bytes));
        [
            self.name.clone(),
            self.reads.to_string(),
            self.writes.to_string(),
            human_size(self.read_bytes),
            human_size(self.written_bytes),
            self.mean_ns.map_or("-".to_owned(), nanos),
            self.in_flight.to_string(),
            percent(self.hits, self.lookups),
            percent(self.at_limit_per_mille, 1000),
            self.map.map_or("-".to_owned(), memory),
            self.waiting.to_string(),
            if self.limit.is_empty() { "-".to_owned() } else { self.limit.clone() },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::figures::ThrottleFigures;

    #[test]
    fn rates_are_of_the_time_that_passed() {
        let figures = |requests: u64, at_limit_ns| DiskFigures {
            name: "a".into(),
            read: KindFigures {
                requests,
                bytes: requests << 12,
                total_ns: requests * 50_000,
                ..Default::default()
            },
            map: Some(MapFigures {
                hits: requests,
                misses: requests / 10,
                limit_bytes: 1 << 20,
                ..Default::default()
            }),
            throttle: ThrottleFigures {
                limits: vec![("iops-total".into(), 9)],
                at_limit_ns,
                ..Default::default()
            },
            ..DiskFigures::default()
        };
        let cells = rates(&figures(100, 0), &figures(1100, 1_000_000_000), Duration::from_secs(2)).cells();
        let expected = [
            "a",
            "500",
            "0",
            "1.95 MiB",
            "0 B",
            "50.0µs",
            "0",
            "90.9 %",
            "50.0 %",
            "0 B/1 MiB",
            "0",
            "iops-total=9",
        ];
        assert_eq!(cells, expected.map(str::to_owned));
    }

    #[test]
    fn a_disk_that_was_opened_anew_has_no_negative_rates() {
        let old =
            DiskFigures { read: KindFigures { requests: 9, ..Default::default() }, ..Default::default() };
        assert_eq!(rates(&old, &DiskFigures::default(), Duration::from_secs(1)).reads, 0);
    }
}
