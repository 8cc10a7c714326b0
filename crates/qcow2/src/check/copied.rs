//! COPIED flags against refcounts.
//!
//! The flag says that a refcount is exactly one, so that the cluster may be written in place. Only the tables
//! of the disk matter: those of snapshots get their flags anew when a snapshot is applied. Where a table lies on
//! something else, or was left out because it goes beyond the file, its flags are reported and nothing is written: it
//! may be the other thing.

use qcow2_layout::{HostOffset, L1Entry, L2Entry};
use storage::IoBuf;

use super::CheckError;
use super::counts::Counts;
use super::pass::Pass;
use super::report::{Finding, Owner, Repair};
use super::tables::l2_words;
use crate::table_io::{PIECE_BYTES, write_bytes};

/// What is done about a wrong flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flags {
    /// Tell, against the refcounts on disk.
    Report,
    /// Clear where the refcount is not one after the repair.
    Clear(Repair),
    /// Set where the refcount is one after the repair.
    Set(Repair),
}

/// A table in memory, and which bytes of it changed.
pub(crate) struct Edited {
    pub(crate) offset: u64,
    pub(crate) bytes: IoBuf,
    pub(crate) changed: Option<(usize, usize)>,
}

impl Edited {
    pub(crate) fn set(&mut self, at: u64, word: u64) {
        let at = at as usize;
        if let Some(place) = self.bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&word.to_be_bytes());
            let (from, to) = self.changed.unwrap_or((at, at + 8));
            self.changed = Some((from.min(at), to.max(at + 8)));
        }
    }
}

impl Pass<'_> {
    /// Tells of every wrong flag. Reads no table again where every entry has the flag, and nothing else is wrong or shared.
    pub(super) async fn check_copied(&mut self) -> Result<(), CheckError> {
        let sound =
            self.complete && !self.rebuild && self.report.corruptions == 0 && self.report.check_errors == 0;
        if sound && !self.claims.any_shared && !self.claims.any_uncopied {
            return Ok(());
        }
        self.walk_flags(Flags::Report).await
    }

    /// Goes over all entries of the disk's tables, each table once.
    pub(super) async fn walk_flags(&mut self, flags: Flags) -> Result<(), CheckError> {
        let (start, bytes) = (self.header.l1_table_offset.0, u64::from(self.header.l1_size) * 8);
        self.forget_extent();
        let mut seen = Counts::new(self.l2_tables.bytes_max());
        let mut done = 0;
        while done < bytes {
            let len = PIECE_BYTES.min(bytes - done);
            if let Some(piece) = self.read_piece(Owner::L1, start + done, len).await {
                let mut piece = Edited { offset: start + done, bytes: piece, changed: None };
                self.walk_l1_piece(flags, &mut piece, &mut seen).await?;
                self.write_back(piece).await?;
            }
            done += len;
        }
        Ok(())
    }

    async fn walk_l1_piece(
        &mut self,
        flags: Flags,
        piece: &mut Edited,
        seen: &mut Counts,
    ) -> Result<(), CheckError> {
        for at in (0..piece.bytes.len() as u64).step_by(8) {
            let Some(word) = word_at(&piece.bytes, at).filter(|&word| word != 0) else { continue };
            let Ok(L1Entry { table: Some(table), copied }) = L1Entry::decode(word, &self.geometry) else {
                continue;
            };
            let place = HostOffset(piece.offset + at);
            if let Some(copied) = self.judge(flags, place, table, copied, false)
                && self.claims.is_only(Owner::L1, self.cluster_of(place.0))
            {
                piece.set(at, L1Entry { table: Some(table), copied }.encode());
            }
            let cluster = self.cluster_of(table.0);
            if seen.get(cluster) == 0 && self.claims.owner(cluster) == Owner::L2 {
                seen.set(cluster, 1).map_err(self.full(seen.bytes_max()))?;
                self.walk_l2_table(flags, table.0).await?;
            }
        }
        Ok(())
    }

    async fn walk_l2_table(&mut self, flags: Flags, offset: u64) -> Result<(), CheckError> {
        let Some(bytes) = self.read_piece(Owner::L2, offset, self.geometry.cluster_size()).await else {
            return Ok(());
        };
        let mut table = Edited { offset, bytes, changed: None };
        let mut edits = Vec::new();
        for (at, words) in l2_words(&table.bytes, self.geometry.extended_l2) {
            if words != [0, 0]
                && let Some(word) = self.judge_l2(flags, HostOffset(offset + at), words)
            {
                edits.push((at, word));
            }
        }
        if self.claims.is_only(Owner::L2, self.cluster_of(offset)) {
            edits.into_iter().for_each(|(at, word)| table.set(at, word));
        }
        self.write_back(table).await
    }

    /// The entry's new first word, if its flag must change.
    fn judge_l2(&mut self, flags: Flags, at: HostOffset, words: [u64; 2]) -> Option<u64> {
        match L2Entry::decode(words, &self.geometry) {
            Ok(L2Entry::Standard(cluster)) => {
                let external = self.geometry.external_data;
                let copied = self.judge(flags, at, cluster.host?, cluster.copied, external)?;
                Some(L2Entry::with_copied(words, copied)[0])
            }
            Ok(L2Entry::Compressed(_)) => None,
            Err(_) if flags == Flags::Clear(Repair::All) => {
                // The bitmap of an extended entry stays.
                if let Some([entry, _]) = L2Entry::without_unaligned_place(words, &self.geometry) {
                    return Some(entry);
                }
                // A compressed cluster never carries the flag; clearing it mends the entry.
                let cleared = L2Entry::with_copied(words, false);
                let mended = matches!(L2Entry::decode(cleared, &self.geometry), Ok(L2Entry::Compressed(_)));
                mended.then_some(cleared[0])
            }
            Err(_) => None,
        }
    }

    /// The flag's new value, if it must change. Clusters of an external data file count as used once.
    fn judge(
        &mut self,
        flags: Flags,
        at: HostOffset,
        target: HostOffset,
        copied: bool,
        external: bool,
    ) -> Option<bool> {
        let cluster = self.cluster_of(target.0);
        match flags {
            Flags::Report => {
                let refcount_is_one = external || self.refcount_on_disk(cluster) == 1;
                if refcount_is_one != copied {
                    self.found(&Finding::Copied { at, target, copied, refcount_is_one });
                }
                None
            }
            Flags::Clear(repair) => {
                let final_is_one = external || self.refcount_after(repair, cluster)? == 1;
                (copied && !final_is_one).then_some(false)
            }
            Flags::Set(repair) => {
                let final_is_one = external || self.refcount_after(repair, cluster)? == 1;
                (!copied && final_is_one).then_some(true)
            }
        }
    }

    pub(crate) async fn write_back(&mut self, edited: Edited) -> Result<(), CheckError> {
        let Some((from, to)) = edited.changed else { return Ok(()) };
        let offset = edited.offset + from as u64;
        let changed = edited.bytes.get(from..to).unwrap_or_default();
        write_bytes(self.file, offset, changed).await.map_err(self.io("write a table", offset))
    }
}

fn word_at(bytes: &[u8], at: u64) -> Option<u64> {
    let at = at as usize;
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}
