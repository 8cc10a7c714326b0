//! The tables of the report, in its order.

mod allocation;
mod bulk;
mod cache_size;
mod chain;
mod cold;
mod growth;
mod modes;
mod order;
mod per_request;
mod terabyte;

use super::table::Table;
use super::{Bench, door};

/// A table that can be asked for.
#[derive(Debug)]
pub struct Entry {
    /// How it is called.
    pub id: &'static str,
    /// Measures it.
    pub run: fn(&Bench) -> Result<Table, String>,
}

/// All of them.
pub const TABLES: &[Entry] = &[
    Entry { id: "door", run: door::run },
    Entry { id: "process", run: per_request::run },
    Entry { id: "A", run: cache_size::slices },
    Entry { id: "B", run: cache_size::sizes },
    Entry { id: "C", run: order::run },
    Entry { id: "D", run: chain::run },
    Entry { id: "E", run: terabyte::run },
    Entry { id: "F", run: cold::run },
    Entry { id: "G", run: allocation::run },
    Entry { id: "H", run: modes::run },
    Entry { id: "I", run: bulk::run },
    Entry { id: "J", run: growth::run },
];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
