//! Objects of S3-compatible stores, of Google Cloud Storage and of Azure Blob Storage: their names, their places, and the signatures on requests.
//!
//! Reading an object is reading a file over HTTP ([`crate::http`]), with a signature or a token on each request ([`Signer`]).
//! Objects are written whole ([`Store`], [`Upload`]), listed ([`Listed`]) and removed.
//! Credentials come from where the tools of the services look for them, and are renewed before they end ([`Credentials`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod credentials;
mod elements;
mod known;
mod listing;
mod name;
mod place;
mod profile;
mod service;
mod signer;
mod store;
mod upload;

pub use credentials::{account, files_read, when_read};
pub use known::{Environment, KnownError, Settings};
pub use listing::{Depth, Listed};
pub use name::{NameError, ObjectName};
pub use place::{Addressing, Place, PlaceError, azure_endpoint};
pub use service::Service;
pub use signer::{Credentials, Signer};
pub use store::{Present, Store, StoreError, StoreOptions, is_unique, unique};
pub use upload::{PART_BYTES_MIN, PARTS_MAX, Upload, UploadSize};
