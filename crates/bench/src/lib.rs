//! Workloads on an opened disk, and what they cost.

#![forbid(unsafe_code)]

mod latency;
mod offsets;
mod report;
mod run;

pub use latency::Latencies;
pub use offsets::{Access, Offsets};
pub use report::Report;
pub use run::{Failure, Workload, run};
