//! Headers against the programs that made them, and against whoever made them wrong.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod hostile;
mod peers;
