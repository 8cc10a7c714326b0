//! The file that a layer of a running disk switches to: found, opened and locked.

use std::sync::{Arc, OnceLock};

use block::Block;
use parking_lot::Mutex;
use qcow2::OtherFiles;
use storage::Storage;

use crate::error::OpenError;
use crate::fd_sets::FdSets;
use crate::file::{OpenFile, Origin, Source, by_user};
use crate::layers::{Layer, LayerFiles, Written};
use crate::names::Identity;
use crate::options::{FileOptions, LayerOptions, RawOptions};

/// The file that a layer switches to, found.
#[derive(Debug)]
pub(crate) struct FoundFile {
    options: LayerOptions,
    writable: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Another file, open and locked.
    Other(OpenFile),
    /// The layer's present file, to be opened once more under its lock.
    Same(Source, Origin),
}

/// The file that a layer switches to, open and locked.
#[derive(Debug)]
pub(crate) struct OtherFile {
    options: LayerOptions,
    pub(crate) storage: Arc<dyn Storage>,
    origin: Origin,
}

impl FoundFile {
    /// Finds the file that `file` names for a layer that is made of `files`. A file other than the present
    /// one is opened and locked.
    pub(crate) async fn find(
        files: &LayerFiles,
        (file, part): (&FileOptions, Option<&RawOptions>),
        writable: bool,
        fd_sets: &FdSets,
    ) -> Result<Self, OpenError> {
        let mut options = files.options.clone();
        options.file.clone_from(file);
        options.raw = part.copied().unwrap_or(options.raw);
        let name = name_of(file);
        let source = Source::by_options(file, fd_sets, writable)?;
        let source = source.map_or_else(|| by_user(name.as_ref(), fd_sets, writable), Ok)?;
        let state = match files.file.is_same_file(&source) {
            true => State::Same(source, files.file.clone()),
            false => State::Other(source.open(&name, file, &options, writable).await?),
        };
        Ok(Self { options, writable, state })
    }

    /// Which file it is.
    pub(crate) fn identity(&self) -> Identity {
        match &self.state {
            State::Other(file) => file.origin.identity(),
            State::Same(_, origin) => origin.identity(),
        }
    }

    /// Whether it is the one that is there.
    pub(crate) fn which(&self) -> OtherFiles {
        match self.state {
            State::Other(_) => OtherFiles::Copies,
            State::Same(..) => OtherFiles::Same,
        }
    }

    /// Opens it, unless it is open already. No request writes to the layer, and preallocated space behind the
    /// end of its file has been cut off: the file's present length counts.
    pub(crate) async fn open(self) -> Result<OtherFile, OpenError> {
        let Self { options, writable, state } = self;
        let OpenFile { storage, origin, .. } = match state {
            State::Other(file) => file,
            State::Same(source, origin) => {
                origin.open_under(source, &name_of(&options.file), &options.file, &options, writable).await?
            }
        };
        Ok(OtherFile { options, storage, origin })
    }
}

impl OtherFile {
    /// A layer with the new `block` on this file, with the other files and settings of `now`.
    pub(crate) fn layer(self, block: Arc<dyn Block>, now: &Layer, files: &LayerFiles) -> Layer {
        let Self { options, storage, origin } = self;
        let identity = Some(origin.identity());
        let files = LayerFiles {
            format: files.format,
            options,
            file: origin,
            data: files.data.clone(),
            luks_header: files.luks_header.clone(),
            vmdk: files.vmdk.clone(),
            bitmaps: files.bitmaps.clone(),
            written: Written { file: storage, ..files.written.clone() },
            hint: Mutex::default(),
        };
        Layer {
            block,
            identity,
            tasks: now.tasks.clone(),
            closes_below: false,
            own: Mutex::new(now.own.lock().clone()),
            by_name: Mutex::new(now.by_name.lock().clone()),
            writers: Mutex::new(*now.writers.lock()),
            files: Some(files),
            compressing: OnceLock::new(),
        }
    }
}

/// What messages call the file.
fn name_of(file: &FileOptions) -> String {
    file.shown().unwrap_or_default().display().to_string()
}
