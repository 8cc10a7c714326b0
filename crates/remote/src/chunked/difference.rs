//! Where two images differ, by the names of their chunks: no chunk is read.

use std::ops::Range;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::error::Error;
use crate::chunked::manifest::Manifest;
use crate::chunked::place::Place;
use crate::chunked::table::Table;

/// What an image has in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A chunk.
    Data,
    /// Zeroes.
    Zero,
    /// It is behind the end.
    Nothing,
}

/// A range in which two images differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Bytes of the disks: whole chunks, but at the end of one of them.
    pub range: Range<u64>,
    /// What each of the two has there.
    pub content: [Content; 2],
}

/// Two images whose chunks have the same size and key. Costs one table of each at a time, and no request for tables that both have.
#[derive(Debug)]
pub struct Comparison<'a> {
    images: [(&'a Place, &'a Manifest); 2],
    /// The table that is compared next.
    table: u64,
    /// Differences of the tables before it, the next one last.
    found: Vec<Difference>,
}

impl<'a> Comparison<'a> {
    /// Asks no store.
    ///
    /// # Errors
    /// When equal bytes have other names in the other image: its chunks have another size, or another key.
    pub fn new(images: [(&'a Place, &'a Manifest); 2]) -> Result<Self, Error> {
        let [(one, first), (other, second)] = images;
        let reason = match () {
            () if first.chunk_size() != second.chunk_size() => {
                let [one, other] = [first, second].map(|manifest| manifest.chunk_size().bytes());
                format!("chunks of the first have {one} bytes, those of the second {other}")
            }
            () if first.key_id() != second.key_id() => "they are not encrypted with the same key".to_owned(),
            () => return Ok(Self { images, table: 0, found: Vec::new() }),
        };
        Err(Error::Incomparable { one: one.image(), other: other.image(), reason })
    }

    /// The next range, in the order of the disk.
    ///
    /// # Errors
    /// When the store does not answer, or a table is missing or damaged.
    pub async fn next(&mut self) -> Result<Option<Difference>, Error> {
        let tables = self.images.map(|(_, manifest)| manifest.tables());
        while self.found.is_empty() && self.table < tables[0].max(tables[1]) {
            self.found = self.compare(self.table).await?;
            self.found.reverse();
            self.table += 1;
        }
        Ok(self.found.pop())
    }

    async fn compare(&self, table: u64) -> Result<Vec<Difference>, Error> {
        let [(_, first), (_, second)] = self.images;
        let is_same = first.table(table) == second.table(table);
        if is_same && first.range_of_table(table) == second.range_of_table(table) {
            return Ok(Vec::new());
        }
        let [one, other] = self.images.map(|(place, manifest)| read(place, manifest, table));
        let tables = [one.await?, other.await?];
        let mut found: Vec<Difference> = Vec::new();
        let chunks = self.images.map(|(_, manifest)| manifest.chunks_of(table));
        for chunk in chunks[0].start.max(chunks[1].start)..chunks[0].end.max(chunks[1].end) {
            self.compare_chunk(chunk, &tables, &mut found);
        }
        Ok(found)
    }

    fn compare_chunk(&self, chunk: u64, tables: &[Table; 2], found: &mut Vec<Difference>) {
        let [one, other] = self.images.map(|(_, manifest)| manifest.range(chunk));
        let names = tables.each_ref().map(|table| name_in(table, chunk));
        let start = one.start.max(other.start);
        let (shorter, longer) = (one.end.min(other.end).max(start), one.end.max(other.end));
        // The name of a chunk at the end is that of fewer bytes: it says nothing of those that both have.
        let is_same = names[0] == names[1] && (shorter == longer || names[0].is_none());
        let ends = [&one, &other].map(|range| range.end);
        let content = |from: u64| {
            let of = |(name, end): (Option<ChunkName>, u64)| match name {
                _ if end <= from => Content::Nothing,
                None => Content::Zero,
                Some(_) => Content::Data,
            };
            [of((names[0], ends[0])), of((names[1], ends[1]))]
        };
        if !is_same {
            add(found, start..shorter, content(start));
        }
        add(found, shorter..longer, content(shorter));
    }
}

