//! One copy engine over blocks. Converting, committing and rebasing an image are plans for it.
//!
//! [`struct@Copy`] says what is copied from where to where; [`Copy::run`] does it. What of the source has to be read is decided by its
//! map alone ([`Scope`]), what of the target has to be written by what is known of its content ([`Content`]). Success means that
//! every byte of the range was written or proved to be right, and that the target is flushed.

#![forbid(unsafe_code)]

mod content;
mod copy;
mod counters;
mod error;
mod joined;
mod plan;
mod rate;
mod read;
mod runs;
mod stored;

pub use content::Content;
pub use copy::{Copy, CopyOptions, Order, Zeroes};
pub use counters::{Counters, Progress};
pub use error::{Action, Error, Side};
pub use joined::Joined;
pub use plan::Scope;
pub use rate::{Clock, LoopClock, RateLimit};
