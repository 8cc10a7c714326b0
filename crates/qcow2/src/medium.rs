//! What an image uses: its files, the program around it, and the places that are not for data.

use std::sync::Arc;

use block::Blame;
use luks::{CipherStorage, SectorCipher};
use qcow2_layout::{Geometry, HostOffset};
use storage::{Step, Storage, about_to};

use crate::Error;
use crate::health::{Contradiction, Corruption, Health};
use crate::host::Host;
use crate::overlap::{MetadataMap, Section};
use crate::table_io::write_bytes;

/// What an image uses. Nothing here but [`MetadataMap`] and [`Health`] changes while the image is open: an image that switches
/// to other files ([`crate::OnOtherFiles`]) has another one of these, so that what is read needs no lock and no look at what may change.
#[derive(Debug)]
pub(crate) struct Medium {
    pub(crate) blame: Blame,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) file: Arc<dyn Storage>,
    /// Where guest data is read and written: the image file itself, the external data file, or the plain text of either.
    pub(crate) data: Arc<dyn Storage>,
    /// What `data` is, where that is plain text.
    pub(crate) plain: Option<Arc<CipherStorage>>,
    /// Decrypts what is read there, in an image that is encrypted as before LUKS.
    pub(crate) by_guest: Option<Arc<SectorCipher>>,
    /// Guest data is ciphered; metadata and compressed clusters are not.
    pub(crate) encrypted: bool,
    /// The external data file can be read on its own: what reads as zeroes must be zeroes there.
    pub(crate) raw_data: bool,
    pub(crate) geometry: Geometry,
    /// Where metadata lies in the file.
    pub(crate) overlap: Arc<MetadataMap>,
    pub(crate) health: Arc<Health>,
}

impl Medium {
    /// Whether a cluster may be written where it lies. Clusters of an external data file have no
    /// refcounts: each belongs to its guest cluster.
    pub(crate) fn in_place(&self, copied: bool) -> bool {
        copied || self.geometry.external_data
    }

    /// Passes `result` on. A contradiction that was found in the image stops all further writes, if it is of a kind that does.
    #[inline]
    pub(crate) fn noticing_corruption<T>(
        &self,
        kind: Contradiction,
        result: Result<T, Error>,
    ) -> Result<T, Error> {
        if let Err(error @ Error::Corrupt { .. }) = &result
            && kind.stops_writes()
        {
            self.health.set_corrupt(|| Corruption { message: error.to_string(), place: None });
        }
        result
    }

    /// The error of `len` bytes at `offset` of the file that are, or would be, metadata and something else at once. It stops all further writes.
    #[cold]
    pub(crate) fn overlapping<T>(&self, offset: u64, len: u64, what: String) -> Result<T, Error> {
        let error = self.blame.corrupt(what);
        if Contradiction::Overlap.stops_writes() {
            self.health.set_corrupt(|| Corruption { message: error.to_string(), place: Some((offset, len)) });
        }
        Err(error)
    }

    /// Whether the file is known to lead to what memory holds.
    pub(crate) fn check_not_stopped(&self) -> Result<(), Error> {
        match self.health.is_stopped() {
            false => Ok(()),
            true => Err(self.blame.refused(
                "writing the header failed and the file may have the old one or the new one: no more writes \
                 until the image is opened again",
            )),
        }
    }

    /// Refuses to take metadata for data.
    #[inline]
    pub(crate) fn check_data(&self, host: HostOffset, len: u64) -> Result<(), Error> {
        match self.metadata_at(host, len) {
            None => Ok(()),
            Some((at, section)) => {
                let what =
                    format!("guest data at {host} ({len} bytes) overlaps metadata ({section} at {at:#x})");
                self.overlapping(host.0, len, what)
            }
        }
    }

    /// The metadata that so many bytes of the data file touch.
    #[inline]
    pub(crate) fn metadata_at(&self, host: HostOffset, len: u64) -> Option<(u64, Section)> {
        if self.geometry.external_data { None } else { self.overlap.touched(host.0, len, None) }
    }

    /// Says what is done next with the image file.
    pub(crate) fn about_to(&self, step: Step) {
        about_to(&*self.file, step);
    }

    /// Likewise with the file that has the data.
    pub(crate) fn about_to_with_data(&self, step: Step) {
        about_to(&*self.data, step);
    }

    /// Writes metadata of one kind, unless metadata of another kind is in the way.
    pub(crate) async fn write_table(&self, offset: u64, bytes: &[u8], section: Section) -> Result<(), Error> {
        if let Some((at, other)) = self.overlap.touched(offset, bytes.len() as u64, Some(section)) {
            let what = format!("writing {section} at {offset:#x} would overwrite {other} at {at:#x}");
            return self.overlapping(offset, bytes.len() as u64, what);
        }
        if let Some(step) = step_of(section) {
            self.about_to(step);
        }
        write_bytes(&*self.file, offset, bytes).await.map_err(self.blame.io("writing metadata"))
    }

    /// Everything that completed before is on disk when this returns.
    pub(crate) async fn barrier(&self) -> Result<(), Error> {
        self.about_to(Step::FlushToDisk);
        if self.geometry.external_data {
            self.data.flush().await.map_err(self.blame.io("flushing the data file"))?;
        }
        self.file.flush().await.map_err(self.blame.io("flushing"))
    }

    /// Hands work that must run to its end to the host, and waits for its result.
    pub(crate) async fn to_the_end<T: 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + 'static,
    ) -> Result<T, Error> {
        let (done, result) = sync::oneshot::channel();
        self.host.spawn(Box::pin(async move {
            // No task may be waiting any more; the work counts all the same.
            let _ = done.send(work.await);
        }));
        match result.await {
            Ok(result) => result,
            Err(_) => Err(self.blame.refused("the program is stopping")),
        }
    }
}

/// What writing a table is called.
fn step_of(section: Section) -> Option<Step> {
    match section {
        Section::ActiveL1 => Some(Step::L1Update),
        Section::ActiveL2 => Some(Step::L2Update),
        Section::RefcountBlock => Some(Step::RefblockUpdatePart),
        Section::RefcountTable => Some(Step::RefblockAllocHookup),
        Section::MainHeader
        | Section::SnapshotTable
        | Section::InactiveL1
        | Section::InactiveL2
        | Section::BitmapDirectory => None,
    }
}
