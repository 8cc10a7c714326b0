//! The layers of a disk, each with the files and tasks that are closed with it.

mod again;
mod removed;
mod written;

use std::any::Any;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use block::{Blame, Block, Error};
use parking_lot::Mutex;
use qcow2::{Compressing, Qcow2};
use storage::Storage;

pub use self::removed::RemovedLayers;
pub(crate) use self::written::Written;
use crate::background::BackgroundTasks;
use crate::drive::OptionTree;
use crate::drivers::Hint;
use crate::error::OpenError;
use crate::extents::VmdkOrigins;
use crate::file::Origin;
use crate::links::{Links, Own};
use crate::names::Identity;
use crate::options::LayerOptions;
use crate::probe::Format;

/// A block of a disk. Its files stay locked as long as this is there.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) block: Arc<dyn Block>,
    /// Which file it is made of; `None` for what has none.
    pub(crate) identity: Option<Identity>,
    /// Where what it starts beside requests runs.
    pub(crate) tasks: BackgroundTasks,
    /// A filter, which closes what it is put over when it is closed itself.
    pub(crate) closes_below: bool,
    /// What it is called, if it has a name of its own. The uppermost image has the disk's name, whatever is here.
    pub(crate) own: Mutex<Option<Own>>,
    /// What reads it alone, made for a command that named it.
    pub(crate) by_name: Mutex<ByName>,
    /// How many have it open for writing, below the uppermost image. [`crate::Graph::make_writable`] and `make_readable` keep it true.
    pub(crate) writers: Mutex<u32>,
    /// What it is made of; `None` of a filter.
    pub(crate) files: Option<LayerFiles>,
    /// Writes compressed clusters to it, from the first that was asked for on.
    pub(crate) compressing: OnceLock<Option<Compressing>>,
}

/// A disk that is a layer alone, and the node that its users hold: as long as something has them. They are of the graph's types.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByName {
    node: Option<Weak<dyn Any + Send + Sync>>,
    disk: Option<Weak<dyn Any + Send + Sync>>,
}

impl ByName {
    pub(crate) fn new<N: Any + Send + Sync, D: Any + Send + Sync>(node: &Arc<N>, disk: &Arc<D>) -> Self {
        let (node, disk): (Weak<N>, Weak<D>) = (Arc::downgrade(node), Arc::downgrade(disk));
        Self { node: Some(node), disk: Some(disk) }
    }

    pub(crate) fn node<N: Any + Send + Sync>(&self) -> Option<Arc<N>> {
        self.node.as_ref()?.upgrade()?.downcast().ok()
    }

    pub(crate) fn disk<D: Any + Send + Sync>(&self) -> Option<Arc<D>> {
        self.disk.as_ref()?.upgrade()?.downcast().ok()
    }
}

/// The files that an image of a disk is made of, and how it is opened. They stay locked as long as this is there.
#[derive(Debug)]
pub(crate) struct LayerFiles {
    pub(crate) format: Format,
    pub(crate) options: LayerOptions,
    pub(crate) file: Origin,
    pub(crate) data: Option<Origin>,
    /// Never written, whatever the layer is opened for.
    pub(crate) luks_header: Option<Origin>,
    /// Never written.
    pub(crate) vmdk: Option<VmdkOrigins>,
    /// Keeps the bitmaps of the layer.
    pub(crate) bitmaps: Option<Origin>,
    /// What is written when the layer is: its file, its data file, and the file of its bitmaps.
    pub(crate) written: Written,
    /// What is to be read ahead of a remote file; upkeep takes it.
    pub(crate) hint: Mutex<Option<Hint>>,
}

/// A layer is itself and no other.
impl PartialEq for Layer {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Layer {
    /// What writes compressed clusters to it, if it takes any.
    fn compressing(&self) -> Option<&Compressing> {
        let make = || {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            Compressing::new(self.block.downcast_ref::<Qcow2>()?.clone(), processors).ok()
        };
        self.compressing.get_or_init(make).as_ref()
    }

    async fn close(&self) -> Result<(), Error> {
        let closed = match self.compressing.get() {
            Some(Some(compressing)) => Block::close(compressing).await,
            _ => self.block.close().await,
        };
        match &self.files {
            Some(files) => closed.and(files.end_writing().await),
            None => closed,
        }
    }

    /// One writer less below the uppermost image; whether others are left.
    pub(crate) fn loses_writer(&self) -> bool {
        let mut writers = self.writers.lock();
        *writers = writers.saturating_sub(1);
        *writers > 0
    }

