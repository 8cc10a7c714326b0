//! A header written anew: one write of one sector leads to everything that is new, wherever it fits in there.

use block::Blame;
use qcow2_layout::{FeatureName, Header, HeaderError, Version};
use storage::{Hints, IoBuf, Storage};

use crate::Error;
use crate::table_io::write_bytes;

/// What a medium never tears.
const SECTOR_BYTES: usize = 512;
/// Where the header says where the backing file's name is: its offset (8 bytes), then its length (4).
const PLACE_AT: usize = 8;
/// Room for the longest name. Two such places end the first cluster, so that one is free while the other is in use.
const NAME_ROOM: u64 = 1024;

/// The writes that change the header, a barrier behind each: the last one is what counts.
type Writes = Vec<(u64, Vec<u8>)>;

/// Why a header was not replaced.
#[derive(Debug)]
pub(crate) struct NotReplaced {
    pub(crate) error: Error,
    /// The file may have either header: the old one could not be put back.
    pub(crate) unknown: bool,
}

impl From<Error> for NotReplaced {
    fn from(error: Error) -> Self {
        Self { error, unknown: false }
    }
}

/// Writes `new` over `old`, the header of the image in `file`. Durable when this returns; after a failure the old one is there,
/// unless that is unknown. A crash leaves the old or the new one, if it is not so full of names that it does not fit in a sector.
pub(crate) async fn replace(
    file: &dyn Storage,
    blame: &Blame,
    old: &Header,
    new: &Header,
) -> Result<(), NotReplaced> {
    let invalid = |error: HeaderError| blame.invalid(error.to_string());
    let old_len = old.encode().map_err(invalid)?.len();
    let longest = old_len.max(new.encode().map_err(invalid)?.len()).max(SECTOR_BYTES);
    let (result, old_bytes) = file.read(0, IoBuf::uninit(longest), Hints::NONE).await;
    result.map_err(blame.io("reading the header"))?;
    for (at, bytes) in writes(new, &old_bytes, old_len as u64).map_err(invalid)? {
        let Err(error) = write_durably(file, blame, at, &bytes).await else { continue };
        let before = old_bytes.get(..bytes.len()).unwrap_or(&old_bytes);
        let unknown = at == 0 && write_durably(file, blame, 0, before).await.is_err();
        return Err(NotReplaced { error, unknown });
    }
    Ok(())
}

/// A header of version 3 names the features that are known here, if it names none.
pub(crate) fn name_features(header: &mut Header) {
    if header.version == Version::V3 && header.extensions.features.is_empty() {
        header.extensions.features = FeatureName::defaults();
    }
}

/// Writes `header`, which the file has, with the names of features that [`replace`] left out: what lies behind the first sector, where the
/// header in the file leads to nothing, then that sector. A crash leaves the header without the names or with them.
pub(crate) async fn put_names_back(file: &dyn Storage, blame: &Blame, header: &Header) -> Result<(), Error> {
    let whole = header.encode().map_err(|error| blame.invalid(error.to_string()))?;
    let Some((first, rest)) = whole.split_at_checked(SECTOR_BYTES) else { return Ok(()) };
    let (result, present) = file.read(0, IoBuf::uninit(whole.len()), Hints::NONE).await;
    result.map_err(blame.io("reading the header"))?;
    let covers_name =
        name_place(&present).is_none_or(|at| at >= SECTOR_BYTES as u64 && at < whole.len() as u64);
    if covers_name || *present == *whole {
        return Ok(());
    }
    write_durably(file, blame, SECTOR_BYTES as u64, rest).await?;
    write_durably(file, blame, 0, first).await
}

async fn write_durably(file: &dyn Storage, blame: &Blame, at: u64, bytes: &[u8]) -> Result<(), Error> {
    write_bytes(file, at, bytes).await.map_err(blame.io("writing the header"))?;
    file.flush().await.map_err(blame.io("flushing the header"))
}

/// How `new` replaces the header whose first sector is `old` and whose last byte, the name aside, lies before `old_end`.
fn writes(new: &Header, old: &[u8], old_end: u64) -> Result<Writes, HeaderError> {
    let whole = new.encode()?;
    if whole.len() <= SECTOR_BYTES {
        return Ok(vec![(0, sector(whole))]);
    }
    // Names of features are for messages only; `put_names_back` has them come back.
    let mut bare = new.clone();
    bare.extensions.features.clear();
    let short = bare.encode()?;
    if short.len() <= SECTOR_BYTES {
        return Ok(vec![(0, sector(short))]);
    }
    let name = bare.backing.take().unwrap_or_default().into_bytes();
    let mut first = bare.encode()?;
    let Some(at) = free_place(old, old_end, 1 << new.cluster_bits).filter(|_| first.len() <= SECTOR_BYTES)
    else {
        return Ok(vec![(0, whole)]);
    };
    if let Some(place) = first.get_mut(PLACE_AT..PLACE_AT + 12) {
        place[..8].copy_from_slice(&at.to_be_bytes());
        // At most 1023 bytes by the format.
        place[8..].copy_from_slice(&(name.len() as u32).to_be_bytes());
    }
    Ok(vec![(at, name), (0, sector(first))])
}

