//! What drivers of remote disks share: requests in flight over one connection, connections that are made again, what is repeated then.
//!
//! [`InFlight`] is the table of one connection, [`Line`] has the connections of one server, and [`Unflushed`] has the writes that a
//! server acknowledged and may lose. Drivers that send their requests one at a time over a connection use [`Backoff`] alone.

mod ask;
mod connections;
mod in_flight;
mod unflushed;

pub use ask::{Ask, Kind};
pub use connections::{Backoff, End, Line, Redial};
pub use in_flight::{InFlight, Protocol, Table, Taken};
pub use unflushed::{KEPT_BYTES_MAX, Unflushed, UnflushedMode};
