//! Objects of S3-compatible stores: their names, their places, and the signatures that let requests in.
//!
//! Reading an object is reading a file over HTTP ([`storage_http`]), with a signature of version 4 on each request ([`Signer`]).
//! Objects are written whole ([`Store`], [`Upload`]), listed ([`Listed`]) and removed.
//! Credentials come from where AWS's tools look for them ([`Settings`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod elements;
mod known;
mod listing;
mod name;
mod place;
mod profile;
mod signer;
mod store;
mod upload;

pub use http_wire::signature::Credentials;
pub use known::{Environment, KnownError, Settings, credentials_of_secret};
pub use listing::{Depth, Listed};
pub use name::{NameError, ObjectName};
pub use place::{Addressing, Place, PlaceError};
pub use signer::Signer;
pub use store::{Present, Store, StoreError, StoreOptions, is_unique, unique};
pub use upload::{PART_BYTES_MIN, PARTS_MAX, Upload, UploadSize};
