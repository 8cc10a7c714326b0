//! All tests of the library in one program: it is linked once.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

#[cfg(feature = "checkpoints")]
mod checkpoints;
mod closing;
mod completions;
mod dropping;
#[cfg(feature = "luks")]
mod encrypted;
mod examples;
#[cfg(not(all(feature = "http", feature = "luks", feature = "nbd", feature = "rbd", feature = "s3")))]
mod features;
#[cfg(feature = "jobs")]
mod jobs;
mod opening;
mod peers;
mod scratch;
mod steering;
#[cfg(all(feature = "checkpoints", feature = "s3"))]
mod store;
#[cfg(all(feature = "checkpoints", feature = "s3"))]
mod stores;
