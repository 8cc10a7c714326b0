//! What stands in for the real thing while interleavings are explored: the same interface and the same
//! promises, each operation one step that the explorer may put others before or after.

mod async_mutex;
mod event;
mod lock;
mod once_lock;
mod swap;

pub use async_mutex::{AsyncMutex, AsyncMutexGuard};
pub use event::{Event, EventListener};
pub use lock::{Mutex, RwLock};
pub use once_lock::OnceLock;
pub use swap::ArcSwapOption;
