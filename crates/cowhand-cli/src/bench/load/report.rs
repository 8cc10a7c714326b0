//! What a run cost.

use serde::Serialize;

/// The keys of a [`Report`] in JSON, for the help of what prints it.
pub const JSON: &str = "  requests                number of requests
  bytes                   bytes that they carried
  flushes                 number of flushes among them
  seconds                 seconds that the run took
  requests-per-second, bytes-per-second  numbers with a fraction
  user-us-per-request, system-us-per-request  microseconds of the processor
  p50-us, p90-us, p99-us, p999-us
                          microseconds within which so many of 1000 requests ended: 500, 900, 990,
                          999
  max-us                  microseconds of the slowest
  resident-bytes, resident-bytes-max  memory of the process at the end, and at most
  map                     object: the map cache; null of a raw disk
Of map:
  hits, misses            number of look-ups that memory answered, and that did not
  loaded-bytes            bytes read from the image
  evictions               number of slices dropped
  resident-bytes, cache-bytes-max  memory that the map takes, and may take
  covered-bytes           bytes of the disk that it covers";

/// Figures of one run.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Requests that were made.
    pub requests: u64,
    /// Bytes that they carried.
    pub bytes: u64,
    /// Flushes among the requests.
    pub flushes: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Requests per second.
    pub requests_per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// User CPU time of the process per request, in microseconds.
    pub user_us_per_request: f64,
    /// System CPU time of the process per request, in microseconds.
    pub system_us_per_request: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 90th percentile of the latency in microseconds.
    pub p90_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency in microseconds.
    pub p999_us: f64,
    /// The longest latency in microseconds.
    pub max_us: f64,
    /// Memory of the process at the end, in bytes.
    pub resident_bytes: u64,
    /// The most memory the process ever had, in bytes.
    pub resident_bytes_max: u64,
    /// What the map cache of the chain's top did during the run; a raw disk has none.
    pub map: Option<MapReport>,
}

/// What the map cache did during the run, and what it held at its end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MapReport {
    /// Look-ups that found their slice.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Bytes of slices read from the storage.
    pub loaded_bytes: u64,
    /// Slices dropped for want of room or for lack of use.
    pub evictions: u64,
    /// Bytes of memory that the slices take.
    pub resident_bytes: u64,
    /// Bytes of the disk that they cover, at most.
    pub covered_bytes: u64,
    /// The ceiling of the map's memory in use.
    pub cache_bytes_max: u64,
}

impl MapReport {
    /// What was counted after `before`; sizes are those of `self`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            loaded_bytes: self.loaded_bytes - before.loaded_bytes,
            evictions: self.evictions - before.evictions,
            ..self
        }
    }
}
