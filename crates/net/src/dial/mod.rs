//! Connections to the servers of remote disks: made here, or by a broker process; and what the drivers of such disks share ([`line`](mod@line)).
//!
//! A server in its sandbox makes no connection. It has a broker: a process of the same program that was started before, with the
//! addresses and sockets of the disks' servers. [`connect`] asks it; the broker looks the name up, connects and passes the socket (SCM_RIGHTS).
//! It refuses every other target, whatever the server has become.
//!
//! # One question, one socket
//! A question goes over the broker's socket with one end of a new pair of sockets, over which the answer comes. So many can be asked at a time
//! from any loop, no task reads for others, and a broker that ends closes what it had: callers are notified at once.
//!
//! # Spare brokers
//! A process in a sandbox starts no other. So several brokers are started in advance; when one has ended, the next one is asked.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod address;
mod asking;
pub mod broker;
mod ending;
pub mod line;
mod message;
mod passed;
mod reach;
mod target;

pub use address::{Address, AddressError};
pub use asking::{Forbidden, allowed, check, confine, connect, connect_now, name, through};
pub use ending::{end_within, unless_ended};
pub use passed::{PASSED_MAX, forget_passed, pass, take_passed};
pub use reach::{Loss, Reach, Server, servers};
pub use target::{AbstractName, AbstractNameError, Allowed, Target, TargetError};
