//! From options to an open disk: the chain is found from the top down and opened from the bottom up.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block::{Blame, Block};
use parking_lot::Mutex;
use qcow2::Qcow2;
use qcow2::snapshot::SnapshotName;
use storage::{IoFuture, LockError, Storage, is_layers_directory};

use crate::background::BackgroundTasks;
use crate::bitmaps_file::{self, bitmaps_of, with_bitmaps};
use crate::chain::{ChainWalk, FoundImage, format_of};
use crate::child::{Child, Owner};
use crate::disk::Disk;
use crate::drivers::{Access, Opening, THROTTLE_GROUP, remotes};
use crate::error::OpenError;
use crate::extents::{DataFiles, VmdkFiles};
use crate::fd_sets::FdSets;
use crate::file::{Origin, Source, by_user};
use crate::filtered::Filtered;
use crate::layers::{Layer, LayerFiles, Layers, Written};
use crate::links::{Links, Own};
use crate::names::{Reason, Refused};
use crate::node_storage::storage_of_own;
use crate::open_rules::OpenRules;
use crate::options::{DiskOptions, FileOptions, FilterOptions, OpenDisk, OptionError, ThrottleOptions};
use crate::probe::Format;

/// How often a chain is looked at whose layers are being merged. A layer that is missing for good is reported after all of it.
const MERGED_TRIES: u32 = 20;
/// Time between two looks.
const MERGED_RETRY: Duration = Duration::from_millis(10);

/// Opens a disk that is described where a file stands.
#[derive(Debug)]
struct Described {
    options: DiskOptions,
    rules: OpenRules,
}

impl OpenDisk for Described {
    fn open(&self, name: String, access: Access) -> IoFuture<'_, io::Result<Arc<dyn Storage>>> {
        Box::pin(async move {
            let mut options = self.options.clone();
            options.layer.read_only |= !access.writable;
            // A disk in a disk has no end, so the future has no size.
            let opened = Box::pin(open(&options, &self.rules)).await.map_err(io::Error::other)?;
            Ok(storage_of_own(name, Arc::new(opened), access.writable))
        })
    }
}

/// Says of the disks that `options` describe in the place of files how they are opened: by `rules`, which are asked for where there is one.
fn say_how_disks_open(options: &DiskOptions, rules: impl Fn() -> OpenRules) {
    for disk in options.layer.all_files().into_iter().filter_map(FileOptions::disk) {
        if let Some(described) = disk.description() {
            let (options, rules) = (described.clone(), rules());
            disk.is_opened_by(Arc::new(Described { options, rules }));
        }
    }
}

impl<'a> ChainWalk<'a> {
    /// From the image that `options` name.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn new(
        options: &DiskOptions,
        rules: &'a OpenRules,
        data_files: DataFiles,
    ) -> Result<Self, OpenError> {
        say_how_disks_open(options, || rules.clone());
        Self::from(options, rules, data_files)
    }
}

/// Opens a disk with its whole chain, and puts its filters over it. Runs on a loop ([`reactor::Reactor::run`]).
///
/// Costs one or two descriptors an image, but for layers that other disks under the same rules read, and reads headers and tables only.
pub async fn open(options: &DiskOptions, rules: &OpenRules) -> Result<Disk, OpenError> {
    check_group(options, rules)?;
    say_how_disks_open(options, || rules.clone());
    if options.filters.is_empty() {
        return open_images(options, rules).await;
    }
    // Limits and records are those of the outermost filter: each request is charged once.
    let below_rules = OpenRules { trace: None, ..rules.clone() };
    let below =
        DiskOptions { throttling: ThrottleOptions::default(), filters: Vec::new(), ..options.clone() };
    let mut disk = open_images(&below, &below_rules).await?;
    for (over, filter) in options.filters.iter().enumerate().rev() {
        let (options, rules) = if over == 0 { (options, rules) } else { (&below, &below_rules) };
        disk = put_filter_over(disk, filter, options, rules).await?;
    }
    Ok(disk)
}

/// Refuses a throttle group that does not exist: the disk would have no limits.
fn check_group(options: &DiskOptions, rules: &OpenRules) -> Result<(), OpenError> {
    match &options.throttling.group {
        Some(group) if options.throttling.is_object && rules.groups.find(group).is_none() => {
            let allowed = "the id of a throttle group (--object throttle-group,id=ID,...)".to_owned();
            let source =
                OptionError::Value { option: THROTTLE_GROUP.to_owned(), found: group.clone(), allowed };
            Err(OpenError::Options { path: options.filename.clone(), source })
        }
        _ => Ok(()),
    }
}

