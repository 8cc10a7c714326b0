//! Headers against the programs that made them, and against wrong ones.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod hostile;
mod luks2_hostile;
pub mod luks2_sample;
mod peers;
