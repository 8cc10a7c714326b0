//! The image that a cache is: made, and recognised.

use qcow2::{CreateError, CreateOptions, Repair};
use qcow2_layout::{CryptMethod, Header, Incompatible};
use storage::Storage;

use crate::cache::identity::{EXTENSION, Identity};

/// log2 of the bytes that are fetched, kept and given up together. A guest that boots reads some 100 KB at a time: clusters of 64 KiB had it fetch 1.6
/// times what it read.
pub(crate) const CLUSTER_BITS: u32 = 14;
/// Those bytes.
pub(crate) const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
/// Sizes of disks are multiples of this.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Longer files are not cached: opening looks at the map of all of it.
const LENGTH_MAX: u64 = 64 << 40;

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Data of another kind, which stays as it is.
    #[error("{name} is no cache of cowhand's ({why}), and is left as it is; name another file, or remove it")]
    NotACache {
        /// The file.
        name: String,
        /// What is there.
        why: String,
    },
    /// The file is too long.
    #[error("the file has {length} bytes; a cache can be of {LENGTH_MAX} at most")]
    TooLong {
        /// Its length.
        length: u64,
    },
    /// An image cannot be made.
    #[error("making a cache: {0}")]
    Create(#[from] CreateError),
    /// The image cannot be opened or read.
    #[error("opening a cache: {0}")]
    Image(#[from] qcow2::Error),
}

/// What a file that is to be the cache of a version of a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// Its cache: checked, leaks given back.
    Usable,
    /// A cache that is of no use, for this reason: another one is made in its place.
    Outdated(String),
}

/// Makes `file`, which is empty, a cache of `identity` in which nothing is cached.
///
/// # Errors
/// When the image cannot be written, or the file of which it is to be is too long.
///
/// # After a crash
/// It is no image: give it a name afterwards.
pub async fn create(file: &dyn Storage, identity: &Identity) -> Result<(), CacheError> {
    if identity.length > LENGTH_MAX {
        return Err(CacheError::TooLong { length: identity.length });
    }
    let options = CreateOptions {
        size: identity.length,
        cluster_size: CLUSTER_BYTES,
        extensions: vec![(EXTENSION, identity.encode())],
        ..CreateOptions::default()
    };
    Ok(qcow2::create(file, None, &options).await?)
}

/// Looks at `file`, checks it if it is the cache of `identity`, and gives leaked clusters back. Reads all metadata. The caller holds the file's lock.
///
/// # Errors
/// When it is anything but a cache: then nothing of it was changed.
pub async fn look(file: &dyn Storage, identity: &Identity) -> Result<CacheState, CacheError> {
    let not_a_cache = |why: String| CacheError::NotACache { name: file.name().to_owned(), why };
    let header = qcow2::read_header(file).await.map_err(|error| not_a_cache(error.to_string()))?;
    let extension = header.extensions.unknown.iter().find(|(kind, _)| *kind == EXTENSION);
    let Some((_, data)) = extension else {
        return Err(not_a_cache("it is a qcow2 image that does not say so".to_owned()));
    };
    let difference = match Identity::decode(data) {
        Some(found) => found.difference(identity).or_else(|| unexpected(&header, identity)),
        None => Some("another version of this program wrote it".to_owned()),
    };
    if let Some(why) = difference {
        return Ok(CacheState::Outdated(why));
    }
    Ok(match qcow2::check(file, Repair::Leaks, &mut |_| ()).await {
        Ok(report) if report.corruptions == 0 && report.check_errors == 0 => CacheState::Usable,
        Ok(report) => {
            let damaged = report.corruptions + report.check_errors;
            CacheState::Outdated(format!("it is damaged in {damaged} places"))
        }
        Err(error) => CacheState::Outdated(error.to_string()),
    })
}

/// What of an image is otherwise than it was made.
fn unexpected(header: &Header, identity: &Identity) -> Option<String> {
    let changed = header.size != identity.length.next_multiple_of(SECTOR_BYTES)
        || header.cluster_bits != CLUSTER_BITS
        || header.backing.is_some()
        || header.snapshots > 0
        || header.crypt != CryptMethod::None
        || header.incompatible != Incompatible::default();
    changed.then(|| "another program changed it, or it is marked corrupt".to_owned())
}
