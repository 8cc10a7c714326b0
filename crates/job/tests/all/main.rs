//! The laws of a copy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod beside_guests;
mod copies;
mod faults;
mod made_up;
mod merges;
mod rates;
mod scopes;
mod unlike;
