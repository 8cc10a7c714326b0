//! One event loop a thread: tasks, timers, files and sockets over io_uring or over threads.
//!
//! A [`Reactor`] belongs to the thread that made it. [`Reactor::run`] runs a future and every task
//! that was [`spawn`]ed on the way; [`fs`], [`net`] and [`sleep`] use the loop of the thread they
//! are awaited on and panic outside of one. Futures need not be `Send`; wakers work from any thread.
//!
//! An operation owns its buffers, inside the loop, until the kernel has answered. Dropping a future
//! is therefore always safe: the operation is orphaned (and cancelled where it could wait forever),
//! its buffers go when its completion arrives. Dropping the reactor cancels every task, then waits
//! for every operation.
//!
//! A panic of a task unwinds out of `run`: what it left half-done in shared state is not trusted.

mod backend;
mod device;
mod doorbell;
mod foreign;
pub mod fs;
mod inner;
mod look;
pub mod net;
mod op;
mod poll;
mod pool;
mod reactor;
mod remote;
mod ring;
mod rings;
mod slots;
mod spin;
mod task;
mod time;
mod timers;
mod work;

pub use backend::Backend;
pub use device::{CommandDevice, Device};
pub use doorbell::Doorbell;
pub use fs::{blocking, start_blocking};
pub use inner::Stats;
pub use look::{Look, Seen, Watch, watch};
pub use pool::{end_blocking_threads, room_for_thread};
pub use reactor::{Reactor, backend, stats};
pub use rings::prepare_rings;
pub use task::{Task, spawn, spawn_now, yield_now};
pub use time::{Sleep, Within, sleep, sleep_until, within};