    /// What it is called, if it has a name of its own.
    pub(crate) fn own_name(&self) -> Option<String> {
        self.own.lock().as_ref().map(|own| own.name.clone())
    }
}

/// All layers of a disk. Never changes: a disk on other layers has another one of these.
#[derive(Debug)]
pub(crate) struct Layers {
    pub(crate) top: Arc<dyn Block>,
    /// Some layer's data may be in memory: reads are worth a try that does not wait. With O_DIRECT all the way
    /// down a try only repeats what the read that follows it does.
    pub(crate) cached: bool,
    /// The image whose bitmaps the disk has: the top, or what filters are over.
    pub(crate) bitmaps: Option<Qcow2>,
    /// From the upper to the lower.
    pub(crate) list: Vec<Arc<Layer>>,
    /// The layers before the last exchange, until what was written to them is durable.
    unflushed: Mutex<Option<Arc<Layers>>>,
}

/// Open layers that belong to no disk yet: what [`crate::Graph::replace`] puts into a disk. Dropping it
/// closes and unlocks everything.
#[derive(Debug)]
pub struct OpenedLayers {
    pub(crate) list: Vec<Arc<Layer>>,
    /// The image whose bitmaps a disk over them has.
    pub(crate) bitmaps: Option<Qcow2>,
    /// The image, as it was named.
    pub(crate) path: PathBuf,
    /// What was asked for.
    pub(crate) tree: OptionTree,
    /// Names of parts of it, and of nodes that it uses.
    pub(crate) links: Links,
}

impl Layers {
    /// `top`, whose layers are in `lists`, perhaps among others: each list from the upper to the lower.
    pub(crate) fn new(top: Arc<dyn Block>, lists: &[&[Arc<Layer>]], bitmaps: Option<Qcow2>) -> Self {
        let mut search = Search::of(lists, |layer| Arc::as_ptr(&layer.block).addr());
        let of = |block: Arc<dyn Block>| search.find(Arc::as_ptr(&block).addr()).cloned();
        let list = block::layers(Arc::clone(&top)).filter_map(of).collect();
        Self { cached: top.capabilities().cached, top, bitmaps, list, unflushed: Mutex::default() }
    }

    /// These, over `below`, to which requests wrote what may not be durable yet: the next flush is one of that, too.
    pub(crate) fn over(mut self, below: Arc<Self>) -> Self {
        *self.unflushed.get_mut() = Some(below);
        self
    }

    /// What writes compressed clusters to the top, if that takes any.
    pub(crate) fn compressing(&self) -> Option<&Compressing> {
        self.of(&self.top)?.compressing()
    }

    /// Makes everything durable that completed before this call.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        self.flush_below().await?;
        match self.of(&self.top).and_then(|layer| layer.compressing.get()) {
            Some(Some(compressing)) => Block::flush(compressing).await,
            _ => self.top.flush().await,
        }
    }

    /// Makes durable what was written before these layers were put over others. After an error the next flush tries again.
    pub(crate) async fn flush_below(&self) -> Result<(), Error> {
        let below = self.unflushed.lock().clone();
        if let Some(below) = below {
            Box::pin(below.flush()).await?;
            *self.unflushed.lock() = None;
        }
        Ok(())
    }

    /// The uppermost image, if it is a qcow2 image; filters over it do not count.
    pub(crate) fn image(&self) -> Option<&Qcow2> {
        self.first().map_or(&self.top, |layer| &layer.block).downcast_ref()
    }

    /// The uppermost layer that is no filter.
    pub(crate) fn first(&self) -> Option<&Arc<Layer>> {
        self.list.iter().find(|layer| !layer.closes_below)
    }

    /// The files of that layer.
    pub(crate) fn files(&self) -> Option<&LayerFiles> {
        self.first()?.files.as_ref()
    }

    /// The layer that `block` is.
    pub(crate) fn of(&self, block: &Arc<dyn Block>) -> Option<&Arc<Layer>> {
        self.list.iter().find(|layer| Arc::ptr_eq(&layer.block, block))
    }

    /// Those of `old` that are not among these.
    pub(crate) fn missing(&self, old: &Self) -> RemovedLayers {
        let own = [&*self.list];
        let mut search = Search::of(&own, |layer| Arc::as_ptr(layer).addr());
        let goes = |layer: &&Arc<Layer>| search.find(Arc::as_ptr(layer).addr()).is_none();
        RemovedLayers::of(old.list.iter().filter(goes).cloned().collect())
    }

