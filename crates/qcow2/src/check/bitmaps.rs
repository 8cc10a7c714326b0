//! Counting what persistent bitmaps refer to.

use qcow2_layout::{BitmapEntry, BitmapError, BitmapTableEntry, decode_bitmap_directory};

use super::CheckError;
use super::claims::Claim;
use super::pass::Pass;
use super::report::{Finding, Owner};
use crate::table_io::{PIECE_BYTES, read_bytes};

impl Pass<'_> {
    /// Claims the record of changes, the directory, and of every bitmap the table and the clusters with its bits.
    pub(super) async fn count_bitmaps(&mut self) -> Result<(), CheckError> {
        if let Some(record) = self.header.extensions.record {
            self.claim(Owner::ChangeRecord, record.offset.0, record.len, 1)?;
        }
        let Some(extension) = self.header.extensions.bitmaps else { return Ok(()) };
        let (offset, len) = (extension.directory_offset.0, extension.directory_size);
        if self.claim(Owner::BitmapDirectory, offset, len, 1)? != Claim::Good {
            self.complete = false;
            return Ok(());
        }
        let directory = match read_bytes(self.file, offset, len).await {
            Ok(directory) => directory,
            Err(error) => {
                self.unreadable(Owner::BitmapDirectory, offset, &error);
                return Ok(());
            }
        };
        let decoded = decode_bitmap_directory(&directory, extension.count, &self.geometry);
        // The names are in memory once.
        drop(directory);
        match decoded {
            Err(error @ BitmapError::NoMemory(_)) => {
                self.unreadable(Owner::BitmapDirectory, offset, &error);
            }
            Err(error) => self.found_incomplete(&Finding::Bitmaps(error)),
            Ok(mut bitmaps) => {
                bitmaps.sort_unstable_by_key(|bitmap| bitmap.table_offset);
                let mut end = 0;
                for bitmap in &bitmaps {
                    end = self.count_bitmap(bitmap, end).await?;
                }
            }
        }
        Ok(())
    }

    /// Tables come in the order of their place; `end` is where the ones before end, and so is the result. One
    /// that starts before is neither counted nor read in full, or thousands could keep us busy forever.
    async fn count_bitmap(&mut self, bitmap: &BitmapEntry, end: u64) -> Result<u64, CheckError> {
        let (start, bytes) = (bitmap.table_offset.0, u64::from(bitmap.table_entries) * 8);
        let counted = if start < end { 1 } else { bytes };
        let claim = self.claim(Owner::BitmapTable, start, counted, 1)?;
        if claim != Claim::Good || start < end {
            self.complete = false;
            return Ok(end);
        }
        let mut done = 0;
        while done < bytes {
            let len = PIECE_BYTES.min(bytes - done);
            if let Some(piece) = self.read_piece(Owner::BitmapTable, start + done, len).await {
                self.count_bitmap_piece(start + done, &piece)?;
            }
            done += len;
        }
        Ok(start + bytes)
    }

    fn count_bitmap_piece(&mut self, offset: u64, piece: &[u8]) -> Result<(), CheckError> {
        for (at, word) in (offset..).step_by(8).zip(piece.as_chunks::<8>().0) {
            match BitmapTableEntry::decode(u64::from_be_bytes(*word), &self.geometry) {
                Ok(BitmapTableEntry::Data(host)) => {
                    self.claim(Owner::BitmapData, host.0, self.geometry.cluster_size(), 1)?;
                }
                Ok(BitmapTableEntry::Zeroes | BitmapTableEntry::Ones) => {}
                Err(error) => {
                    self.found_incomplete(&Finding::Entry { at: qcow2_layout::HostOffset(at), error });
                }
            }
        }
        Ok(())
    }
}
