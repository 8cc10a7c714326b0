//! All tests of the library in one program: it is linked once.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod closing;
mod completions;
mod dropping;
mod examples;
mod opening;
mod peers;
mod scratch;
mod steering;
