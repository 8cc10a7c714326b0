//! What an L2 table leads to, in short: what is counted, without the entries that say it. Pure.

use std::collections::TryReserveError;

use qcow2_layout::{Cluster, EntryError, Geometry, L2Entry};

use crate::lists;

/// Something in a table that has to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Clusters of data that follow each other in the table and in the file.
    Data {
        /// Offset of the first.
        host: u64,
        /// How many.
        clusters: u64,
    },
    /// An entry that has to be looked at: compressed, or not valid.
    Entry {
        /// Its index.
        index: u64,
        /// Its words.
        words: [u64; 2],
    },
}

/// A table in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// What it leads to, in its order.
    pub(super) pieces: Vec<Piece>,
    /// Entries with a place.
    pub(super) allocated: u64,
    /// Of those, compressed.
    pub(super) compressed: u64,
    /// Of those, not behind the one before; each compressed one needs a request of its own and counts too.
    pub(super) fragmented: u64,
    /// An entry with a place has no COPIED flag.
    pub(super) uncopied: bool,
    /// There is nothing in it.
    pub(super) is_zero: bool,
}

/// An entry; of one that is not valid, what it may still refer to.
pub(super) fn entry_at(
    words: [u64; 2],
    guest: Option<u64>,
    geometry: &Geometry,
) -> (Option<L2Entry>, Option<EntryError>) {
    let decoded = match guest {
        Some(guest) => L2Entry::decode_at(words, guest, geometry),
        None => L2Entry::decode(words, geometry),
    };
    match decoded {
        Ok(entry) => (Some(entry), None),
        Err(error) => (L2Entry::host_claim(words, geometry), Some(error)),
    }
}

/// Sums up the table in `bytes`. `guest` is the place on the disk of its first entry, if the disk itself has the table: then the
/// entries must be right for that place.
///
/// # Errors
/// There is no memory for what it leads to.
pub(super) fn summary(
    bytes: &[u8],
    guest: Option<u64>,
    geometry: &Geometry,
) -> Result<Summary, TryReserveError> {
    let mut summing = Summing { geometry, guest, sum: Summary::default(), run: None, expected: None };
    let words = if geometry.extended_l2 { 2 } else { 1 };
    // The word that the next entry has if it goes on where this one ends; none has zero.
    let mut next = 0;
    for (index, entry) in (0u64..).zip(bytes.as_chunks::<8>().0.chunks_exact(words)) {
        let word = |at: usize| entry.get(at).map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let words = [word(0), word(1)];
        if words == [0, 0] {
            continue;
        }
        // Nearly all of a large image.
        if words[0] == next && next != 0 && halves_differ(words[1]) {
            next = summing.go_on(next);
            continue;
        }
        next = summing.take(index, words)?;
    }
    summing.end_run()?;
    let mut sum = summing.sum;
    sum.is_zero = sum.allocated == 0 && sum.pieces.is_empty() && bytes.iter().all(|byte| *byte == 0);
    Ok(sum)
}

/// No subcluster is allocated and zero at once.
fn halves_differ(bitmap: u64) -> bool {
    bitmap & (bitmap >> 32) == 0
}

struct Summing<'a> {
    geometry: &'a Geometry,
    guest: Option<u64>,
    sum: Summary,
    /// Where the clusters begin that go on, and how many they are.
    run: Option<(u64, u64)>,
    /// Where the next cluster of the disk should be.
    expected: Option<u64>,
}