async fn open_images(options: &DiskOptions, rules: &OpenRules) -> Result<Disk, OpenError> {
    let tasks = BackgroundTasks::new(Arc::clone(&rules.map_budget));
    let list = Box::pin(open_layers(options, rules, &tasks)).await?;
    let Some(top) = list.first().map(|layer| Arc::clone(&layer.block)) else {
        return Err(OpenError::ChainTooLong { max: rules.chain_max });
    };
    let bitmaps = bitmaps_of(&*top);
    Ok(Disk::new(Layers::new(top, &[&list], bitmaps), options, rules))
}

async fn put_filter_over(
    disk: Disk,
    filter: &FilterOptions,
    options: &DiskOptions,
    rules: &OpenRules,
) -> Result<Disk, OpenError> {
    let roles = filter.driver.children.roles().iter().map(|role| role.name);
    let mut disks = vec![disk];
    for (role, beside) in &filter.beside {
        let mut beside = beside.clone();
        beside.layer.read_only |= options.layer.read_only && !role.is_target;
        disks.push(Box::pin(open(&beside, rules)).await?);
    }
    let children = disks.into_iter().map(|disk| Child::new(Arc::new(disk), Owner::Filter));
    let below = Filtered {
        list: roles.zip(children).collect(),
        marked: None,
        top_name: options.layer.node_name.clone(),
    };
    Ok(disk_over(filter.makes.make(&below)?, None, options, rules))
}

/// A disk that is the filter `block`, with the bitmaps of `image`.
pub(crate) fn disk_over(
    block: Arc<dyn Block>,
    image: Option<Qcow2>,
    options: &DiskOptions,
    rules: &OpenRules,
) -> Disk {
    let mut options = options.clone();
    options.layer.read_only |= block.capabilities().read_only;
    Disk::new(layers_over(block, image, rules), &options, rules)
}

/// The layers of a disk that is `block` alone.
pub(crate) fn layers_over(block: Arc<dyn Block>, image: Option<Qcow2>, rules: &OpenRules) -> Layers {
    let layer = Layer {
        block: Arc::clone(&block),
        identity: None,
        tasks: BackgroundTasks::new(Arc::clone(&rules.map_budget)),
        closes_below: false,
        own: Mutex::default(),
        by_name: Mutex::default(),
        writers: Mutex::default(),
        files: None,
        compressing: OnceLock::new(),
    };
    Layers::new(block, &[&[Arc::new(layer)]], image)
}

/// The disk that `disk`, which is open for reading, was at the snapshot `name`. `disk` holds the locks of the files: it is to be kept for as long.
///
/// # Errors
/// When it has no such snapshot, or none at all.
pub async fn at_snapshot(
    disk: &Disk,
    name: &SnapshotName,
    options: &DiskOptions,
    rules: &OpenRules,
) -> Result<Disk, block::Error> {
    let image = disk
        .image()
        .ok_or_else(|| Blame::new(disk.root().name()).invalid("only qcow2 images have snapshots"))?;
    let view = image.at_snapshot(name).await?;
    Ok(disk_over(Arc::new(view), None, options, rules))
}

/// Opens all layers that `options` lead to, the upper ones first in the list. What they start beside requests runs in `tasks`.
pub(crate) async fn open_layers(
    options: &DiskOptions,
    rules: &OpenRules,
    tasks: &BackgroundTasks,
) -> Result<Vec<Arc<Layer>>, OpenError> {
    let mut chain = find_chain(options, rules).await?;
    let mut list: Vec<Arc<Layer>> = Vec::with_capacity(chain.len());
    while let Some(found) = chain.pop() {
        let FoundImage { identity, file, data, luks_header, format, mut options, header, vmdk, qcow1: _ } =
            found;
        rules.name(&mut options, chain.is_empty(), data.is_some(), luks_header.is_some());
        let (data, data_origin) = data.map(|data| (data.storage, data.origin)).unzip();
        let (luks_header, luks_origin) = luks_header.map(|header| (header.storage, header.origin)).unzip();
        let (vmdk, vmdk_origins) = vmdk.map(VmdkFiles::divided).unzip();
        let (disk_file, data_file) = (Arc::clone(&file.storage), data.clone());
        let writable = chain.is_empty() && !options.read_only;
        let hint = Mutex::new((remotes().take_hint)(&file.storage));
        let opening = Opening {
            file: file.storage,
            data,
            luks_header,
            vmdk,
            backing: list.last().map(|layer| Arc::clone(&layer.block)),
            options: &options,
            header: header.as_ref(),
            writable,
            secrets: &rules.secrets,
            tasks,
        };
        let block = opening.open(format).await?;
        let bitmaps = Box::pin(bitmaps_file::open_file(&options, &*block, writable, &rules.fd_sets)).await?;
        let block = Box::pin(with_bitmaps(block, &disk_file, (bitmaps.as_ref(), writable), tasks)).await?;
        let (bitmaps, bitmaps_origin) = bitmaps.map(|bitmaps| (bitmaps.storage, bitmaps.origin)).unzip();
        let written = Written { file: disk_file, data: data_file, bitmaps };
        let own = options.node_name.clone().filter(|_| !chain.is_empty());
        let own = own.map(|name| Own { name, by_user: false, links: Links::default() });
        let (file, data, luks_header) = (file.origin, data_origin, luks_origin);
        let files = LayerFiles {
            format,
            options,
            file,
            data,
            luks_header,
            vmdk: vmdk_origins,
            bitmaps: bitmaps_origin,
            written,
            hint,
        };
        list.push(Arc::new(Layer {
            block,
            identity: Some(identity),
            tasks: tasks.clone(),
            closes_below: false,
            own: Mutex::new(own),
            by_name: Mutex::default(),
            writers: Mutex::default(),
            files: Some(files),
            compressing: OnceLock::new(),
        }));
    }
    list.reverse();
    Ok(list)
}

