//! What an image is, changed after it was made: version, width of refcounts, lazy refcounts, its data file.
//!
//! Works on storage and layout alone, not on the live engine: all of it is read with these values in mind. Everything changes by
//! one write of the header. A new width makes all refcounts anew beside the old ones before that (`refcount_width`).

mod refcount_width;

use std::ops::ControlFlow;

use block::{Blame, BlockFuture};
use qcow2_layout::{Autoclear, Compatible, Compression, CryptMethod, Header, Incompatible, Version};
use storage::Storage;

use crate::header_sector::{self, NotReplaced};
use crate::options::LAZY_NEEDS_V3;
use crate::{Error, read_header};

/// The width of refcounts in version 2, which has no field for it.
const REFCOUNT_BITS_V2: u32 = 16;

/// What is to change; `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amendment {
    /// Version of the format.
    pub version: Option<Version>,
    /// Bits of a refcount: 1, 2, 4, 8, 16, 32 or 64.
    pub refcount_bits: Option<u32>,
    /// Refcounts are written late.
    pub lazy_refcounts: Option<bool>,
    /// Another name of the data file, which an image has or has not.
    pub data_file: Option<String>,
    /// The data file can be read by itself: on only where it is already.
    pub data_file_raw: Option<bool>,
}

impl Amendment {
    /// Whether the image called `name` with this header can be changed so.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] and [`crate::ErrorKind::Unsupported`] name what cannot be, and what can;
    /// [`crate::ErrorKind::Refused`] for an image that must be repaired first.
    pub fn check(&self, name: &str, header: &Header) -> Result<(), Error> {
        let blame = Blame::new(name);
        if header.incompatible.contains(Incompatible::CORRUPT) {
            return Err(blame.refused("the image is marked corrupt; repair it with `cowhand check -r all`"));
        }
        if header.incompatible.contains(Incompatible::DIRTY) {
            return Err(blame.refused(
                "the image was not closed and its refcounts must be repaired first (`cowhand check -r all`)",
            ));
        }
        self.check_width(&blame)?;
        self.check_data_file(&blame, header)?;
        match self.version.unwrap_or(header.version) {
            Version::V2 => self.check_version_2(&blame, header),
            Version::V3 => Ok(()),
        }
    }

    /// Whether the image becomes one of version 2.
    pub fn is_downgrade(&self, header: &Header) -> bool {
        self.version == Some(Version::V2) && header.version == Version::V3
    }

    /// Whether the image becomes one of version 3.
    pub fn is_upgrade(&self, header: &Header) -> bool {
        self.version == Some(Version::V3) && header.version == Version::V2
    }

    /// Whether the refcounts of the image with this header get another width.
    pub fn changes_width(&self, header: &Header) -> bool {
        self.refcount_bits.is_some_and(|bits| bits != 1 << header.refcount_order)
    }

    fn check_width(&self, blame: &Blame) -> Result<(), Error> {
        match self.refcount_bits {
            Some(bits) if !bits.is_power_of_two() || bits > 64 => {
                Err(blame.invalid(format!("refcount_bits is {bits}; must be 1, 2, 4, 8, 16, 32 or 64")))
            }
            _ => Ok(()),
        }
    }

    fn check_data_file(&self, blame: &Blame, header: &Header) -> Result<(), Error> {
        let external = header.incompatible.contains(Incompatible::EXTERNAL_DATA);
        if self.data_file.is_some() && !external {
            return Err(blame.invalid(
                "data_file is the name of an external data file, and this image has none; `cowhand convert` makes one that has",
            ));
        }
        if self.data_file_raw == Some(true) && !header.autoclear.contains(Autoclear::RAW_EXTERNAL_DATA) {
            return Err(blame.invalid(
                "data_file_raw=on is for new images: the data file of this one may hold anything where the image says zeroes",
            ));
        }
        Ok(())
    }