/// One of the two places at the end of the first cluster that nothing of the old header is in.
fn free_place(old: &[u8], old_end: u64, cluster_bytes: u64) -> Option<u64> {
    let used = name_place(old)?;
    let places = [cluster_bytes.checked_sub(NAME_ROOM)?, cluster_bytes.checked_sub(2 * NAME_ROOM)?];
    let in_use = |place: u64| place < used + NAME_ROOM && used < place + NAME_ROOM;
    places.into_iter().find(|&place| place >= old_end.max(SECTOR_BYTES as u64) && !in_use(place))
}

/// Where the header `bytes` says that the backing file's name is.
fn name_place(bytes: &[u8]) -> Option<u64> {
    bytes.get(PLACE_AT..PLACE_AT + 8)?.try_into().map(u64::from_be_bytes).ok()
}

/// The rest of the sector is zeroes: no extension follows.
fn sector(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(SECTOR_BYTES, 0);
    bytes
}

#[cfg(all(test, not(feature = "shuttle")))]
#[expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use futures_util::FutureExt;
    use storage::{IoBytes, MemoryStorage, Storage};

    use super::*;
    use crate::CreateOptions;

    /// A header as `create` makes it, feature names included, and its bytes.
    fn made(cluster_size: u64, backing: &str) -> (Header, Vec<u8>) {
        let file = MemoryStorage::new(0);
        let options = CreateOptions {
            size: 1 << 20,
            cluster_size,
            backing_file: Some(backing.to_owned()),
            backing_format: Some("raw".to_owned()),
            ..CreateOptions::default()
        };
        crate::create(&file, None, &options).now_or_never().unwrap().unwrap();
        let bytes = file.to_bytes()[..cluster_size as usize].to_vec();
        debug_assert!(file.length() >= cluster_size);
        (Header::decode(&bytes).unwrap(), bytes)
    }

    /// Applies the writes one by one: before the last, the header must read as it did.
    fn rename(bytes: &mut [u8], name: &str) {
        let before = Header::decode(bytes).unwrap();
        let mut new = before.clone();
        new.backing = Some(name.to_owned());
        let old_end = before.encode().unwrap().len() as u64;
        let writes = writes(&new, &bytes[..SECTOR_BYTES], old_end).unwrap();
        let last = writes.len() - 1;
        for (index, (at, written)) in writes.into_iter().enumerate() {
            assert!(index < last || written.len() == SECTOR_BYTES, "the last write is one sector");
            bytes[at as usize..at as usize + written.len()].copy_from_slice(&written);
            if index < last {
                assert_eq!(Header::decode(bytes).unwrap(), before);
            }
        }
        let after = Header::decode(bytes).unwrap();
        assert_eq!(after.backing.as_deref(), Some(name));
        assert_eq!(after.extensions.backing_format, before.extensions.backing_format);
        assert_eq!((after.size, after.l1_table_offset), (before.size, before.l1_table_offset));
    }

    #[test]
    fn a_name_changes_in_one_sector_however_long_and_however_often() {
        for cluster_size in [4096, 65536] {
            let (_, mut bytes) = made(cluster_size, "base.raw");
            for len in [3, 300, 1023, 700, 1, 1023, 1022] {
                rename(&mut bytes, &"n".repeat(len));
            }
        }
    }

    #[test]
    fn names_of_features_that_did_not_fit_come_back() {
        for len in [3, 1000] {
            let (before, mut bytes) = made(4096, "base.raw");
            rename(&mut bytes, &"n".repeat(len));
            let mut renamed = Header::decode(&bytes).unwrap();
            assert!(renamed.extensions.features.is_empty());
            let file = MemoryStorage::new(0);
            file.write(0, IoBytes::copy_from(&bytes).into(), Hints::NONE).now_or_never().unwrap().unwrap();
            name_features(&mut renamed);
            put_names_back(&file, &Blame::new("image"), &renamed).now_or_never().unwrap().unwrap();
            let after = Header::decode(&file.to_bytes()).unwrap();
            assert_eq!(
                (after.extensions.features.len(), &after),
                (before.extensions.features.len(), &renamed)
            );
        }
    }
}