/// Adds a range to the last one where both images have the same there.
fn add(found: &mut Vec<Difference>, range: Range<u64>, content: [Content; 2]) {
    if range.is_empty() {
        return;
    }
    match found.last_mut().filter(|last| last.range.end == range.start && last.content == content) {
        Some(last) => last.range.end = range.end,
        None => found.push(Difference { range, content }),
    }
}

async fn read(place: &Place, manifest: &Manifest, table: u64) -> Result<Table, Error> {
    match table < manifest.tables() {
        true => place.table(manifest, table).await,
        false => Ok(Table::of_zeroes(0)),
    }
}

fn name_in(table: &Table, chunk: u64) -> Option<ChunkName> {
    let place = usize::try_from(chunk % crate::chunked::manifest::TABLE_CHUNKS).ok()?;
    *table.chunks.get(place)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunked::{ChunkSize, Compression};

    const CHUNK: u64 = 1 << 20;

    fn manifest(size: u64) -> Manifest {
        Manifest::of_zeroes(size, ChunkSize::default(), Compression::None).unwrap()
    }

    fn table(names: &[&str]) -> Table {
        Table {
            chunks: names
                .iter()
                .map(|name| (!name.is_empty()).then(|| ChunkName::of(name.as_bytes())))
                .collect(),
        }
    }

    fn differences(sizes: [u64; 2], names: [&[&str]; 2]) -> Vec<(u64, u64, [Content; 2])> {
        let place = Place::nowhere("vms/d");
        let manifests = sizes.map(manifest);
        let images = [(&place, &manifests[0]), (&place, &manifests[1])];
        let comparison = Comparison::new(images).unwrap();
        let (tables, mut found) = (names.map(table), Vec::new());
        for chunk in 0..manifests[0].chunks().max(manifests[1].chunks()) {
            comparison.compare_chunk(chunk, &tables, &mut found);
        }
        found.into_iter().map(|one| (one.range.start, one.range.end, one.content)).collect()
    }

    #[test]
    fn ranges_differ_where_chunks_have_other_names_and_where_one_disk_has_ended() {
        use Content::{Data, Nothing, Zero};
        let found = differences([4 * CHUNK; 2], [&["a", "b", "", "c"], &["a", "x", "y", ""]]);
        assert_eq!(
            found,
            [
                (CHUNK, 2 * CHUNK, [Data, Data]),
                (2 * CHUNK, 3 * CHUNK, [Zero, Data]),
                (3 * CHUNK, 4 * CHUNK, [Data, Zero])
            ]
        );
        assert_eq!(differences([2 * CHUNK; 2], [&["a", ""], &["a", ""]]), []);
        assert_eq!(differences([2 * CHUNK; 2], [&["a", "b"], &["x", "y"]]), [(0, 2 * CHUNK, [Data, Data])]);
        // A disk that has grown: its last chunk has another name, and zeroes have none.
        let grown = differences([CHUNK + 512, 3 * CHUNK], [&["a", "b"], &["a", "c", "d"]]);
        let half = CHUNK + 512;
        assert_eq!(grown, [(CHUNK, half, [Data, Data]), (half, 3 * CHUNK, [Nothing, Data])]);
        let zeroes = differences([CHUNK + 512, 2 * CHUNK], [&["a", ""], &["a", ""]]);
        assert_eq!(zeroes, [(half, 2 * CHUNK, [Nothing, Zero])]);
    }

    #[test]
    fn names_of_another_chunk_size_are_not_compared() {
        let place = Place::nowhere("vms/d");
        let other =
            Manifest::of_zeroes(CHUNK, ChunkSize::new(2 * CHUNK).unwrap(), Compression::None).unwrap();
        let error = Comparison::new([(&place, &manifest(CHUNK)), (&place, &other)]).unwrap_err().to_string();
        assert!(
            error.contains("chunks of the first have 1048576 bytes, those of the second 2097152"),
            "{error}"
        );
    }
}
