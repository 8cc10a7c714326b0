//! What a run cost.

use serde::Serialize;

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Requests that were made.
    pub requests: u64,
    /// Bytes that they carried.
    pub bytes: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Requests per second.
    pub requests_per_second: f64,
    /// User CPU time of the process per request, in microseconds.
    pub user_us_per_request: f64,
    /// System CPU time of the process per request, in microseconds.
    pub system_us_per_request: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency in microseconds.
    pub p999_us: f64,
}
