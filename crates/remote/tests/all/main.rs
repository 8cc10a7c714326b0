//! All tests of the crate in one program: it is linked once.

#[cfg(feature = "http")]
mod http;
#[cfg(feature = "nbd")]
mod nbd;
#[cfg(feature = "s3")]
mod s3;
