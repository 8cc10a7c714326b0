//! Chunks and delta objects of a folder that no image of it leads to, and packs and start lists of images that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::deltas::DELTAS;
use crate::chunked::error::Error;
use crate::chunked::in_use::{self, Push, REMOVAL_WITHIN};
use crate::chunked::manifest::{DeltasOf, Manifest, TABLE_CHUNKS};
use crate::chunked::place::{MANIFEST_SUFFIX, Place};
use crate::chunked::start_list::{
    PACKS, Pack, START_LIST_BYTES_MAX, START_SUFFIX, StartList, StartListError,
};
use crate::s3::{Depth, Listed, Store, StoreError};

/// Requests at a time.
const AT_ONCE: usize = 8;

/// A folder of a bucket, with the images and the chunks in it.
#[derive(Debug)]
pub struct Folder {
    store: Arc<Store>,
    /// Ends with a slash, or is empty.
    prefix: String,
}

/// A chunk, a table, a delta object, a pack or a start list that nothing leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// What messages call it.
    pub object: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What is in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Images.
    pub images: u64,
    /// Chunks, and tables of them.
    pub chunks: u64,
    /// Packs of chunks.
    pub packs: u64,
    /// Objects with patches of chunks.
    pub deltas: u64,
    /// Objects that nothing leads to, for long enough.
    pub unused: u64,
    /// Their bytes.
    pub unused_bytes: u64,
    /// Those that nothing leads to, and that are too young.
    pub young: u64,
    /// Pushes that go on, or were killed not long ago.
    pub pushes: u64,
}

/// What becomes of the chunks that nothing leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// They stay.
    Nothing,
    /// They are removed.
    Unused,
}

/// What lies in a folder beside chunks and packs.
#[derive(Default)]
struct Images {
    /// Keys of manifests.
    manifests: Vec<String>,
    /// Objects that are called as start lists are.
    starts: Vec<Listed>,
}

impl Survey {
    /// Counts an object that nothing leads to. Says whether it has been there for so many seconds.
    fn note_unused(&mut self, one: &Listed, unused_s: u64) -> bool {
        let is_old = one.age_s.is_some_and(|age_s| age_s >= unused_s);
        match is_old {
            true => (self.unused, self.unused_bytes) = (self.unused + 1, self.unused_bytes + one.bytes),
            false => self.young += 1,
        }
        is_old
    }
}

impl Folder {
    /// The folder `key` of a bucket; empty: the bucket itself.
    pub fn new(store: Arc<Store>, key: &str) -> Self {
        let key = key.trim_end_matches('/');
        let prefix = if key.is_empty() { String::new() } else { format!("{key}/") };
        Self { store, prefix }
    }

    /// From here on pushes are refused, until [`Folder::end_removal`].
    ///
    /// # Errors
    /// [`Error::Removing`] when another process removes chunks; when the store does not answer or refuses: then it may have begun all the same.
    pub async fn begin_removal(&self) -> Result<(), Error> {
        in_use::begin_removal(&self.store, &self.prefix).await
    }

    /// The removal that was begun has ended, or failed: pushes go on.
    ///
    /// # Errors
    /// When the store does not answer or refuses.
    pub async fn end_removal(&self) -> Result<(), Error> {
        Ok(in_use::end_removal(&self.store, &self.prefix).await?)
    }

