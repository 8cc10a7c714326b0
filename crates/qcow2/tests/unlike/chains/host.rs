//! The steps of a job on the disk of a case. What is done in which order is in crate `job`; an exchange is what `graph::Graph::replace` does.

use std::sync::Arc;

use block::Block;
use job::{Dirty, Error, Exchange, Host, Over, Pivot};
use qcow2::Qcow2;

use super::disk::Parts;
use super::exchange::put_below;
use super::guest::{read_all, same};
use super::images::{Layer, format_name};
use super::note::{Note, hash};
use super::shape::Backing;

/// Why a job ended early.
pub enum Failed {
    /// A request failed, or a law does not hold.
    Reported(String),
    /// No request did: it was given up, or a guest's write was.
    GivenUp,
}

impl From<String> for Failed {
    fn from(error: String) -> Self {
        Self::Reported(error)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled | Error::Dropped { .. } => Self::GivenUp,
            error => Self::Reported(error.to_string()),
        }
    }
}

fn reported(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Host for Parts {
    type Change = ();
    type Removed = ();
    type Error = Failed;

    async fn change(&self) {}

    async fn name_backing(
        &self,
        image: &Arc<dyn Block>,
        below: Option<&Arc<dyn Block>>,
        _: Option<&str>,
    ) -> Result<(), Failed> {
        let Some(image) = image.downcast_ref::<Qcow2>() else { return Ok(()) };
        let (name, format) = below.map(|below| self.named(below)).transpose()?.unzip();
        Ok(image.set_backing_name(name, format).await.map_err(reported)?)
    }

    fn image_over(&self, layer: &Arc<dyn Block>) -> Option<Arc<dyn Block>> {
        self.layers.iter().map(|over| &over.block).find(|over| is_over(over, layer)).cloned()
    }

    async fn make_writable(&self, (): &(), layer: &Arc<dyn Block>) -> Result<Arc<dyn Block>, Failed> {
        Ok(Arc::clone(layer))
    }

    async fn exchange(
        &self,
        (): &(),
        exchange: Exchange<'_>,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<(), Failed> {
        if !matches!(exchange, Exchange::Root(_)) {
            self.flush().await?;
        }
        let _drained = self.drain().await;
        last_look().await?;
        match exchange {
            Exchange::Below(image, below) => self.put_below(image, below.cloned()).await?,
            Exchange::WithoutFilter => {
                let top = Arc::clone(&self.top().block);
                if self.is_left.get() && self.kind().is_mirror() {
                    self.look_at_copy(&top).await?;
                }
                *self.root.borrow_mut() = top;
            }
            Exchange::Root(pivot) => self.switch(pivot).await?,
        }
        Ok(())
    }

    fn has_filter(&self) -> bool {
        !Arc::ptr_eq(&self.root.borrow(), &self.top().block)
    }

    fn filter_stays(&self, error: Failed) {
        if let Failed::Reported(error) = error {
            self.fails(error);
        }
    }

    async fn make_readable(&self, (): &(), _: &Arc<dyn Block>) {}

    async fn close(&self, (): ()) {}

    async fn bitmap_succeeds(&self, _: Option<&Dirty>) -> Result<(), block::Error> {
        Ok(())
    }

    async fn bitmap_fails(&self, _: &Dirty, _: Option<&Dirty>) {}
}

fn is_over(over: &Arc<dyn Block>, layer: &Arc<dyn Block>) -> bool {
    over.below().is_some_and(|below| Arc::ptr_eq(&below, layer))
}

impl Parts {
    /// What headers call the image of a layer, and its format.
    fn named(&self, layer: &Arc<dyn Block>) -> Result<(String, String), String> {
        let found = self.layers.iter().find(|found| Arc::ptr_eq(&found.block, layer)).ok_or("no layer")?;
        let image = &self.images.list[found.image];
        Ok((image.name.clone(), format_name(image)))
    }

    /// The disk, which is drained, has another layer below one of its images.
    async fn put_below(&self, image: &Arc<dyn Block>, below: Option<Arc<dyn Block>>) -> Result<(), String> {
        let at = self.layers.iter().position(|layer| layer.block.name() == image.name()).ok_or("no layer")?;
        let images: Vec<&Qcow2> =
            self.layers[..=at].iter().filter_map(|layer| layer.qcow2.as_ref()).collect();
        put_below(&images, below).await
    }

    /// The disk, which is drained, switches to a copy of it, if that reads the same.
    async fn switch(&self, pivot: &Pivot) -> Result<(), String> {
        let source = read_all(&*self.top().block).await?;
        let new = match pivot {
            Pivot::Layer(base) => self.layers.iter().find(|layer| Arc::ptr_eq(&layer.block, base)),
            Pivot::Target { .. } => self.target.as_ref(),
        };
        let new = new.ok_or("the copy is gone")?;
        if let Pivot::Target { over, .. } = pivot {
            match over {
                Over::Disk => put_over(new, Some(Arc::clone(&self.top().block))).await?,
                Over::Below => put_over(new, self.top().block.below()).await?,
                Over::Own => {}
            }
        }
        same(&read_all(&*new.block).await?, &source, "the copy, when the disk switches to it")?;
        if let Pivot::Target { .. } = pivot {
            self.name_target(new).await?;
        }
        self.note(Note { root: new.image, is_begun: true, whole: None }).await?;
        *self.root.borrow_mut() = Arc::clone(&new.block);
        Ok(())
    }

    /// The disk, which is drained, leaves a copy of it. One that is over the disk itself is whole for this moment alone: guests change what it
    /// shows.
    async fn look_at_copy(&self, top: &Arc<dyn Block>) -> Result<(), String> {
        let source = read_all(&**top).await?;
        if !self.images.is_over_disk() {
            self.whole.set(Some(hash(&source)));
            return Ok(());
        }
        let target = self.target.as_ref().ok_or("the copy is gone")?;
        let before = target.block.below();
        put_over(target, Some(Arc::clone(top))).await?;
        same(&read_all(&*target.block).await?, &source, "the copy over the disk, when the job leaves it")?;
        put_over(target, before).await
    }

    /// A job that leaves a copy has ended: the platform notes that the copy is whole.
    pub async fn note_copy(&self) -> Result<(), String> {
        let (Some(target), Some(hash)) = (&self.target, self.whole.get()) else { return Ok(()) };
        self.name_target(target).await?;
        self.note(Note { root: self.top().image, is_begun: true, whole: Some(hash) }).await
    }

    /// A target whose header did not say what it is over says so now.
    async fn name_target(&self, target: &Layer) -> Result<(), String> {
        let images = &self.images;
        let (Backing::NamedAtTheEnd, Some(image)) = (images.case.backing(), &target.qcow2) else {
            return Ok(());
        };
        let below = &images.list[images.below_target()];
        image.set_backing_name(Some(below.name.clone()), Some(format_name(below))).await.map_err(reported)
    }
}

/// Exchanges what is below a copy that is not in use.
async fn put_over(copy: &Layer, below: Option<Arc<dyn Block>>) -> Result<(), String> {
    let Some(image) = &copy.qcow2 else { return Ok(()) };
    let still = image.hold_still().await.map_err(reported)?;
    still.set_backing(below).map_err(reported)
}
