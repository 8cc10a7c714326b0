//! Hit rates of ways to evict, on traces of slices as images use them: the table in docs/internals/map-cache.md.
//!
//! `cargo run --release -p cowhand-map-cache --example eviction`
//!
//! Everything is computed from fixed seeds: the table is the same on every machine.

mod policies;
mod traces;

use policies::{Clock, ClockPro, Lru, Opt, Ours, Policy, S3Fifo, Sieve};
use traces::Trace;

/// Slices that fit, of all slices that a trace uses.
const PERCENT: [usize; 4] = [2, 10, 25, 56];

fn hit_rate(policy: &mut dyn Policy, trace: &Trace) -> f64 {
    let mut hits = 0u64;
    for (now, &slice) in trace.slices.iter().enumerate() {
        hits += u64::from(policy.access(slice, now));
    }
    hits as f64 / trace.slices.len() as f64
}

fn main() {
    println!("| trace | slices that fit | LRU | CLOCK | SIEVE | CLOCK-Pro | S3-FIFO | this cache | OPT |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for trace in traces::all() {
        for percent in PERCENT {
            let size = (trace.distinct * percent / 100).max(4);
            let mut policies: [Box<dyn Policy>; 7] = [
                Box::new(Lru::new(size)),
                Box::new(Clock::new(size)),
                Box::new(Sieve::new(size)),
                Box::new(ClockPro::new(size)),
                Box::new(S3Fifo::new(size)),
                Box::new(Ours::new(size)),
                Box::new(Opt::new(size, &trace.slices)),
            ];
            let rates =
                policies.iter_mut().map(|policy| format!("{:.1}", hit_rate(&mut **policy, &trace) * 100.0));
            let rates: Vec<_> = rates.collect();
            println!("| {} | {percent} % | {} |", trace.name, rates.join(" | "));
        }
    }
}
