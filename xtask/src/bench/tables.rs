//! The tables of the report, in its order.

mod allocation;
mod bulk;
mod cache_size;
mod chain;
mod cold;
mod counters;
mod encrypted;
mod files;
mod growth;
mod jobs;
mod lineages;
mod machine;
mod merging;
mod modes;
mod order;
mod overcommitted;
mod per_request;
mod remote;
mod terabyte;
mod tools;

use super::table::Table;
use super::{Bench, door, throttle};

/// A table that can be asked for.
#[derive(Debug)]
pub struct Entry {
    /// How it is called.
    pub id: &'static str,
    /// Measures it.
    pub run: fn(&Bench) -> Result<Table, String>,
    /// Measured only where it is asked for: it builds a program of its own, or takes as long as all others.
    pub on_request: bool,
}

const fn entry(id: &'static str, run: fn(&Bench) -> Result<Table, String>) -> Entry {
    Entry { id, run, on_request: false }
}

const fn on_request(id: &'static str, run: fn(&Bench) -> Result<Table, String>) -> Entry {
    Entry { id, run, on_request: true }
}

/// All of them.
pub const TABLES: &[Entry] = &[
    entry("door", door::run),
    entry("process", per_request::run),
    entry("A", cache_size::slices),
    entry("B", cache_size::sizes),
    entry("C", order::run),
    entry("D", chain::run),
    entry("E", terabyte::run),
    entry("F", cold::run),
    entry("G", allocation::run),
    entry("H", modes::run),
    entry("I", bulk::run),
    entry("J", growth::run),
    entry("M", machine::run),
    entry("O", merging::run),
    entry("R", encrypted::run),
    on_request("K", throttle::run),
    on_request("L", tools::run),
    on_request("N", files::run),
    on_request("P", jobs::run),
    on_request("Q", remote::run),
    on_request("S", lineages::run),
    on_request("T", overcommitted::run),
    on_request("counters", counters::run),
];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
