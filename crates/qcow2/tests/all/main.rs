//! All tests of the engine in one program: it is linked once.

mod bitmaps;
mod caches;
mod chain;
mod chain_support;
mod check;
mod check_hostile;
mod common;
mod create;
mod engine;
mod exchange;
mod full_medium;
mod given_back;
mod harness;
mod on_reactor;
mod overlap;
mod prefetch;
mod refcounts;
mod resize;
mod shipped_faults;
mod sim_crash;
mod sim_faults;
mod sim_model;
mod sim_raw;
mod sim_space;
mod truncated;
mod write_order;