impl Summing<'_> {
    /// One more cluster of the run, whose entry is `word`: the word of the one behind that.
    fn go_on(&mut self, word: u64) -> u64 {
        if let Some((_, clusters)) = &mut self.run {
            *clusters += 1;
        }
        self.sum.allocated += 1;
        self.expected = self.expected.map(|expected| expected.saturating_add(self.geometry.cluster_size()));
        self.word_behind(word)
    }

    /// The word of an entry like this one for the next cluster, or 0 if there is none.
    fn word_behind(&self, word: u64) -> u64 {
        let next = word.wrapping_add(self.geometry.cluster_size());
        // A place behind the last one would be a reserved bit.
        if next >> 56 == word >> 56 { next } else { 0 }
    }

    /// An entry that is no part of a run as it is: the word with which the next one would go on.
    fn take(&mut self, index: u64, words: [u64; 2]) -> Result<u64, TryReserveError> {
        let guest = self.guest.map(|guest| guest.saturating_add(index << self.geometry.cluster_bits));
        let (entry, error) = entry_at(words, guest, self.geometry);
        match (entry, error) {
            (Some(L2Entry::Standard(Cluster { host: Some(host), copied, .. })), error) => {
                self.count_place(host.0, copied);
                if error.is_some() {
                    self.odd(index, words)?;
                    return Ok(0);
                }
                if self.geometry.external_data {
                    return Ok(0);
                }
                self.lead_to(host.0)?;
                Ok(self.word_behind(words[0]))
            }
            (Some(L2Entry::Compressed(_)), _) => {
                self.sum.allocated += 1;
                self.sum.compressed += 1;
                self.sum.fragmented += 1;
                self.odd(index, words)?;
                Ok(0)
            }
            (None | Some(L2Entry::Standard(_)), Some(_)) => {
                self.odd(index, words)?;
                Ok(0)
            }
            (None | Some(L2Entry::Standard(_)), None) => Ok(0),
        }
    }

    fn count_place(&mut self, host: u64, copied: bool) {
        self.sum.allocated += 1;
        self.sum.uncopied |= !copied;
        self.sum.fragmented += u64::from(self.expected.is_some_and(|expected| expected != host));
        self.expected = Some(host.saturating_add(self.geometry.cluster_size()));
    }

    fn lead_to(&mut self, host: u64) -> Result<(), TryReserveError> {
        if let Some((start, clusters)) = &mut self.run
            && *start + (*clusters << self.geometry.cluster_bits) == host
        {
            *clusters += 1;
            return Ok(());
        }
        self.end_run()?;
        self.run = Some((host, 1));
        Ok(())
    }

    fn odd(&mut self, index: u64, words: [u64; 2]) -> Result<(), TryReserveError> {
        self.end_run()?;
        lists::push(&mut self.sum.pieces, Piece::Entry { index, words })
    }

    fn end_run(&mut self) -> Result<(), TryReserveError> {
        match self.run.take() {
            Some((host, clusters)) => lists::push(&mut self.sum.pieces, Piece::Data { host, clusters }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qcow2_layout::Version;

    use super::*;

    const COPIED: u64 = 1 << 63;

    /// As [`summary`] should, one entry at a time.
    fn plainly(bytes: &[u8], guest: Option<u64>, geometry: &Geometry) -> (Vec<u64>, [u64; 3], bool, usize) {
        let size = geometry.l2_entry_bytes() as usize;
        let (mut hosts, mut expected, mut odd) = (Vec::new(), None, 0);
        let (mut sums, mut uncopied) = ([0; 3], false);
        for (index, entry) in (0..).zip(bytes.chunks_exact(size)) {
            let mut words = entry.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
            let words = [words.next().unwrap(), words.next().unwrap_or(0)];
            let guest = guest.map(|guest| guest + (index << geometry.cluster_bits));
            let (entry, error) = entry_at(words, guest, geometry);
            odd += usize::from(error.is_some());
            match entry {
                Some(L2Entry::Compressed(_)) => {
                    odd += usize::from(error.is_none());
                    sums = [sums[0] + 1, sums[1] + 1, sums[2] + 1];
                }
                Some(L2Entry::Standard(Cluster { host: Some(host), copied, .. })) => {
                    sums[0] += 1;
                    sums[2] += u64::from(expected.is_some_and(|expected| expected != host.0));
                    expected = Some(host.0 + geometry.cluster_size());
                    uncopied |= !copied;
                    if error.is_none() && !geometry.external_data {
                        hosts.push(host.0);
                    }
                }
                _ => {}
            }
        }
        (hosts, sums, uncopied, odd)
    }

    fn geometries() -> [Geometry; 4] {
        let plain = Geometry::new(Version::V3, 16, 4).unwrap();
        let old = Geometry::new(Version::V2, 16, 4).unwrap();
        [plain, old, plain.with_extended_l2().unwrap(), plain.with_external_data().unwrap()]
    }

    /// Words that go on, begin anew, lack the flag, are compressed, zero, or nonsense.
    fn word() -> impl Strategy<Value = (u8, u64)> {
        (0u8..12, prop_oneof![0u64..8, any::<u64>()])
    }

    proptest! {
        #[test]
        fn a_summary_has_what_its_entries_say(
            entries in proptest::collection::vec(word(), 0..200),
            which in 0usize..4,
            in_disk: bool,
        ) {
            let geometry = geometries()[which];
            let mut bytes = Vec::new();
            let mut last = COPIED | 5 << 16;
            for (kind, random) in entries {
                last = match kind {
                    0..=5 => last.wrapping_add(1 << 16),
                    6 => COPIED | (random % 64) << 16,
                    7 => (random % 64) << 16,
                    8 => 0,
                    9 => 1 << 62 | random >> 2,
                    10 => last | 1,
                    _ => random,
                };
                bytes.extend(last.to_be_bytes());
                if geometry.extended_l2 {
                    bytes.extend((if kind == 3 { random } else { 0xff }).to_be_bytes());
                }
            }
            let guest = in_disk.then_some(3 << 29);
            let found = summary(&bytes, guest, &geometry).unwrap();
            let (hosts, [allocated, compressed, fragmented], uncopied, odd) = plainly(&bytes, guest, &geometry);
            let mut of_runs = Vec::new();
            let mut odd_found = 0;
            for piece in &found.pieces {
                match piece {
                    Piece::Data { host, clusters } => {
                        of_runs.extend((0..*clusters).map(|index| host + (index << 16)));
                    }
                    Piece::Entry { .. } => odd_found += 1,
                }
            }
            prop_assert_eq!(of_runs, hosts);
            prop_assert_eq!((odd_found, found.uncopied), (odd, uncopied));
            let sums = [found.allocated, found.compressed, found.fragmented];
            prop_assert_eq!(sums, [allocated, compressed, fragmented]);
            prop_assert_eq!(found.is_zero, bytes.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_table_in_one_piece_is_one_piece() {
        let geometry = geometries()[0];
        let bytes: Vec<u8> = (1..=8192u64).flat_map(|index| (COPIED | index << 16).to_be_bytes()).collect();
        let found = summary(&bytes, Some(0), &geometry).unwrap();
        assert_eq!(found.pieces, [Piece::Data { host: 1 << 16, clusters: 8192 }]);
        assert_eq!((found.allocated, found.fragmented, found.uncopied), (8192, 0, false));
    }
}
