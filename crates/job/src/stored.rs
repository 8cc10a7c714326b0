//! What is copied as it lies in the source, without being read.

use std::ops::Range;

use block::{Stored, Takes};

use crate::content::Content;
use crate::copy::{Copy, Fetched, Part, Zeroes};
use crate::counters::Counters;
use crate::error::{Action, Error, Side};
use crate::plan::Step;

impl Copy<'_> {
    /// What the target takes over as it lies in the source, where nothing has to be looked at.
    pub(crate) fn wanted(&self) -> Option<Takes> {
        let takes = self.target.takes()?;
        let is_compared = matches!(self.content, Content::As(_));
        let is_searched = matches!((takes, self.options.zeroes), (Takes::File, Zeroes::Detect(_)));
        let is_rewritten = self.options.zeroes == Zeroes::Write || self.options.salvage;
        (!is_compared && !is_searched && !is_rewritten).then_some(takes)
    }

    /// The parts of a step: those that the target takes over, and the rest, which is read.
    pub(crate) async fn fetch_parts(
        &self,
        step: &Step,
        wanted: Takes,
        counters: &Counters,
    ) -> Result<Vec<Part>, Error> {
        let end = step.at + step.len;
        let (mut parts, mut at, mut unread) = (Vec::new(), step.at, step.at);
        while at < end {
            let stored = self.source.stored(at, end - at, wanted).await;
            let stored = stored.map_err(Error::request(Side::Source, self.source, Action::Status, at))?;
            let Some(stored) = stored else {
                at = match wanted {
                    Takes::File => end,
                    Takes::Packed { unit_bytes, .. } => end.min((at / unit_bytes + 1) * unit_bytes),
                };
                continue;
            };
            if unread < at {
                parts.push(self.read_part(unread..at, counters).await?);
            }
            let len = stored.disk_bytes();
            parts.push(Part { at, len, is_data: true, fetched: Fetched::Stored(stored) });
            at += len;
            unread = at;
        }
        if unread < end {
            parts.push(self.read_part(unread..end, counters).await?);
        }
        Ok(parts)
    }

    async fn read_part(&self, part: Range<u64>, counters: &Counters) -> Result<Part, Error> {
        let (at, len) = (part.start, part.end - part.start);
        let fetched = Fetched::Read(self.read(at, len, counters).await?);
        Ok(Part { at, len, is_data: true, fetched })
    }

    /// Has the target take over a part; reads and writes it if that cannot be.
    pub(crate) async fn store_stored(
        &self,
        at: u64,
        stored: Stored,
        counters: &Counters,
    ) -> Result<(), Error> {
        let (offset, len) = (self.target_offset(at), stored.disk_bytes());
        match self.target.take(offset, stored).await {
            Ok(()) => counters.add_written(len),
            Err(error) if error.kind() == block::ErrorKind::Unsupported => {
                let bytes = self.read(at, len, counters).await?;
                self.store_read(at, len, bytes, counters).await?;
            }
            Err(error) => {
                return Err(Error::request(Side::Target, self.target, Action::Write, offset)(error));
            }
        }
        Ok(())
    }
}