    /// What version 2 cannot say.
    fn check_version_2(&self, blame: &Blame, header: &Header) -> Result<(), Error> {
        if self.lazy_refcounts == Some(true) {
            return Err(blame.invalid(LAZY_NEEDS_V3));
        }
        let bits = self.refcount_bits.unwrap_or(1 << header.refcount_order);
        if bits != REFCOUNT_BITS_V2 {
            return Err(blame.invalid(format!(
                "compat=0.10 has refcounts of {REFCOUNT_BITS_V2} bits, not of {bits}; give refcount_bits={REFCOUNT_BITS_V2}, or compat=1.1"
            )));
        }
        if header.crypt != CryptMethod::None {
            return Err(blame.unsupported(
                "an encrypted image stays of its version: clusters of zeroes would not be encrypted; `cowhand convert` makes another image",
            ));
        }
        let has = [
            (Incompatible::EXTERNAL_DATA, "an external data file"),
            (Incompatible::EXTENDED_L2, "extended L2 entries (subclusters)"),
            (Incompatible::COMPRESSION, "another compression type than zlib"),
        ];
        match has.into_iter().find(|(feature, _)| header.incompatible.contains(*feature)) {
            Some((_, what)) => Err(blame.unsupported(format!(
                "the image has {what}, which compat=0.10 cannot say; `cowhand convert` makes an image without"
            ))),
            None => Ok(()),
        }
    }

    /// The header that says so, but for the place of refcounts.
    fn applied(&self, header: &Header) -> Header {
        let mut new = header.clone();
        if self.is_upgrade(header) {
            new.version = Version::V3;
        }
        if let Some(bits) = self.refcount_bits {
            new.refcount_order = bits.trailing_zeros();
        }
        if let Some(lazy) = self.lazy_refcounts {
            new.compatible.set(Compatible::LAZY_REFCOUNTS, lazy);
        }
        if let Some(name) = &self.data_file {
            // An empty one removes the name: the file is then given by the user who opens the image.
            new.extensions.data_file = Some(name.clone()).filter(|name| !name.is_empty());
        }
        if self.data_file_raw == Some(false) {
            new.autoclear.remove(Autoclear::RAW_EXTERNAL_DATA);
        }
        if self.is_downgrade(header) {
            new.version = Version::V2;
            (new.incompatible, new.compatible, new.autoclear) = Default::default();
            new.compression = Compression::Deflate;
            new.extensions.features.clear();
            new.extra.clear();
        }
        if new != *header {
            header_sector::name_features(&mut new);
        }
        new
    }
}

/// Changes the image in `file`, which must not be open elsewhere, as `amendment` says. `progress` hears how many bytes of new
/// refcounts are written, and of how many; [`ControlFlow::Break`] ends it, with nothing changed.
///
/// What the other version cannot say must be out of the way before: [`crate::Qcow2::prepare_for_version_2`] and
/// [`crate::Qcow2::prepare_for_version_3`]. Durable when it returns. Costs a write of the header; another width of refcounts
/// reads all of them twice and writes them to new places, a cluster at a time.
///
/// # Errors
/// As [`Amendment::check`]; [`crate::ErrorKind::Invalid`] when a refcount does not fit the width or the table becomes too large;
/// [`crate::ErrorKind::Refused`] when `progress` ended it; whatever the storage says. Then nothing has changed, or all has but for the
/// names of features in the header.
///
/// # Crash
/// The old image or the new one; docs/internals/write-order.md, `amend_header` and `amend_refcount_bits`.
pub fn amend<'a>(
    file: &'a dyn Storage,
    amendment: &'a Amendment,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> BlockFuture<'a, Result<(), Error>> {
    Box::pin(async move {
        let blame = Blame::new(file.name());
        let header = read_header(file).await?;
        amendment.check(file.name(), &header)?;
        let mut new = amendment.applied(&header);
        if new == header {
            return Ok(());
        }
        if file.capabilities().read_only {
            return Err(blame.refused("the file is opened read-only"));
        }
        // What was read may be in the page cache only.
        file.flush().await.map_err(blame.io("flushing"))?;
        let length = file.length();
        if new.refcount_order != header.refcount_order {
            let changed = refcount_width::change(file, &blame, &header, &mut new, progress).await;
            if changed.is_err() {
                give_back(file, length).await;
            }
            changed?;
        }
        match header_sector::replace(file, &blame, &header, &new).await {
            Ok(()) => header_sector::put_names_back(file, &blame, &new).await,
            Err(NotReplaced { error, unknown }) => {
                if !unknown {
                    give_back(file, length).await;
                }
                Err(error)
            }
        }
    })
}

/// The old header leads to nothing behind `length`. Where the file cannot be made shorter that space is lost, and nothing else.
async fn give_back(file: &dyn Storage, length: u64) {
    if file.capabilities().resizable
        && let Err(error) = file.shorten_to(length).await
    {
        tracing::debug!("{}: cannot cut off what was not finished: {error}", file.name());
    }
}