    /// Gives the chunks that no image leads to and that have been there for `unused_s` seconds at least, and removes them where that is
    /// wanted, after [`Folder::begin_removal`]. A push that began longer ago counts as killed.
    ///
    /// Nothing is removed that an image leads to, also one that is being pushed: while chunks are removed no push goes on. A crash leaves the
    /// images as they are, and pushes refused for a day.
    ///
    /// # Errors
    /// When the store does not answer or refuses, an image is damaged (what it leads to is unknown), or a push goes on.
    pub async fn unused(
        &self,
        unused_s: u64,
        removal: Removal,
        mut give: impl FnMut(Unused) -> std::io::Result<()>,
    ) -> Result<Survey, Error> {
        let begun = Instant::now();
        let pushes = in_use::pushes(&self.store, &self.prefix).await?;
        let (live, dead): (Vec<Push>, Vec<Push>) =
            pushes.into_iter().partition(|push| push.begun_s.is_none_or(|begun_s| begun_s < unused_s));
        let mut found = Survey { pushes: live.len() as u64, ..Survey::default() };
        if let (Removal::Unused, Some(push)) = (removal, live.first()) {
            return Err(Error::Pushing { object: self.name(&push.key), begun_s: push.begun_s });
        }
        // After the pushes: one that has ended meanwhile has its manifest here.
        let images = self.images().await?;
        let mut tables = self.tables(&images, &mut found).await?;
        let mut parts = vec![0..=u8::MAX];
        while let Some(bytes) = parts.pop() {
            let Some(named) = self.named(&mut tables, &bytes).await? else {
                parts.extend(halves(&bytes));
                continue;
            };
            for first in prefixes(bytes) {
                let mut unused = Vec::new();
                let of_list = |page: Vec<Listed>| {
                    unused.extend(self.judge(page, &named, unused_s, &mut found));
                    Ok::<(), StoreError>(())
                };
                self.store.list(&format!("{}chunks/{first}", self.prefix), Depth::All, of_list).await?;
                self.end(unused, removal, begun, &mut give).await?;
            }
        }
        let (lists, packs) = self.unused_packs(&images, unused_s, &mut found).await?;
        let deltas = self.unused_deltas(&tables.objects, unused_s, &mut found).await?;
        // A list goes first: none is left that leads to packs that are gone.
        for unused in [lists, packs, deltas] {
            self.end(unused, removal, begun, &mut give).await?;
        }
        if removal == Removal::Unused {
            self.remove(dead.iter().map(|push| push.key.as_str()), begun).await?;
        }
        Ok(found)
    }

    /// Removes what nothing leads to, where that is wanted, and gives it.
    async fn end(
        &self,
        unused: Vec<Listed>,
        removal: Removal,
        begun: Instant,
        give: &mut impl FnMut(Unused) -> std::io::Result<()>,
    ) -> Result<(), Error> {
        if removal == Removal::Unused {
            self.remove(unused.iter().map(|one| one.key.as_str()), begun).await?;
        }
        let mut given =
            unused.into_iter().map(|Listed { key, bytes, .. }| Unused { object: self.name(&key), bytes });
        given.try_for_each(give).map_err(Error::Output)
    }

    /// Those of a list that nothing leads to, for long enough.
    fn judge(
        &self,
        page: Vec<Listed>,
        named: &[ChunkName],
        unused_s: u64,
        found: &mut Survey,
    ) -> Vec<Listed> {
        let mut is_unused = |one: &Listed| {
            // Other objects are none of ours.
            let Some(name) = self.chunk(&one.key) else { return false };
            found.chunks += 1;
            named.binary_search(&name).is_err() && found.note_unused(one, unused_s)
        };
        page.into_iter().filter(|one| is_unused(one)).collect()
    }

    /// The chunk that an object of the folder is.
    fn chunk(&self, key: &str) -> Option<ChunkName> {
        let name = ChunkName::parse(key.rsplit('/').next()?)?;
        (key.strip_prefix(&self.prefix)? == name.object()).then_some(name)
    }

