//! An image of a Ceph cluster (RBD) as storage.
//!
//! [`RbdStorage`] keeps the contract of [`storage::Storage`]. Ceph's client is a library in C++, `librbd.so.1`, which makes threads and connections at any
//! time. It is loaded at run time by a *worker*, a process of its own for each image; this program stays memory-safe, and can be confined.
//!
//! # Processes
//! A *starter* is started with the first image ([`starter`]), before a server enters its sandbox; it starts workers when it is asked. A worker gets its
//! end of a socket, over which it receives what to open, key included, and then answers requests: messages of a fixed size. Data goes
//! through 32 MiB of shared memory in 64 slots, which this program reads and writes as a file: no pointer of the worker's is followed.
//!
//! # A worker that ends
//! Another one is started, and requests that were on their way are sent to it. Writes that were acknowledged and not flushed may have been in librbd's
//! cache; they are kept (up to 32 MiB, then a flush is sent) and repeated before anything else. No worker is started before the
//! one before it is gone. Of an image with an exclusive lock the cluster gives the lock of a killed worker away after 30 s.
//!
//! # A cluster that is away
//! librbd waits for it. With [`Options::remote_timeout`] a request fails after that time, whatever it waited for: librbd goes on, and
//! carries out later requests to the same place after it.
//!
//! # A worker that lies
//! What it sends is checked where it arrives; anything out of order ends it. Memory is bounded by the slots.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod client;
mod connection;
mod errors;
mod image;
#[expect(unsafe_code, reason = "functions of a library in C++, by their declarations")]
mod librbd;
mod message;
mod name;
mod opening;
mod packet;
pub mod starter;
pub mod worker;

pub use connection::settle;
pub use errors::Error;
pub use image::{Options, RbdStorage};
pub use name::{ImageName, NameError, name_of, shown};
pub use opening::{Encryption, EncryptionFormat, Opening};
