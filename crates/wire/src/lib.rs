//! Messages <-> bytes: of NBD ([`nbd`]) and of HTTP ([`http`]). Pure: nothing here waits, connects or looks at a clock.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

#[cfg(feature = "http")]
pub mod http;
pub mod nbd;
