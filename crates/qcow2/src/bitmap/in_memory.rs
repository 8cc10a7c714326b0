//! Bitmaps that are in memory alone: gone when the image is closed.

use std::sync::Arc;

use qcow2_layout::BITMAP_BYTES_MAX;

use super::change::{BitmapChange, NewBitmap, check_name};
use super::merge::check_size;
use crate::Error;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::tracking::{Bitmap, Bitmaps, Live, LiveSpec};

impl Inner {
    /// Changes one, or makes it. Nothing is written for it.
    pub(super) async fn change_in_memory(
        self: &Arc<Self>,
        name: String,
        change: BitmapChange,
    ) -> Result<(), Error> {
        self.managed(async move |image| {
            let _pause = image.pause().await?;
            let now = image.tracking.now();
            let mut live = now.live.clone();
            let found = live.iter().position(|live| live.spec.name == name && !live.spec.persistent);
            match (change, found) {
                (BitmapChange::Add(new), _) => live.push(Arc::new(image.made(&now, name, new)?)),
                (BitmapChange::Remove, Some(at)) => drop(live.remove(at)),
                (change, Some(at)) => {
                    if let Some(place) = live.get_mut(at) {
                        *place = Arc::new(image.changed(place, change).await?);
                    }
                }
                (_, None) => {
                    return Err(image.medium.blame.invalid(format!("there is no bitmap {name:?}")));
                }
            }
            image.put_bitmaps(Bitmaps { live, ..Bitmaps::clone(&now) });
            Ok(())
        })
        .await
    }

    fn made(&self, now: &Bitmaps, name: String, new: NewBitmap) -> Result<Live, Error> {
        let blame = &self.medium.blame;
        check_name(&self.medium, &name)?;
        if now.find(&name).is_some() || now.entries.iter().any(|entry| entry.name == name) {
            return Err(blame.invalid(format!("there is a bitmap {name:?} already")));
        }
        let granularity_bits = new.granularity_bits(&self.medium)?;
        let size = self.size();
        self.check_room_for(size, granularity_bits, &now.live)?;
        debug_assert!(size.div_ceil(1 << granularity_bits) / 8 <= BITMAP_BYTES_MAX);
        let spec = LiveSpec { name, granularity_bits, persistent: false, recording: new.recording, size };
        Live::new(spec).map_err(|_| blame.no_memory("a bitmap"))
    }

    /// What one becomes. It is another one in memory: a request may be reading it.
    async fn changed(&self, old: &Live, change: BitmapChange) -> Result<Live, Error> {
        let no_memory = |_| self.medium.blame.no_memory("a bitmap");
        match change {
            BitmapChange::Clear => Live::new(old.spec.clone()).map_err(no_memory),
            BitmapChange::Record(on) => old.remade(old.spec.size, on).map_err(no_memory),
            BitmapChange::Merge(source) => {
                let new = old.remade(old.spec.size, old.spec.recording).map_err(no_memory)?;
                self.with_bits_of(&source, new).await
            }
            BitmapChange::Become(source) => {
                let new = Live::new(old.spec.clone()).map_err(no_memory)?;
                self.with_bits_of(&source, new).await
            }
            // Done by the caller.
            BitmapChange::Add(_) | BitmapChange::Remove => {
                old.remade(old.spec.size, old.spec.recording).map_err(no_memory)
            }
        }
    }

    async fn with_bits_of(&self, source: &Bitmap, live: Live) -> Result<Live, Error> {
        check_size(&self.medium, source, live.spec.size)?;
        for range in source.dirty_ranges().await? {
            live.mark(GuestRange::at(range.start, range.end - range.start));
        }
        Ok(live)
    }
}