/// An image file by itself: for tools that read metadata without opening the disk.
#[derive(Debug)]
pub struct BareImage {
    /// The file.
    pub file: Arc<dyn Storage>,
    /// What it holds.
    pub format: Format,
    /// Held while the file is read.
    _origin: Origin,
}

/// Opens and locks the active layer's file and nothing else, for writing unless `read-only` is set.
pub async fn open_bare(options: &DiskOptions) -> Result<BareImage, OpenError> {
    options.check_without_filters()?;
    say_how_disks_open(options, OpenRules::default);
    let layer = &options.layer;
    let writable = !layer.read_only;
    let source = Source::by_options(&layer.file, &FdSets::default(), writable)?;
    let source = source.map_or_else(|| by_user(&options.filename, &FdSets::default(), writable), Ok)?;
    let name = options.filename.display().to_string();
    let file = source.open(&name, &layer.file, layer, writable).await?;
    let format = format_of(&file, layer, writable).await?;
    Ok(BareImage { file: file.storage, format, _origin: file.origin })
}

/// Opens and locks the file that has the LUKS header of a LUKS disk, as [`open_bare`] does: the one that `header` names, or the disk's own.
/// The format is not looked at.
pub async fn open_luks_header(options: &DiskOptions) -> Result<BareImage, OpenError> {
    let layer = &options.layer;
    let refused = |source| OpenError::Options { path: options.filename.clone(), source };
    layer.check_format(Format::Luks).map_err(refused)?;
    say_how_disks_open(options, OpenRules::default);
    let writable = !layer.read_only;
    let Some(source) = Source::by_options(&layer.luks_header, &FdSets::default(), writable)? else {
        return open_bare(options).await;
    };
    let name = layer.luks_header.shown().unwrap_or_else(|| source.path()).display().to_string();
    let file = source.open(&name, &layer.luks_header, layer, writable).await?;
    Ok(BareImage { file: file.storage, format: Format::Luks, _origin: file.origin })
}

/// All images of the chain, the active one first. A merge of layers may remove one of them between the look at the image above it and its own open, and locks
/// them for a moment: then the chain is another one, and is looked at again from its first image on.
async fn find_chain(options: &DiskOptions, rules: &OpenRules) -> Result<Vec<FoundImage>, OpenError> {
    for _ in 1..MERGED_TRIES {
        match find_chain_once(options, rules).await {
            Err(error) if is_of_merge(&error) => reactor::sleep(MERGED_RETRY).await,
            found => return found,
        }
    }
    find_chain_once(options, rules).await
}

/// Whether the layer of a lineage that was not opened is not there, or is locked.
fn is_of_merge(error: &OpenError) -> bool {
    let is_layer = |path: &Path| {
        let directory = path.parent().and_then(|directory| directory.canonicalize().ok());
        directory.is_some_and(|directory| is_layers_directory(&directory))
    };
    match error {
        OpenError::Lock { path, source: LockError::Busy { .. } } => is_layer(path),
        OpenError::Find { path, source } => source.kind() == io::ErrorKind::NotFound && is_layer(path),
        OpenError::Refused(Refused { image, name, reason: Reason::Io(source), .. }) => {
            let path = image.parent().unwrap_or(Path::new("")).join(name);
            source.kind() == io::ErrorKind::NotFound && is_layer(&path)
        }
        _ => false,
    }
}

async fn find_chain_once(options: &DiskOptions, rules: &OpenRules) -> Result<Vec<FoundImage>, OpenError> {
    let mut walk = ChainWalk::new(options, rules, DataFiles::Open)?;
    let mut chain: Vec<FoundImage> = Vec::new();
    while let Some(found) = walk.next(chain.last()).await? {
        chain.push(found);
    }
    Ok(chain)
}
