//! A checkpoint as an image that is read: its layer, and those below it.

use std::ffi::OsStr;
use std::path::Path;

use graph::options::DiskOptions;
use graph::probe::Format;
use lineage::{CheckpointRef, DiskPlace, LayerId, Survey};

use super::args::{CheckpointArg, Seen, look};
use crate::failure::Failure;

/// A checkpoint, found.
pub struct Sealed {
    /// Its lineage.
    pub survey: Survey,
    /// Its layer.
    pub id: LayerId,
}

impl Sealed {
    /// The checkpoint that was named. A disk that is gone may have some.
    ///
    /// # Errors
    /// When there is none, or an image of the lineage cannot be read.
    pub fn find(arg: &CheckpointArg) -> Result<Self, Failure> {
        let directory = arg.disk.parent().filter(|_| arg.disk.symlink_metadata().is_err());
        let seen = match directory.map(|directory| directory.as_os_str()) {
            Some(directory) if directory.is_empty() => look(OsStr::new("."))?,
            Some(directory) => look(directory)?,
            None => look(arg.disk.as_os_str())?,
        };
        let disk = match seen.disk {
            Some(disk) => disk,
            None => arg.disk().place()?,
        };
        let id = seen.survey.find(&disk, &arg.checkpoint)?;
        Ok(Self { survey: seen.survey, id })
    }

    /// A checkpoint of a disk that is there. Takes no lock.
    ///
    /// # Errors
    /// As [`Sealed::find`].
    pub fn of_disk(disk: &DiskPlace, checkpoint: &CheckpointRef) -> Result<Self, lineage::Error> {
        let survey = Seen::of(disk.place.clone(), None)?.survey;
        let id = survey.find(disk, checkpoint)?;
        Ok(Self { survey, id })
    }

    /// How it is opened.
    pub fn options(&self) -> DiskOptions {
        options_of(&self.survey.place.layer(self.id))
    }

    /// Its layer and those below, from the upper to the lower, and the backing file of the last one outside the lineage. All are as they were sealed.
    ///
    /// # Errors
    /// When one is missing, or has been written since.
    pub fn chain(&self) -> Result<(Vec<LayerId>, Option<String>), Failure> {
        Ok(self.survey.sealed_chain(self.id)?)
    }
}

/// As [`Sealed::options`], of any layer of a lineage.
pub fn options_of(layer: &Path) -> DiskOptions {
    let mut options = DiskOptions::of_path(layer);
    options.layer.read_only = true;
    options.layer.format = Some(Format::Qcow2);
    options
}