    /// Removes objects while no process may push.
    async fn remove(&self, keys: impl Iterator<Item = &str>, begun: Instant) -> Result<(), Error> {
        let removed = stream::iter(keys).map(async |key| {
            if begun.elapsed() > REMOVAL_WITHIN {
                return Err(Error::RemovalTooLong);
            }
            Ok(self.store.remove(key).await?)
        });
        removed.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The manifests and start lists of the folder.
    async fn images(&self) -> Result<Images, Error> {
        let mut images = Images::default();
        let of_list = |page: Vec<Listed>| {
            for one in page {
                if one.key.ends_with(MANIFEST_SUFFIX) {
                    images.manifests.push(one.key);
                } else if one.key.ends_with(START_SUFFIX) && one.bytes <= START_LIST_BYTES_MAX {
                    images.starts.push(one);
                }
            }
            Ok::<(), StoreError>(())
        };
        self.store.list(&self.prefix, Depth::Here, of_list).await?;
        Ok(images)
    }

    /// Start lists of images that are gone, and packs that no other start list names, for long enough.
    async fn unused_packs(
        &self,
        images: &Images,
        unused_s: u64,
        found: &mut Survey,
    ) -> Result<(Vec<Listed>, Vec<Listed>), Error> {
        let place = |key: &str| Place::in_bucket(Arc::clone(&self.store), key);
        let own_name = |manifest: &String| {
            place(manifest.strip_suffix(MANIFEST_SUFFIX).unwrap_or(manifest)).start_object()
        };
        let with_image: BTreeSet<String> = images.manifests.iter().map(own_name).collect();
        let read = async |one: &Listed| {
            let got = self.store.get(&one.key, START_LIST_BYTES_MAX).await?;
            Ok::<_, Error>((one.clone(), got.map(|got| StartList::decode(&got.body))))
        };
        let mut read = stream::iter(&images.starts).map(read).buffer_unordered(AT_ONCE);
        let (mut lists, mut named, mut all_are_read) = (Vec::new(), BTreeSet::new(), true);
        while let Some((one, list)) = read.try_next().await? {
            match list {
                Some(Ok(list)) => {
                    let name = one.key.strip_prefix(&self.prefix).unwrap_or(&one.key);
                    match with_image.contains(name) || !found.note_unused(&one, unused_s) {
                        true => named.extend(list.packs.iter().map(|pack| *pack.name.bytes())),
                        false => lists.push(one),
                    }
                }
                // It may name any pack.
                Some(Err(StartListError::Version { .. })) => all_are_read = false,
                // Another object of this name, one that leads nowhere, or one that has gone.
                Some(Err(_)) | None => {}
            }
        }
        let mut packs = Vec::new();
        let of_list = |page: Vec<Listed>| {
            for one in page {
                let name = one.key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix(PACKS));
                // Other objects are none of ours.
                let Some(name) = name.and_then(ChunkName::parse) else { continue };
                found.packs += 1;
                debug_assert_eq!(one.key.strip_prefix(&self.prefix), Some(&*Pack::object(name)));
                let is_named = !all_are_read || named.contains(name.bytes());
                if !is_named && found.note_unused(&one, unused_s) {
                    packs.push(one);
                }
            }
            Ok::<(), StoreError>(())
        };
        self.store.list(&format!("{}{PACKS}", self.prefix), Depth::Here, of_list).await?;
        Ok((lists, packs))
    }

    /// Delta objects that no image leads to, for long enough.
    async fn unused_deltas(
        &self,
        named: &BTreeSet<[u8; 32]>,
        unused_s: u64,
        found: &mut Survey,
    ) -> Result<Vec<Listed>, Error> {
        let mut unused = Vec::new();
        let of_list = |page: Vec<Listed>| {
            for one in page {
                let name = one.key.strip_prefix(&self.prefix).and_then(|key| key.strip_prefix(DELTAS));
                // Other objects are none of ours.
                let Some(name) = name.and_then(ChunkName::parse) else { continue };
                found.deltas += 1;
                if !named.contains(name.bytes()) && found.note_unused(&one, unused_s) {
                    unused.push(one);
                }
            }
            Ok::<(), StoreError>(())
        };
        self.store.list(&format!("{}{DELTAS}", self.prefix), Depth::Here, of_list).await?;
        Ok(unused)
    }

