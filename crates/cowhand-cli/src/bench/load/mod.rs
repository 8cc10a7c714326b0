//! Workloads on an opened disk, and what they cost.

mod cost;
mod latency;
mod offsets;
mod permutation;
mod report;
mod run;
mod workload;

pub use cost::{CpuTimes, resident_bytes};
pub use latency::Latencies;
pub use offsets::{Access, Offsets, Places};
pub use report::{JSON as REPORT_JSON, MapReport, Report};
pub use run::{Failure, run};
pub use workload::{Barrier, Operation, Workload};
