//! The steps of a job on the simulated disk. What is done in which order is in crate `job`; an exchange is what `graph::Graph::replace` does.

use std::sync::Arc;

use block::Block;
use job::{Dirty, Error, Exchange, Host, Pivot, SnapshotHost};
use qcow2::{CreateOptions, Qcow2, create};

use super::disk::Parts;
use super::exchange::put_below;
use super::images::{CLUSTER, COPY, FILES, OVERLAY, SIZE, TOP, number};
use super::judge::read_all;
use super::note::{Note, hash};
use super::target::{open_alone, options};

/// Why a job ended early.
pub enum Failed {
    /// A request failed.
    Reported,
    /// No request did: it was given up, or a guest's write was.
    GivenUp,
}

impl From<String> for Failed {
    fn from(_: String) -> Self {
        Self::Reported
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled | Error::Dropped { .. } => Self::GivenUp,
            Error::Request { .. } | Error::TooSmall { .. } | Error::Bitmap(_) => Self::Reported,
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
        let image = image.downcast_ref::<Qcow2>().expect("layers are images");
        let name = below.map(|below| FILES[number(below.name()).expect("a layer")].to_owned());
        let format = name.is_some().then(|| "qcow2".to_owned());
        Ok(image.set_backing_name(name, format).await.map_err(reported)?)
    }

    fn image_over(&self, layer: &Arc<dyn Block>) -> Option<Arc<dyn Block>> {
        let is_over = |over: &Arc<dyn Block>| over.below().is_some_and(|below| Arc::ptr_eq(&below, layer));
        block::layers(self.top()).find(is_over)
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
                let top = self.top();
                if self.is_left.get() {
                    self.whole.set(Some(hash(&read_all(&*top).await?)));
                }
                *self.root.borrow_mut() = top;
            }
            Exchange::Root(pivot) => self.switch(pivot).await?,
        }
        Ok(())
    }

    fn has_filter(&self) -> bool {
        self.root.borrow().driver() != "qcow2"
    }

    fn filter_stays(&self, _: Failed) {
        self.fails();
    }

    async fn make_readable(&self, (): &(), _: &Arc<dyn Block>) {}

    async fn close(&self, (): ()) {}

    async fn bitmap_succeeds(&self, _: Option<&Dirty>) -> Result<(), block::Error> {
        Ok(())
    }

    async fn bitmap_fails(&self, _: &Dirty, _: Option<&Dirty>) {}
}

impl SnapshotHost for &Parts {
    type Overlay = Qcow2;
    type Error = String;

    async fn make(&self) -> Result<(), String> {
        let made = CreateOptions {
            size: SIZE,
            cluster_size: CLUSTER,
            backing_file: Some(FILES[TOP].into()),
            backing_format: Some("qcow2".into()),
            ..CreateOptions::default()
        };
        create(&self.world.open(OVERLAY), None, &made).await.map_err(reported)
    }

    async fn open(&self) -> Result<Qcow2, String> {
        open_alone(&self.world, OVERLAY, options(self.variant), Arc::clone(&self.host)).await
    }

    async fn put_over(&self, overlay: Qcow2) -> Result<(), String> {
        self.flush().await?;
        let _drained = self.drain().await;
        let below = self.top();
        let set = overlay.hold_still().await.and_then(|still| still.set_backing(Some(Arc::clone(&below))));
        set.map_err(reported)?;
        *self.overlay.borrow_mut() = Some(overlay.clone());
        *self.unflushed.borrow_mut() = Some(below);
        self.put_in_force(OVERLAY, Arc::new(overlay)).await
    }

    async fn flush_below(&self) {
        if Parts::flush_below(self).await.is_err() {
            self.fails();
        }
    }

    async fn make_below_readable(&self) {}

    async fn take_off(&self) -> Result<(), String> {
        unreachable!("a snapshot stays");
    }

    fn remove(&self) {}
}

impl Parts {
    /// The uppermost image.
    fn top(&self) -> Arc<dyn Block> {
        Arc::new(self.layers[0].1.clone())
    }

    /// The disk, which is drained, has another layer below one of its images.
    async fn put_below(&self, image: &Arc<dyn Block>, below: Option<Arc<dyn Block>>) -> Result<(), String> {
        let at = self.layers.iter().position(|(_, layer)| layer.name() == image.name()).expect("a layer");
        let images: Vec<&Qcow2> = self.layers[..=at].iter().map(|(_, image)| image).collect();
        put_below(&images, below).await
    }

    /// The disk, which is drained, switches to a copy of it.
    async fn switch(&self, pivot: &Pivot) -> Result<(), String> {
        let (backed_by, root) = match pivot {
            Pivot::Layer(base) => (number(base.name()).expect("a layer"), Arc::clone(base)),
            Pivot::Target { .. } => {
                let copy = self.copy.clone().expect("a job that copies has a target");
                (COPY, Arc::new(copy) as Arc<dyn Block>)
            }
        };
        let source = read_all(&*self.top()).await?;
        assert!(*read_all(&*root).await? == *source, "the disk reads otherwise after the switch");
        self.put_in_force(backed_by, root).await
    }

    /// The platform notes what the disk is backed by, and then it is. Without the note it is unknown where acknowledged writes are: then none is
    /// taken.
    async fn put_in_force(&self, stands_on: usize, root: Arc<dyn Block>) -> Result<(), String> {
        let noted = self.note(Note { stands_on, whole: None }).await;
        match &noted {
            Ok(()) => *self.root.borrow_mut() = root,
            Err(_) => self.is_dead.set(true),
        }
        noted
    }
}
