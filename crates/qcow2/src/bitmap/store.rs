//! When bitmaps that record changes are stored: before the first change, when the record of changes is full, and at the end.

use std::collections::HashSet;
use std::sync::Arc;

use block::ErrorKind;
use qcow2_layout::{Autoclear, BitmapEntry, BitmapFlags, Header};

use super::draft::Afterwards;
use super::load::Vouching;
use super::mark_in_use;
use crate::Error;
use crate::gate::Pass;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::pause::Pause;
use crate::tracking::Bitmaps;
use sync::atomic::Ordering;

impl Inner {
    /// Waits for the right to change a range. What must be on disk before that is: what the header says of a
    /// changed image, and that bitmaps miss this range. It is noted in all bitmaps that record changes.
    #[inline]
    pub(crate) async fn enter_to_change(self: &Arc<Self>, range: GuestRange) -> Result<Pass<'_>, Error> {
        loop {
            // Each once in a while: boxed, they are no part of every request.
            if !self.was_changed() {
                Box::pin(self.prepare_header_for_first_change()).await?;
            }
            let pass = self.enter().await?;
            self.check_inside(range)?;
            if self.tracking.note(range) {
                return Ok(pass);
            }
            drop(pass);
            Box::pin(self.record_change(range)).await?;
        }
    }

    /// What the header must say before the first change of the image: with lazy refcounts the dirty
    /// bit, for bitmaps that record changes that they are in use. Durable when this returns, with everything
    /// that was read when the image was opened.
    #[inline]
    pub(crate) async fn prepare_header_for_first_change(self: &Arc<Self>) -> Result<(), Error> {
        if self.was_changed() {
            return Ok(());
        }
        if self.tracking.must_be_marked() {
            return self.begin_tracking().await;
        }
        let image = Arc::clone(self);
        self.medium
            .to_the_end(async move {
                let _pass = image.enter().await?;
                image.header.prepare_header_now(&image.medium).await
            })
            .await
    }

    /// Puts a range into the record of changes. Durable when it returns; bitmaps may be stored, and the record begun anew, right after it.
    async fn record_change(self: &Arc<Self>, range: GuestRange) -> Result<(), Error> {
        let image = Arc::clone(self);
        self.medium
            .to_the_end(async move {
                let Some(record) = image.tracking.now().record.clone() else {
                    return image.begin_tracking().await;
                };
                if record.is_full() {
                    image.begin_record_anew().await?;
                }
                image.add_to_record(range).await
            })
            .await
    }

    /// Requests that come at the same time share one write.
    async fn add_to_record(&self, range: GuestRange) -> Result<(), Error> {
        let wanted = self.tracking.now().record.clone();
        if let Some(record) = &wanted {
            record.want(range);
        }
        let _writing = self.tracking.writing.lock().await;
        match (&wanted, &self.tracking.now().record) {
            (Some(wanted), Some(record)) if Arc::ptr_eq(wanted, record) && !record.has(range) => {
                record.add_wanted(&self.medium).await
            }
            // A request did it; or it is another record, and the caller looks again.
            _ => Ok(()),
        }
    }

    /// Has the file say, before the first change, that bitmaps which record changes are in use, and gives it the record of what they
    /// miss. Where there is no room for that the record that was left goes on, or they are marked in place: then a crash leaves them
    /// inconsistent.
    pub(crate) async fn begin_tracking(self: &Arc<Self>) -> Result<(), Error> {
        self.managed(async move |image| {
            if image.was_changed() && image.tracking.now().record.is_some() {
                return Ok(());
            }
            image.header.prepare_for_metadata(&image.medium).await?;
            let pause = image.pause().await?;
            let stored = image.draft(&pause, image.size(), Afterwards::Changes, async |_| Ok(())).await;
            if let Err(error) = stored {
                // A failure of the file is returned to who changes the disk, and asked again for the next change.
                if error.kind() == ErrorKind::Io && !error.is_no_space() {
                    return Err(error);
                }
                image.medium.check_not_stopped()?;
                image.go_on_without_new_record(&error).await?;
            }
            image.header.prepared_for_data.store(true, Ordering::Release);
            Ok(())
        })
        .await
    }

    /// The disk changes, and there is no room for a record that begins now. The record that a crash or a full medium left goes on; without one
    /// that can, bitmaps are in use and nothing vouches for them.
    async fn go_on_without_new_record(&self, error: &Error) -> Result<(), Error> {
        let medium = &self.medium;
        self.tracking.put_off.fetch_add(1, Ordering::Relaxed);
        let now = self.tracking.now();
        let vouching = self.record_that_was_left(&now).await?;
        self.mark_bitmaps_in_use().await?;
        let name = medium.blame.name();
        let record = match vouching {
            Vouching::ForThoseInMemory(record) => {
                tracing::debug!("{name}: bitmaps are stored later, their record continues: {error}");
                Some(record)
            }
            Vouching::Nothing => None,
            Vouching::NotForLong => {
                self.disown_record().await?;
                None
            }
        };
        if record.is_none() {
            tracing::warn!(
                "{name}: a crash makes its bitmaps inconsistent, there is no record of changes: {error}"
            );
        }
        let (entries, missing) = without_those_that_miss_changes(&now);
        let (live, unrecorded, recovered) = (now.live.clone(), record.is_none(), now.recovered);
        let made = now.made;
        self.put_bitmaps(Bitmaps {
            entries,
            made,
            live,
            record,
            unrecorded,
            recovered,
            ..Bitmaps::default()
        });
        self.header.tell_of_bitmaps(medium, missing);
        Ok(())
    }

    /// The header leads to no record of changes any more. Durable when this returns; the clusters are leaked.
    async fn disown_record(&self) -> Result<(), Error> {
        let disown = |header: &mut Header| {
            header.extensions.record = None;
            header.autoclear.set(Autoclear::BITMAP_RECORD, false);
        };
        self.header.rewrite(&self.medium, disown).await
    }

    /// The file says that bitmaps which record changes are in use. Durable when this returns.
    async fn mark_bitmaps_in_use(&self) -> Result<(), Error> {
        let medium = &self.medium;
        let header = self.header.lock().await.clone();
        mark_in_use(&*medium.file, &header, &medium.geometry, &medium.blame).await?;
        medium.file.flush().await.map_err(medium.blame.io("marking bitmaps as in use"))
    }

    /// See [`crate::Qcow2::distrust_bitmaps`].
    pub(crate) async fn distrust_bitmaps(self: &Arc<Self>) -> Result<Vec<String>, Error> {
        let now = self.tracking.now();
        let none_noted = Bitmaps { entries: now.entries.clone(), ..Bitmaps::default() };
        let (entries, names) = without_those_that_miss_changes(&none_noted);
        if names.is_empty() {
            return Ok(names);
        }
        if self.options.writable {
            self.managed(async move |image| {
                image.disown_record().await?;
                image.mark_bitmaps_in_use().await
            })
            .await?;
        }
        self.put_bitmaps(Bitmaps { entries, made: now.made, ..Bitmaps::default() });
        Ok(names)
    }

    /// Stores bitmaps so that the record can be empty. Where there is no room for that the record grows further.
    async fn begin_record_anew(self: &Arc<Self>) -> Result<(), Error> {
        self.managed(async move |image| {
            let full = |record: &Arc<crate::tracking::Record>| record.is_full();
            if !image.tracking.now().record.as_ref().is_some_and(full) {
                return Ok(());
            }
            let pause = image.pause().await?;
            let stored = image.draft(&pause, image.size(), Afterwards::AsBefore, async |_| Ok(())).await;
            match (stored, &image.tracking.now().record) {
                (Err(error), Some(record)) if error.is_no_space() => {
                    tracing::debug!("{}: bitmaps are stored later: {error}", image.medium.blame.name());
                    record.put_off();
                    image.tracking.put_off.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                (stored, _) => stored,
            }
        })
        .await
    }

    /// Notes that anything may change, for a request that holds all others back.
    pub(crate) async fn note_everything(&self, _pause: &Pause<'_>) -> Result<(), Error> {
        let whole = GuestRange { start: 0, end: self.size() };
        if !self.tracking.note(whole) {
            self.add_to_record(whole).await?;
            if !self.tracking.note(whole) {
                return Err(self.medium.blame.refused("the change cannot be recorded in its bitmaps"));
            }
        }
        Ok(())
    }

    /// Stores bitmaps as they are, for the end. Where there is no room for that the file keeps the record of what they miss.
    pub(crate) async fn store_bitmaps_at_the_end(self: &Arc<Self>, pause: &Pause<'_>) -> Result<(), Error> {
        let now = self.tracking.now();
        let differs = now.recovered || (self.was_changed() && now.recording().next().is_some());
        if !differs {
            return Ok(());
        }
        let stored = async {
            self.header.prepare_for_metadata(&self.medium).await?;
            self.draft(pause, self.size(), Afterwards::Closed, async |_| Ok(())).await
        };
        let stored = stored.await;
        if let Err(error) = &stored {
            let left = if now.unrecorded { "they are inconsistent" } else { "as after a crash" };
            tracing::warn!("{}: bitmaps are not stored, {left}: {error}", self.medium.blame.name());
        }
        match stored {
            Err(error) if error.is_no_space() => {
                self.tracking.put_off.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            stored => stored,
        }
    }
}

/// The bitmaps of the file, those "in use" in which changes are not noted from now on although they should be; and the names of these.
fn without_those_that_miss_changes(now: &Bitmaps) -> (Arc<Vec<BitmapEntry>>, Vec<String>) {
    let noted: HashSet<&str> = now.recording().map(|live| live.spec.name.as_str()).collect();
    let (mut entries, mut missing) = (Vec::clone(&now.entries), Vec::new());
    for entry in &mut entries {
        let is_true = entry.flags.contains(BitmapFlags::AUTO) && !entry.flags.contains(BitmapFlags::IN_USE);
        if is_true && !noted.contains(entry.name.as_str()) {
            entry.flags.set(BitmapFlags::IN_USE, true);
            missing.push(entry.name.clone());
        }
    }
    (Arc::new(entries), missing)
}