    /// The tables that the images of the folder lead to.
    async fn tables(&self, images: &Images, found: &mut Survey) -> Result<Named, Error> {
        let read = async |key: &String| {
            let image = key.strip_suffix(MANIFEST_SUFFIX).unwrap_or(key);
            let place = Place::in_bucket(Arc::clone(&self.store), image);
            // It may have been deleted since.
            Ok::<_, Error>(place.find_unproven().await?.map(|(image, _)| image))
        };
        let mut images = stream::iter(&images.manifests).map(read).buffer_unordered(AT_ONCE);
        let mut named = Named::default();
        while let Some(image) = images.try_next().await? {
            let Some(image) = image else { continue };
            found.images += 1;
            let manifest = Arc::new(image.manifest);
            for table in 0..manifest.tables() {
                let Some(name) = manifest.table(table) else { continue };
                let chunks = manifest.chunks_of(table);
                debug_assert!(chunks.end - chunks.start <= TABLE_CHUNKS);
                let of = |name: ChunkName| (name, Arc::clone(&manifest), table);
                named.tables.entry(*name.bytes()).or_insert_with(|| of(name));
                if let Some(DeltasOf { name, .. }) = manifest.deltas(table) {
                    named.deltas.entry(*name.bytes()).or_insert_with(|| of(name));
                }
            }
        }
        Ok(named)
    }

    /// The names that begin with one of these bytes, of the tables and of the chunks that they lead to, sorted; `None` if memory has no room for them. Notes the delta
    /// objects that they lead to.
    async fn named(
        &self,
        named: &mut Named,
        bytes: &RangeInclusive<u8>,
    ) -> Result<Option<Vec<ChunkName>>, Error> {
        let any_image = format!("{}any", self.prefix);
        let place = Place::in_bucket(Arc::clone(&self.store), &any_image);
        let Named { tables, deltas, objects } = named;
        let mut names = Names::new(bytes);
        let mut is_room = names.add(tables.values().chain(deltas.values()).map(|(name, ..)| *name));
        let read = async |(_, manifest, table): &Leading| place.table(manifest, *table).await;
        let mut read = stream::iter(tables.values()).map(read).buffer_unordered(AT_ONCE);
        while let Some(table) = read.try_next().await?.filter(|_| is_room) {
            is_room = names.add(table.chunks.into_iter().flatten());
        }
        let read = async |(_, manifest, table): &Leading| place.deltas(manifest, *table).await;
        let mut read = stream::iter(deltas.values()).map(read).buffer_unordered(AT_ONCE);
        while let Some(table) = read.try_next().await?.filter(|_| is_room) {
            for (base, patches) in table.leads_to() {
                is_room &= names.add([base].into_iter());
                objects.extend(patches.map(|object| *object.bytes()));
            }
        }
        Ok(is_room.then(|| names.sorted()))
    }

    fn name(&self, key: &str) -> String {
        self.store.object(key).map_or_else(|_| key.to_owned(), |name| name.to_string())
    }
}

/// Names that are in memory at a time, of 32 bytes each: images with more are looked through several times.
const NAMES_MAX: usize = 4 << 20;
/// Fewer are not looked through for those that are there twice.
const SORTED_AT_MIN: usize = 1024;

/// Tables of the images by their names.
pub(crate) type Tables = BTreeMap<[u8; 32], Leading>;

/// A table, or one of deltas: its name, an image that it is of, and its number there.
type Leading = (ChunkName, Arc<Manifest>, u64);

/// What the images lead to beside packs.
#[derive(Default)]
struct Named {
    tables: Tables,
    /// Tables of deltas.
    deltas: Tables,
    /// Delta objects.
    objects: BTreeSet<[u8; 32]>,
}

