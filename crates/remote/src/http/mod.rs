//! A file on an HTTP server as storage. It is only read. Whole files can be sent with a [`Client`].
//!
//! [`HttpStorage`] keeps the contract of [`storage::Storage`]: a read is a request for a range (RFC 9110, 14), whose body is received
//! straight into the buffer that asked for it. Connections are kept and used again by any loop, one request at a time each, at most
//! 16 of one storage at work.
//!
//! # One version
//! The first answer says which version of the file was opened: its ETag, else its Last-Modified. Requests ask for that version
//! only, and each answer is compared with it, with its range, and with the file's length. A file that was changed is an error from
//! then on, never a mixture. A server that names no version, or knows no ranges, is refused when it is opened.
//!
//! # What is tried again
//! Connections that fail or are silent for `timeout`, bodies that are cut short, and the answers 408, 429, 500, 502, 503 and 504: after
//! a pause that doubles from 50 ms to 2 s and is chosen at random in its upper half, or that the server asks for (`Retry-After`). A
//! request ends within `remote_timeout`, whatever happens. Other answers are errors at once.
//!
//! # Redirects
//! Up to five are followed, never from https to http; later requests go where the last one led, and back to the name that
//! was given when they are refused there. Credentials go to the server of that name alone.
//!
//! # Proxies
//! `https_proxy`, `http_proxy`, `all_proxy` and `no_proxy` of the environment, as curl takes them.
//!
//! # Reading ahead
//! A short read that begins where another one ended fetches a quarter of what was read there in order, at least a quarter of `readahead` and at most
//! all of it, and keeps it; eight such windows are kept.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod authorize;
mod client;
mod connection;
mod errors;
mod file;
mod judge;
mod proxy;
mod readahead;
mod remote;

pub use authorize::{Authorization, Authorize, Authorizing, Fixed};
pub use client::{Client, ClientOptions, Reply, Sent};
pub use connection::check_reachable;
pub use errors::Error;
pub use file::{HttpStorage, Options, READAHEAD_BYTES_MAX};
