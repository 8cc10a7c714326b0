//! Connections to other machines: who makes them ([`dial`]), and TLS over them ([`tls`]).
#![forbid(unsafe_code)]

pub mod dial;
#[cfg(feature = "tls")]
pub mod tls;
