//! A layer of a running disk switches to another file: a copy of its own, or the same one under another
//! driver.
//!
//! The other file is opened and locked while requests run. Then requests are kept out, the layer comes to
//! rest on its old file, and the two are compared ([`qcow2::HeldStill::on_other_files`]). The layer over the
//! other file then replaces the present one, as any other layer does ([`super::replace`]). Up to that an
//! error or a dropped future leaves the old file in its place.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block::{Block, Raw};
use parking_lot::Mutex;
use qcow2::{Files, OtherFiles, Qcow2};
use storage::Storage;

use super::move_files::FileMove;
use super::replace::{Edge, ReplaceError, Replacement};
use super::{Change, Graph};
use crate::bitmaps_file::raw_of;
use crate::error::OpenError;
use crate::fd_sets::FdSets;
use crate::file::{OpenFile, Origin, Source, by_user};
use crate::layers::{Layer, LayerFiles, Layers, Written};
use crate::names::Identity;
use crate::options::{FileOptions, LayerOptions, RawOptions};
use crate::probe::Format;
use crate::window::of_raw;

/// A layer that can switch to another file.
enum Movable<'a> {
    Image(&'a Qcow2),
    Raw(&'a Raw),
}

impl Graph {
    /// Switches layer `at` (0 is the uppermost one) of the disk that `name` leads to over to the file that
    /// `file` names, while requests run. Returns how long requests were kept out. In that time running
    /// requests end, cached metadata is written to the old file, and the metadata of both is compared.
    ///
    /// The other file must equal the old one. Of an image the metadata is compared, of raw bytes only the
    /// size. Guest data is not compared: a copy made while guests wrote is not detected. The old file has
    /// everything, durable, and is not written any more.
    ///
    /// # Errors
    /// When the other file does not open, is another layer's, or is not the same; when a filter is over the layer, or more than a file below it
    /// ([`ReplaceError::FileStays`]). Then, and when the future is dropped, the disk is on its old file.
    ///
    /// # Crash
    /// The old file has all that was flushed, and so has the other one: docs/internals/write-order.md, "Another file below an image".
    pub async fn replace_file(
        &self,
        _change: &Change<'_>,
        name: &str,
        at: usize,
        file: &FileOptions,
    ) -> Result<Duration, ReplaceError> {
        let (node, new) = (name.to_owned(), file.clone());
        self.move_file(&FileMove { node, at, old: new.clone(), new, part: None }).await
    }

    /// As [`Graph::replace_file`]; a raw disk may become another part of its file, and get another size with that if nothing uses it.
    pub(super) async fn move_file(&self, to: &FileMove) -> Result<Duration, ReplaceError> {
        let FileMove { node: name, at, new: file, part, .. } = to;
        let at = *at;
        let node = self.disk(name)?;
        let old = node.disk.layers();
        let (layer, files) = node.layer_of_files(&old, at)?;
        let block = &layer.block;
        let movable = movable(block, files)?;
        check_above(&old, at, &**block)?;
        let failed = |error| ReplaceError::Open(Box::new(error));
        let writable = !block.capabilities().read_only;
        let other = FoundFile::find(files, (file, part.as_ref()), writable, &self.rules.fd_sets);
        let other = Box::pin(other).await.map_err(failed)?;
        check_apart(&old, layer, &other)?;
        // Most of what a flush writes is written while requests are still admitted.
        node.disk.flush_inside().await.map_err(ReplaceError::Before)?;
        let begun = node.disk.front.now();
        let drained = node.disk.drain().await;
        layer.rest().await.map_err(ReplaceError::Before)?;
        let which = other.which();
        let other = Box::pin(other.open()).await.map_err(failed)?;
        let file = Arc::clone(&other.storage);
        let (moved, moving): (Arc<dyn Block>, _) = match movable {
            Movable::Image(image) => {
                let still = image.hold_still().await.map_err(ReplaceError::Before)?;
                let files = Files { file, data: files.written.data.clone(), backing: None };
                let moving =
                    Box::pin(still.on_other_files(files, which)).await.map_err(ReplaceError::Before)?;
                (Arc::new(moving.image().clone()), Some(moving))
            }
            Movable::Raw(raw) => {
                let moved = of_raw(match part {
                    Some(part) => self.other_part(name, raw, part, file)?,
                    None => raw_on(raw, file)?,
                });
                if which == OtherFiles::Copies {
                    // The program that made the copy may have left it in the page cache.
                    moved.flush().await.map_err(ReplaceError::Before)?;
                }
                (moved, None)
            }
        };
        let again = other.layer(moved, layer, files);
        let (edge, mut again) = (Edge::of(at), Replacement::again(Edge::of(at), again));
        again.is_other_part = part.is_some();
        // The layer that goes is not closed: it has nothing that its file does not have, and the file may be the same one.
        drop(Box::pin(self.exchange_drained(&node, &old, edge, &again, &drained)).await?);
        if let Some(moving) = moving {
            moving.go_on();
        }
        drop(drained);
        let pause = node.disk.front.now().since(begun);
        node.disk.front.note_pause(pause);
        tracing::debug!(node = node.name(), at, ?pause, "a layer of the disk switches to another file");
        Ok(pause)
    }
}

impl Graph {
    /// `part` of `file`, to take the place of `raw`.
    fn other_part(
        &self,
        name: &str,
        raw: &Raw,
        part: &RawOptions,
        file: Arc<dyn Storage>,
    ) -> Result<Raw, ReplaceError> {
        let shown = || file.name().into();
        let failed = |source| ReplaceError::Open(Box::new(OpenError::Options { path: shown(), source }));
        let window = part.window(file.length()).map_err(failed)?;
        if window.size != raw.size() && self.check_unused(&*self.node(name)?).is_err() {
            let layer = file.name().to_owned();
            return Err(ReplaceError::OtherSize { layer, found: window.size, needed: raw.size() });
        }
        Ok(raw.other_part(file, window.offset, window.size, window.fixed))
    }
}

impl Layer {
    /// Makes everything durable in the files and frees what was preallocated behind their ends. The disk has
    /// no users.
    async fn rest(&self) -> Result<(), block::Error> {
        let Some(files) = self.files.as_ref().filter(|_| !self.block.capabilities().read_only) else {
            return Ok(());
        };
        if let Some(Some(compressing)) = self.compressing.get() {
            Block::flush(compressing).await?;
        }
        self.block.rest().await?;
        files.end_writing().await
    }
}

/// `block`, if nothing but its bytes follows from its file.
fn movable<'a>(block: &'a Arc<dyn Block>, files: &LayerFiles) -> Result<Movable<'a>, ReplaceError> {
    let stays = |reason| ReplaceError::FileStays { layer: block.name().to_owned(), reason };
    if files.bitmaps.is_some() {
        return Err(stays("its bitmaps are in a file of their own, which follows this one"));
    }
    match (files.format, block.downcast_ref::<Qcow2>(), raw_of(&**block)) {
        (Format::Qcow2, Some(image), _) => Ok(Movable::Image(image)),
        (Format::Raw, _, Some(raw)) => Ok(Movable::Raw(raw)),
        _ => Err(stays("that is possible for images of the formats qcow2 and raw")),
    }
}

