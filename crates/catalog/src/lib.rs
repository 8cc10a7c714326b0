//! The drivers of this build: storage, formats and filters that a program hands in to the graph. A new one is a file beside this one,
//! and a line here.

#![forbid(unsafe_code)]

mod blkdebug;
mod blkverify;
#[cfg(feature = "http")]
mod cached;
#[cfg(feature = "s3")]
mod chunked;
mod compress;
mod copy_before_write;
mod copy_on_read;
mod foreign;
mod format_options;
mod formats;
#[cfg(feature = "http")]
mod http;
mod luks;
#[cfg(feature = "nbd")]
mod nbd;
mod not_built;
mod null;
#[cfg(feature = "http")]
mod over_http;
#[cfg(test)]
mod pattern;
mod preallocate;
mod quorum;
#[cfg(feature = "rbd")]
mod rbd;
#[cfg(any(feature = "http", feature = "nbd", feature = "rbd"))]
mod remote;
#[cfg(feature = "s3")]
mod s3;
#[cfg(any(feature = "http", feature = "rbd"))]
mod store;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls_credentials;

use graph::drivers::{Drivers, FilterDriver, Filters, FormatDriver, Remotes, StorageDriver, hand_in, local};

#[cfg(feature = "http")]
pub use self::cached::{OpenCache, caches};
#[cfg(feature = "s3")]
pub use self::chunked::{CHUNKED_OPTIONS, Chunked, chunked_place, image_key};
pub use self::format_options::{LUKS_OPTIONS, QCOW2_OPTIONS, RAW_OPTIONS};
#[cfg(feature = "http")]
pub use self::http::{HTTP_OPTIONS, HTTPS_OPTIONS, Hidden, Http};
#[cfg(feature = "nbd")]
pub use self::nbd::{NBD_OPTIONS, Nbd, nbd_exports};
#[cfg(feature = "rbd")]
pub use self::rbd::{RBD_OPTIONS, Rbd};
#[cfg(feature = "s3")]
pub use self::s3::{AZ_OPTIONS, GS_OPTIONS, S3, S3_OPTIONS, object_store};
#[cfg(feature = "tls")]
pub use self::tls_credentials::{CredentialsError, TlsCredentials, tls_terms};

/// All drivers of this build.
pub const DRIVERS: Drivers = Drivers {
    storage: STORAGE,
    formats: FORMATS,
    filters: Filters { list: FILTERS, of_storage: &[&blkdebug::OVER_DISK] },
    remotes: REMOTES,
};

/// Hands them in to the graph. What opens a drive does so first; once is enough.
pub fn install() {
    hand_in(DRIVERS);
}

/// Drivers of storage. One whose feature a build lacks stands in the same place and refuses what it is asked for.
const STORAGE: &[&StorageDriver] = &[
    &local::FILE,
    &local::HOST_DEVICE,
    &local::HOST_CDROM,
    #[cfg(feature = "nbd")]
    &nbd::NBD,
    #[cfg(not(feature = "nbd"))]
    &not_built::NBD,
    #[cfg(feature = "http")]
    &http::HTTP,
    #[cfg(not(feature = "http"))]
    &not_built::HTTP,
    #[cfg(feature = "http")]
    &http::HTTPS,
    #[cfg(not(feature = "http"))]
    &not_built::HTTPS,
    #[cfg(feature = "s3")]
    &s3::S3,
    #[cfg(not(feature = "s3"))]
    &not_built::S3,
    #[cfg(feature = "s3")]
    &s3::GS,
    #[cfg(not(feature = "s3"))]
    &not_built::GS,
    #[cfg(feature = "s3")]
    &s3::AZ,
    #[cfg(not(feature = "s3"))]
    &not_built::AZ,
    #[cfg(feature = "s3")]
    &chunked::CHUNKED,
    #[cfg(not(feature = "s3"))]
    &not_built::CHUNKED,
    #[cfg(feature = "rbd")]
    &rbd::RBD,
    #[cfg(not(feature = "rbd"))]
    &not_built::RBD,
    &null::NULL_CO,
    &null::NULL_AIO,
    &blkdebug::BLKDEBUG,
    &preallocate::PREALLOCATE,
    #[cfg(test)]
    &pattern::PATTERN,
];

/// Drivers of formats.
const FORMATS: &[&FormatDriver] = &[
    &formats::QCOW2,
    &formats::RAW,
    &luks::LUKS,
    &foreign::VDI,
    &foreign::VPC,
    &foreign::VMDK,
    &foreign::QCOW,
    &foreign::VHDX,
];

/// Drivers of filters.
const FILTERS: &[&FilterDriver] = &[
    &copy_before_write::COPY_BEFORE_WRITE,
    &copy_before_write::SNAPSHOT_ACCESS,
    &copy_on_read::COPY_ON_READ,
    &compress::COMPRESS,
    &blkverify::BLKVERIFY,
    &quorum::QUORUM,
];

/// What the drivers of files on other machines do beside requests.
const REMOTES: Remotes = Remotes {
    #[cfg(feature = "http")]
    take_hint: cached::take_hint,
    #[cfg(feature = "http")]
    settle: || Box::pin(cached::settle_caches()),
    #[cfg(not(feature = "http"))]
    take_hint: Remotes::NONE.take_hint,
    #[cfg(not(feature = "http"))]
    settle: Remotes::NONE.settle,
    #[cfg(feature = "s3")]
    expect_guest: chunked::expect_guest,
    #[cfg(not(feature = "s3"))]
    expect_guest: Remotes::NONE.expect_guest,
};
