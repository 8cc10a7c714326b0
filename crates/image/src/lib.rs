//! An opened disk: what the user asked for, what the image says, and the rules between the two.

#![forbid(unsafe_code)]

pub mod cache_mode;
mod disk;
pub mod drive;
mod error;
pub mod front;
mod house;
mod limits;
mod map_memory;
pub mod names;
mod nearest;
mod open;
pub mod options;
pub mod probe;
mod runtime;
pub mod size;
pub mod trace;
mod upkeep;

pub use crate::disk::{BlockSizes, Disk};
pub use crate::error::OpenError;
pub use crate::limits::{Drained, ThrottleReport};
pub use crate::map_memory::{MAP_MEMORY_MIN, default_map_memory};
pub use crate::nearest::nearest;
pub use crate::open::{BareImage, CHAIN_MAX_DEFAULT, OpenRules, open, open_bare};
pub use crate::runtime::{ReopenError, RuntimeOptions};
