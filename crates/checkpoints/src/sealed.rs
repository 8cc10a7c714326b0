//! A checkpoint as an image that is read: its layer, and those below it.

use std::path::Path;

use graph::OpenRules;
use graph::options::DiskOptions;
use graph::probe::Format;
use lineage::{CheckpointRef, DiskPlace, LayerId, Survey};

use crate::error::Error;

/// A checkpoint, found.
pub struct Sealed {
    /// Its lineage.
    pub survey: Survey,
    /// Its layer.
    pub id: LayerId,
}

impl Sealed {
    /// A checkpoint of a disk. Takes no lock.
    ///
    /// # Errors
    /// When there is none, or an image of the lineage cannot be read.
    pub fn of_disk(disk: &DiskPlace, checkpoint: &CheckpointRef) -> Result<Self, lineage::Error> {
        let survey = Survey::look(&disk.place)?;
        let id = survey.find(disk, checkpoint)?;
        Ok(Self { survey, id })
    }

    /// Opens a checkpoint of a disk beside what is at work, with all that is below it, for reading.
    ///
    /// # Errors
    /// When there is none, when one of its layers has been written since it was sealed, or cannot be opened.
    pub async fn open(
        disk: &DiskPlace,
        checkpoint: &CheckpointRef,
        rules: &OpenRules,
    ) -> Result<graph::Disk, Error> {
        let (disk, checkpoint) = (disk.clone(), checkpoint.clone());
        let sealed = reactor::blocking(move || {
            let sealed = Self::of_disk(&disk, &checkpoint)?;
            sealed.chain()?;
            Ok::<_, lineage::Error>(sealed)
        });
        let options = sealed.await?.options();
        graph::open(&options, rules).await.map_err(Error::image("open", &options.filename))
    }

    /// How it is opened.
    pub fn options(&self) -> DiskOptions {
        options_of(&self.survey.place.layer(self.id))
    }

    /// Its layer and those below, from the upper to the lower, and the backing file of the last one outside the lineage. All are as they were sealed.
    ///
    /// # Errors
    /// When one is missing, or has been written since.
    pub fn chain(&self) -> Result<(Vec<LayerId>, Option<String>), lineage::Error> {
        self.survey.sealed_chain(self.id)
    }
}

/// As [`Sealed::options`], of any layer of a lineage.
pub fn options_of(layer: &Path) -> DiskOptions {
    let mut options = DiskOptions::of_path(layer);
    options.layer.read_only = true;
    options.layer.format = Some(Format::Qcow2);
    options
}
