//! The figures of a server's disks, as query-blockstats reports them.

use serde_json::{Value, json};
use tool::failure::Failure;

use super::Remote;

/// One disk at one moment. What grows counts from when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFigures {
    /// Its node's name.
    pub name: String,
    /// `qcow2` or `raw`.
    pub driver: String,
    /// Bytes of the disk.
    pub size: u64,
    /// Reads.
    pub read: KindFigures,
    /// Writes, also of zeroes.
    pub write: KindFigures,
    /// Everything else.
    pub other: KindFigures,
    /// Requests that have not ended.
    pub in_flight: u64,
    /// The map cache, if there is one.
    pub map: Option<MapFigures>,
    /// The map of the layers below, if there is one.
    pub chain: Option<MapFigures>,
    /// Its limits.
    pub throttle: ThrottleFigures,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindFigures {
    /// Ended with success.
    pub requests: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Bytes of the disk.
    pub bytes: u64,
    /// Nanoseconds from arrival to end, of all together.
    pub total_ns: u64,
    /// Nanoseconds that 99 of 100 took at most.
    pub p99_ns: Option<u64>,
    /// Requests of guests that were part of another one, and are not among `requests`.
    pub merged: u64,
}

/// The map cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapFigures {
    /// Look-ups that memory answered.
    pub hits: u64,
    /// Look-ups that had to read.
    pub misses: u64,
    /// Bytes of disk that the map in memory covers.
    pub covered_bytes: u64,
    /// Bytes of memory that it takes.
    pub used_bytes: u64,
    /// Bytes of memory that it may take.
    pub limit_bytes: u64,
}

impl MapFigures {
    /// All of both. What one covers, the other covers too.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            covered_bytes: self.covered_bytes.max(other.covered_bytes),
            used_bytes: self.used_bytes + other.used_bytes,
            limit_bytes: self.limit_bytes + other.limit_bytes,
        }
    }
}

/// Limits and what they did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThrottleFigures {
    /// The group's name.
    pub group: Option<String>,
    /// The limits that are set, under their long names.
    pub limits: Vec<(String, u64)>,
    /// Requests that wait.
    pub queue: u64,
    /// Requests that had to wait.
    pub delayed: u64,
    /// Nanoseconds during which some request waited.
    pub at_limit_ns: u64,
}

impl KindFigures {
    /// All of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            failed: self.failed + other.failed,
            bytes: self.bytes + other.bytes,
            total_ns: self.total_ns.saturating_add(other.total_ns),
            p99_ns: self.p99_ns.max(other.p99_ns),
            merged: self.merged + other.merged,
        }
    }
}

/// Asks for the figures of all disks.
pub fn read(remote: &mut Remote) -> Result<Vec<DiskFigures>, Failure> {
    let stats = remote.ask("query-blockstats", json!({}))?;
    Ok(stats.as_array().into_iter().flatten().map(disk).collect())
}

/// The figures in one member of query-blockstats.
pub fn disk(value: &Value) -> DiskFigures {
    let (stats, driver) = (&value["stats"], &value["driver-specific"]);
    let of = |word: &str| KindFigures {
        requests: number(&stats[format!("{word}_operations")]),
        failed: number(&stats[format!("failed_{word}_operations")]),
        bytes: number(&stats[format!("{word}_bytes")]),
        total_ns: number(&stats[format!("{word}_total_time_ns")]),
        p99_ns: stats[format!("{word}_latency_p99_ns")].as_u64(),
        merged: stats[format!("{word}_merged")].as_u64().unwrap_or(0),
    };
    DiskFigures {
        name: text(&value["node-name"]),
        driver: text(&driver["driver"]),
        size: number(&driver["size"]),
        read: of("rd"),
        write: of("wr").and(of("zero")),
        other: of("unmap").and(of("flush")),
        in_flight: number(&stats["in_flight"]),
        map: map(&driver["map-cache"]),
        chain: map(&driver["chain-map"]),
        throttle: throttle(&driver["throttle"]),
    }
}

fn map(value: &Value) -> Option<MapFigures> {
    value.is_object().then(|| MapFigures {
        hits: number(&value["hits"]),
        misses: number(&value["misses"]),
        covered_bytes: number(&value["covered-bytes"]),
        used_bytes: number(&value["used-bytes"]),
        limit_bytes: number(&value["limit-bytes"]),
    })
}

/// The figures in a report on limits.
pub fn throttle(value: &Value) -> ThrottleFigures {
    let limits = value["limits"].as_object().into_iter().flatten();
    // What is not set has these values.
    let is_set = |name: &str, value: u64| value != 0 && !(name.ends_with("-length") && value == 1);
    ThrottleFigures {
        group: value["group"].as_str().map(str::to_owned),
        limits: limits
            .map(|(name, value)| (name.clone(), number(value)))
            .filter(|(name, value)| is_set(name, *value))
            .collect(),
        queue: number(&value["queue"]),
        delayed: number(&value["read"]["delayed"]) + number(&value["write"]["delayed"]),
        at_limit_ns: number(&value["time-at-limit-ns"]),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_reported_is_nothing() {
        let found = disk(&json!({ "node-name": "a", "stats": { "rd_operations": 3, "wr_bytes": 7 } }));
        let read = KindFigures { requests: 3, ..KindFigures::default() };
        let write = KindFigures { bytes: 7, ..KindFigures::default() };
        assert_eq!(found, DiskFigures { name: "a".into(), read, write, ..DiskFigures::default() });
    }

    #[test]
    fn only_limits_that_are_set_are_shown() {
        let found =
            throttle(&json!({ "limits": { "iops-total": 5, "iops-total-max-length": 1, "bps-read": 0 } }));
        assert_eq!(found.limits, [("iops-total".to_owned(), 5)]);
    }
}