    /// Waits until the work that requests left behind has ended.
    pub(crate) async fn idle(&self) {
        for layer in &self.list {
            layer.tasks.idle().await;
        }
    }

    /// Closes all layers, the upper ones first, also after one has failed.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        removed::close(&self.list).await
    }
}

impl LayerFiles {
    /// What each file is to the layer, and its node name, or else its path.
    pub(crate) fn names(&self) -> Vec<(&'static str, String)> {
        let (options, mut names) = (&self.options, Vec::new());
        let mut add = |role, named: &Option<String>, file: &Origin| {
            names.push((role, named.clone().unwrap_or_else(|| file.name())));
        };
        add("file", &options.file.node_name, &self.file);
        if let Some(data) = &self.data {
            add("data-file", &options.data_file.node_name, data);
        }
        if let Some(header) = &self.luks_header {
            add("header", &options.luks_header.node_name, header);
        }
        if let Some(bitmaps) = &self.bitmaps {
            add("bitmaps", &options.bitmaps.node_name, bitmaps);
        }
        names
    }

    /// The files that are written with the layer and have node names.
    pub(crate) fn written_by_name(&self) -> impl Iterator<Item = (String, Arc<dyn Storage>)> {
        let file = self.options.file.node_name.clone().map(|name| (name, Arc::clone(&self.written.file)));
        let data = self.options.data_file.node_name.clone().zip(self.written.data.clone());
        file.into_iter().chain(data)
    }

    /// Gives back what was reserved behind the ends of the files for writes to come ([`Storage::end_writing`]).
    ///
    /// # Errors
    /// The first failure; all files are tried.
    pub(crate) async fn end_writing(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for storage in self.written.all() {
            let ended = storage.end_writing().await;
            let failing = |error| Blame::new(storage.name()).io("cutting off what was reserved")(error);
            result = result.and(ended.map_err(failing));
        }
        result
    }

    /// Makes the locks of all files such that the layer may be read and written, or only read; that of a LUKS header stays a reader's.
    ///
    /// # Errors
    /// When another user's lock on one of the files excludes that. The files before it have been changed
    /// then.
    pub(crate) fn lock_for(&self, writable: bool) -> Result<(), OpenError> {
        [Some(&self.file), self.data.as_ref(), self.bitmaps.as_ref()]
            .into_iter()
            .flatten()
            .try_for_each(|origin| origin.lock_for(&self.options, writable))
    }
}

/// How far behind the last that was found one is looked for before all are.
const NEAR: usize = 3;

/// A search for layers in lists, in which those that are looked for have mostly the same order: of a long chain a change concerns a few layers.
struct Search<'a> {
    lists: &'a [&'a [Arc<Layer>]],
    key: fn(&Arc<Layer>) -> usize,
    /// Of each list the place behind the last that was found.
    next: Vec<usize>,
    /// All of them, once one is not where it was expected.
    all: Option<HashMap<usize, (usize, usize)>>,
}

impl<'a> Search<'a> {
    /// One by `key`, which no two layers share.
    fn of(lists: &'a [&'a [Arc<Layer>]], key: fn(&Arc<Layer>) -> usize) -> Self {
        Self { lists, key, next: vec![0; lists.len()], all: None }
    }

    /// The layer with this key.
    fn find(&mut self, wanted: usize) -> Option<&'a Arc<Layer>> {
        let (list, at) = self.near(wanted).or_else(|| self.far(wanted))?;
        self.next[list] = at + 1;
        self.lists[list].get(at)
    }

    fn near(&self, wanted: usize) -> Option<(usize, usize)> {
        self.lists.iter().zip(&self.next).enumerate().find_map(|(list, (layers, next))| {
            let found = layers[*next..].iter().take(NEAR).position(|layer| (self.key)(layer) == wanted);
            found.map(|at| (list, next + at))
        })
    }

    fn far(&mut self, wanted: usize) -> Option<(usize, usize)> {
        let (lists, key) = (self.lists, self.key);
        let all = self.all.get_or_insert_with(|| {
            let places = lists.iter().enumerate().rev().flat_map(|(list, layers)| {
                layers.iter().enumerate().rev().map(move |(at, layer)| (key(layer), (list, at)))
            });
            places.collect()
        });
        all.get(&wanted).copied()
    }
}