/// Refuses a layer if a filter over it would keep using the old file.
fn check_above(layers: &Layers, at: usize, block: &dyn Block) -> Result<(), ReplaceError> {
    let above = at.checked_sub(1).and_then(|above| block::layers(Arc::clone(&layers.top)).nth(above));
    match above.filter(|above| above.downcast_ref::<Qcow2>().is_none()) {
        Some(above) => {
            Err(ReplaceError::UnderFilter { layer: block.name().to_owned(), driver: above.driver() })
        }
        None => Ok(()),
    }
}

/// Refuses a file that another layer of the disk is made of: without locks nothing else does.
fn check_apart(layers: &Layers, own: &Arc<Layer>, other: &FoundFile) -> Result<(), ReplaceError> {
    let identity = Some(other.identity());
    let mut there = layers.list.iter().filter(|layer| *layer != own);
    match there.find(|layer| layer.identity == identity) {
        Some(layer) => Err(ReplaceError::Cycle { layer: layer.block.name().to_owned() }),
        None => Ok(()),
    }
}

/// `raw` on `other`, if that is as long.
fn raw_on(raw: &Raw, other: Arc<dyn Storage>) -> Result<Raw, ReplaceError> {
    let layer = other.name().to_owned();
    let needed = raw.size();
    raw.on(other).map_err(|found| ReplaceError::OtherSize { layer, found, needed })
}

/// The file that a layer switches to, found.
#[derive(Debug)]
struct FoundFile {
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
struct OtherFile {
    options: LayerOptions,
    storage: Arc<dyn Storage>,
    origin: Origin,
}

impl FoundFile {
    /// Finds the file that `file` names for a layer that is made of `files`. A file other than the present
    /// one is opened and locked.
    async fn find(
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
    fn identity(&self) -> Identity {
        match &self.state {
            State::Other(file) => file.origin.identity(),
            State::Same(_, origin) => origin.identity(),
        }
    }

    /// Whether it is the one that is there.
    fn which(&self) -> OtherFiles {
        match self.state {
            State::Other(_) => OtherFiles::Copies,
            State::Same(..) => OtherFiles::Same,
        }
    }

    /// Opens it, unless it is open already. No request writes to the layer, and preallocated space behind the
    /// end of its file has been cut off: the file's present length counts.
    async fn open(self) -> Result<OtherFile, OpenError> {
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
    fn layer(self, block: Arc<dyn Block>, now: &Layer, files: &LayerFiles) -> Layer {
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
