//! Storage on other machines, each kind a module behind a feature of its name.
//!
//! What a build leaves out it links nothing of: neither TLS nor signatures of object stores, nor the process that has Ceph's library.
#![deny(unsafe_code)]

#[cfg(feature = "cache")]
pub mod cache;
#[cfg(feature = "chunked")]
pub mod chunked;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "nbd")]
pub mod nbd;
#[cfg(feature = "rbd")]
pub mod rbd;
#[cfg(feature = "s3")]
pub mod s3;
