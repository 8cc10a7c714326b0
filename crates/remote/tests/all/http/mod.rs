//! The driver against servers that keep the protocol, that break it, and that are gone.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod faults;
mod nginx;
mod support;