/// Names that begin with one of these bytes.
pub(crate) struct Names<'a> {
    bytes: &'a RangeInclusive<u8>,
    names: Vec<ChunkName>,
    /// Memory has room for so many.
    max: usize,
    /// With so many of them, those that are there twice are let go.
    sorted_at: usize,
}

impl<'a> Names<'a> {
    pub(crate) fn new(bytes: &'a RangeInclusive<u8>) -> Self {
        Self { bytes, names: Vec::new(), max: NAMES_MAX, sorted_at: SORTED_AT_MIN }
    }

    /// Adds those that begin so. Says whether memory has room for all.
    pub(crate) fn add(&mut self, names: impl Iterator<Item = ChunkName>) -> bool {
        let bytes = self.bytes;
        self.names.extend(names.filter(|name| bytes.contains(&name.bytes()[0])));
        // Images have much in common: what is there twice is let go before more memory is taken.
        if self.names.len() < self.sorted_at {
            return true;
        }
        self.sort();
        self.sorted_at = (2 * self.names.len()).clamp(SORTED_AT_MIN, self.max + self.max / 2);
        self.names.len() <= self.max || self.bytes.start() == self.bytes.end()
    }

    fn sort(&mut self) {
        self.names.sort_unstable();
        self.names.dedup();
    }

    fn sorted(mut self) -> Vec<ChunkName> {
        self.sort();
        self.names
    }
}

/// Two halves of the first bytes of names.
fn halves(bytes: &RangeInclusive<u8>) -> [RangeInclusive<u8>; 2] {
    let (first, last) = (*bytes.start(), *bytes.end());
    let middle = first + (last - first) / 2;
    [first..=middle, middle.saturating_add(1)..=last]
}

/// What the names of a part begin with: one digit, so that a small folder takes few requests, or two.
fn prefixes(bytes: RangeInclusive<u8>) -> Vec<String> {
    let (first, last) = (*bytes.start(), *bytes.end());
    match first % 16 == 0 && last % 16 == 15 {
        true => (first / 16..=last / 16).map(|digit| format!("{digit:x}")).collect(),
        false => bytes.map(|byte| format!("{byte:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_first_bytes_have_each_once_and_begin_with_their_prefixes() {
        let mut ranges = vec![0..=u8::MAX];
        for digits in [1, 1, 1, 1, 1, 2, 2, 2, 2] {
            let bytes: Vec<u8> = ranges.iter().cloned().flatten().collect();
            assert!(bytes.iter().copied().eq(0..=u8::MAX));
            let first: Vec<_> = ranges.iter().cloned().flat_map(prefixes).collect();
            assert!(first.len() == 16_usize.pow(digits) && first.is_sorted(), "{first:?}");
            assert!(first.iter().all(|first| first.len() == digits as usize));
            ranges = ranges.iter().flat_map(halves).collect();
        }
    }

    #[test]
    fn names_that_are_there_twice_take_no_room_and_others_are_left_out() {
        let bytes = 0..=127;
        let mut names = Names::new(&bytes);
        let name = |first: u8| ChunkName::from_bytes([first; 32]);
        for _ in 0..10_000 {
            assert!(names.add([5, 200, 3, 5].into_iter().map(name)));
        }
        assert!(names.names.len() <= SORTED_AT_MIN);
        assert_eq!(names.sorted(), [name(3), name(5)]);
        let max = 3 * SORTED_AT_MIN;
        let mut many = Names { max, ..Names::new(&bytes) };
        let each = |number: usize| {
            let mut bytes = [0; 32];
            bytes[1..9].copy_from_slice(&number.to_le_bytes());
            ChunkName::from_bytes(bytes)
        };
        assert!(many.add((0..max).map(each)));
        assert!(many.add((0..max).map(each)));
        assert!(!many.add((max..2 * max).map(each)));
        // Those of one byte are not looked through in parts.
        let one = 0..=0;
        assert!(Names { max, ..Names::new(&one) }.add((0..2 * max).map(each)));
    }
}
