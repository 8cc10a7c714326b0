//! Locks, atomics and events behind one name.
//!
//! Ordinary builds get `parking_lot`, `core`, `event-listener`, `arc-swap` and `async-lock`; built with
//! the feature `shuttle` the same names lead to shuttle, so that a test can explore thread interleavings of the
//! code as it ships (`explore`; `cargo xtask interleave` runs such tests).

#![forbid(unsafe_code)]

#[cfg(feature = "shuttle")]
pub mod explore;
#[cfg(feature = "shuttle")]
mod explored;
pub mod oneshot;

#[cfg(not(feature = "shuttle"))]
pub use arc_swap::ArcSwapOption;
#[cfg(not(feature = "shuttle"))]
pub use async_lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};
#[cfg(not(feature = "shuttle"))]
pub use core::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub use event_listener::{Event, EventListener};
#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, OnceLock};

// It bounds how much happens at a time and guards no data: nothing to explore.
pub use async_lock::Semaphore;

#[cfg(feature = "shuttle")]
pub use explored::{
    ArcSwapOption, AsyncMutex, AsyncMutexGuard, Event, EventListener, Mutex, OnceLock, RwLock,
};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic};
