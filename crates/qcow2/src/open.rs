//! Opening an image: from an untrusted header to state that can be trusted.

mod tables;

use std::sync::Arc;

use block::{Blame, Block, BlockFuture};
use luks::Secret;
use map_cache::{CacheLimits, MapCache};
use qcow2_layout::{
    Autoclear, Compatible, CryptMethod, Geometry, Header, HeaderError, Incompatible, Version,
};
use storage::{Hints, IoBuf, Storage};
use sync::atomic::{AtomicBool, AtomicU64};
use sync::{ArcSwapOption, AsyncMutex, Mutex, RwLock};

use crate::below::Lower;
use crate::cache_sizes::{CacheRequest, CacheSizes, CachedImage, cache_sizes, l2_ceiling};
use crate::check::leaks::{self, GivenBack};
use crate::compressed::Decompressed;
use crate::encryption::{GuestData, guest_data};
use crate::free::Frees;
use crate::header_update::FileHeader;
use crate::image::{Inner, Qcow2};
use crate::in_flight::InFlight;
use crate::l1::L1Table;
use crate::map::Map;
use crate::medium::Medium;
use crate::options::{LAZY_NEEDS_V3, NO_UNREF_NEEDS_V3};
use crate::overlap::{MetadataMap, Places};
use crate::refcount::Refcounts;
use crate::reserve::Reserve;
use crate::room::Room;
use crate::shape::{SliceShape, packing};
use crate::space::{Growth, Space};
use crate::tracking::Tracking;
use crate::turns::Turns;
use crate::waiting::Waiting;
use crate::{Error, Host, Options};
use tables::{Source, Tables};

/// The reserve, unless set: enough for what a guest allocates between two flushes, and little to leak in
/// a crash.
const RESERVE_BYTES: u64 = 16 << 20;
/// Likewise, with large clusters.
const RESERVE_CLUSTERS_MIN: u64 = 128;
/// Likewise, with small ones: each costs a refcount that is written.
const RESERVE_CLUSTERS_MAX: u64 = 4096;

/// Bytes that hold every header field that says how much more there is to read.
const HEADER_START: usize = 512;

/// The files that an image is made of, opened by the caller: which names may be followed is the
/// caller's decision.
#[derive(Debug)]
pub struct Files {
    /// The image file.
    pub file: Arc<dyn Storage>,
    /// The external data file, if the header has one.
    pub data: Option<Arc<dyn Storage>>,
    /// The backing layer, if the header has one: an image or any other block.
    pub backing: Option<Arc<dyn Block>>,
}

/// Reads the header of an image: what it is, and which other files it names. At most one cluster
/// is read.
pub fn read_header(file: &dyn Storage) -> BlockFuture<'_, Result<Header, Error>> {
    Box::pin(async move {
        let blame = Blame::new(file.name());
        let start = read_up_to(file, &blame, HEADER_START).await?;
        let refuse = |error: HeaderError| header_error(&blame, &error);
        let cluster_bits = Header::cluster_bits_of(&start).map_err(refuse)?;
        let first = read_up_to(file, &blame, 1 << cluster_bits).await?;
        Header::decode(&first).map_err(refuse)
    })
}

/// The first `len` bytes, or all there are.
async fn read_up_to(file: &dyn Storage, blame: &Blame, len: usize) -> Result<IoBuf, Error> {
    let there = usize::try_from(file.length()).unwrap_or(usize::MAX);
    let (result, buf) = file.read(0, IoBuf::uninit(len.min(there)), Hints::NONE).await;
    result.map_err(blame.io("reading the header"))?;
    Ok(buf)
}

fn header_error(blame: &Blame, error: &HeaderError) -> Error {
    match error.is_unsupported() {
        true => blame.unsupported(error.to_string()),
        false => blame.corrupt(error.to_string()),
    }
}

impl Qcow2 {
    /// Opens an image over `files`. Writable images that were not closed (dirty bit) must be repaired
    /// first ([`crate::check`]); this refuses them.
    ///
    /// Costs the header, L1, refcount table and snapshot table in reads and memory: at most
    /// 32 MiB + 8 MiB + 64 MiB, each checked against the file's length first. The place of each table that
    /// they name takes 8 bytes more: at most 40 MiB.
    pub fn open(
        files: Files,
        options: Options,
        host: Arc<dyn Host>,
    ) -> BlockFuture<'static, Result<Qcow2, Error>> {
        Box::pin(async move { Self::open_by(files, None, options, host).await })
    }

    /// Opens an encrypted image as [`Qcow2::open`] does a plain one, with the key that `password` opens. Costs also what the header's key
    /// slots ask for: a second or two, most often, calculated where the host does it.
    ///
    /// # Errors
    /// Also when no key slot is opened, or the image is not encrypted.
    pub fn open_encrypted(
        files: Files,
        password: &Secret,
        options: Options,
        host: Arc<dyn Host>,
    ) -> BlockFuture<'_, Result<Qcow2, Error>> {
        Box::pin(async move { Self::open_by(files, Some(password), options, host).await })
    }

    async fn open_by(
        files: Files,
        password: Option<&Secret>,
        options: Options,
        host: Arc<dyn Host>,
    ) -> Result<Qcow2, Error> {
        let header = read_header(&*files.file).await?;
        let data =
            guest_data(&files.file, files.data.as_ref(), &header, password, options.writable, &host).await?;
        open_with(files, data, header, options, host).await
    }
}

/// Opens an image whose header was read, and whose guest data is read and written in `data`: see [`Qcow2::open`].
pub(crate) async fn open_with(
    files: Files,
    data: GuestData,
    header: Header,
    options: Options,
    host: Arc<dyn Host>,
) -> Result<Qcow2, Error> {
    let blame = Blame::new(files.file.name());
    check_openable(&header, &files, &options, &blame)?;
    let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
    if options.writable && leaks::may_have_leaks(&header) {
        give_leaks_back(&*files.file, &blame).await;
    }
    let source =
        Source { file: &*files.file, header: &header, geometry: &geometry, options: &options, blame: &blame };
    let account = host.tables_account();
    let mut tables = Tables::read(source, &account).await?;
    if options.writable && !files.file.capabilities().resizable {
        tables.allocator = tables.allocator_on_device(source).await?;
    }
    let inner = assemble(files, data, header, geometry, tables, options, host)?;
    let image = Qcow2 { inner: Arc::new(inner) };
    image.inner.count_tables();
    image.inner.load_bitmaps(&account).await?;
    if options.writable {
        image.inner.header.clear_unknown_autoclear(&image.inner.medium).await?;
    }
    Ok(image)
}

/// Gives back what a crash left of a reserve. An image from which that cannot be had is as good as before.
async fn give_leaks_back(file: &dyn Storage, blame: &Blame) {
    let name = blame.name();
    match leaks::give_back(file).await {
        Ok(GivenBack::Clusters(0)) => {}
        Ok(GivenBack::Clusters(clusters)) => {
            tracing::info!("{name}: was not closed; {clusters} clusters that nothing used are free again");
        }
        Ok(GivenBack::TooMuchToRead) => {
            tracing::info!(
                "{name}: was not closed and may have unused clusters; `cowhand check -r leaks` frees them"
            );
        }
        Ok(GivenBack::Damaged) => {
            tracing::warn!("{name}: was not closed and has errors; run `cowhand check`");
        }
        Err(error) => tracing::warn!("{name}: cannot look for unused clusters: {error}"),
    }
}

fn check_openable(header: &Header, files: &Files, options: &Options, blame: &Blame) -> Result<(), Error> {
    let external = header.incompatible.contains(Incompatible::EXTERNAL_DATA);
    if external != files.data.is_some() {
        let what = if external { "needs an external data file" } else { "has no external data file" };
        return Err(blame.invalid(format!("the image {what}")));
    }
    if !options.writable {
        return Ok(());
    }
    if files.file.capabilities().read_only {
        return Err(blame.refused("the file is opened read-only"));
    }
    if header.incompatible.contains(Incompatible::CORRUPT) && !options.ignore_corrupt {
        return Err(blame.refused(
            "the image is marked corrupt and cannot be opened for writing; repair it with `cowhand check -r all`, \
             or open it read-only",
        ));
    }
    if header.incompatible.contains(Incompatible::DIRTY) {
        return Err(
            blame.refused("the image was not closed and its refcounts must be repaired before it is written")
        );
    }
    let lazy = options.lazy_refcounts == Some(true);
    if lazy && header.version == Version::V2 {
        return Err(blame.invalid(LAZY_NEEDS_V3));
    }
    if options.discard_no_unref && header.version == Version::V2 {
        return Err(blame.invalid(NO_UNREF_NEEDS_V3));
    }
    Ok(())
}

/// Where all metadata lies: by `l1`, and by the other tables, which are read anew.
pub(crate) async fn metadata_places(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    options: &Options,
    blame: &Blame,
    l1: &L1Table,
) -> Result<Places, Error> {
    let source = Source { file, header, geometry, options, blame };
    let refcounts = tables::read_refcounts(source).await?;
    tables::read_places(source, l1, &refcounts).await
}

/// How many clusters are counted ahead of their use.
fn reserve_clusters(options: &Options, geometry: &Geometry) -> u64 {
    match options.allocation_reserve {
        Some(bytes) => bytes >> geometry.cluster_bits,
        // Its header cannot say that there is a reserve, so what a crash leaked would stay.
        None if geometry.version == Version::V2 => 0,
        None => (RESERVE_BYTES >> geometry.cluster_bits)
            .clamp(RESERVE_CLUSTERS_MIN, RESERVE_CLUSTERS_MAX)
            .min(geometry.refcount_block_entries()),
    }
}

fn assemble(
    files: Files,
    data: GuestData,
    header: Header,
    geometry: Geometry,
    tables: Tables,
    options: Options,
    host: Arc<dyn Host>,
) -> Result<Inner, Error> {
    let blame = Blame::new(files.file.name());
    let cached = cached_image(header.guest_size(), &geometry);
    let cache_sizes =
        cache_sizes(&options.cache, &cached).map_err(|error| blame.invalid(error.to_string()))?;
    let shape = SliceShape::new(&geometry, cache_sizes.l2_entry_bytes);
    let limits = CacheLimits {
        slices_per_table: shape.slices_per_table(),
        bytes_max: l2_ceiling(&options.cache, &cache_sizes),
    };
    let budget = host.map_budget();
    let lazy_bit = header.compatible.contains(Compatible::LAZY_REFCOUNTS);
    let file = files.file;
    let refcounts = Refcounts::new(
        Arc::clone(&file),
        blame.clone(),
        geometry,
        tables.refcounts,
        usize::try_from(cache_sizes.refcount_count).unwrap_or(usize::MAX),
        Arc::clone(&budget),
    );
    let lazy_refcounts = options.lazy_refcounts.unwrap_or(lazy_bit);
    Ok(Inner {
        map: Arc::new(Map {
            l1: tables.l1,
            cache: MapCache::new(limits, packing(&geometry), &budget),
            shape,
            cache_sizes: RwLock::new(cache_sizes),
            prefetch: options.prefetch,
            budget: Arc::clone(&budget),
            waiting: Waiting::default(),
            tables: InFlight::default(),
        }),
        tables_charge: budget.charge(0),
        space: Arc::new(Space {
            refcounts,
            allocator: Mutex::new(tables.allocator),
            allocator_charge: Mutex::new(None),
            budget,
            reserve: Reserve::new(reserve_clusters(&options, &geometry), &geometry),
            growth: Growth::default(),
            room: Room::default(),
            making_blocks: AsyncMutex::new(()),
            frees: Frees::default(),
        }),
        turns: Turns::default(),
        decompressed: Decompressed::new(header.compression),
        awaits_backing: AtomicBool::new(header.backing.is_some() && files.backing.is_none()),
        below: ArcSwapOption::from(files.backing.map(Lower::new)),
        discards: RwLock::new(options.discards()),
        size: AtomicU64::new(header.guest_size()),
        medium: Medium {
            blame,
            host,
            file,
            data: data.storage,
            plain: data.plain,
            by_guest: data.by_guest,
            encrypted: header.crypt != CryptMethod::None,
            raw_data: header.autoclear.contains(Autoclear::RAW_EXTERNAL_DATA) && geometry.external_data,
            geometry,
            overlap: Arc::new(MetadataMap::new(options.overlap_check, tables.places)),
            health: Arc::default(),
        },
        header: Arc::new(FileHeader::new(header, lazy_refcounts)),
        tracking: Tracking::default(),
        options,
    })
}

/// What cache sizes depend on.
fn cached_image(disk_bytes: u64, geometry: &Geometry) -> CachedImage {
    CachedImage {
        disk_bytes,
        cluster_bytes: geometry.cluster_size(),
        l2_table_entry_bytes: geometry.l2_entry_bytes(),
    }
}

impl Qcow2 {
    /// Puts the sizes that `request` means for this image in force, and says what they are. What is dirty is
    /// written first. A new `l2-cache-entry-size` empties the map, and requests wait meanwhile.
    ///
    /// # Errors
    /// When the request contradicts itself or the image, or writing fails: then the old sizes stay.
    pub fn set_caches(&self, request: CacheRequest) -> BlockFuture<'_, Result<CacheSizes, Error>> {
        Box::pin(async move {
            let image = Arc::clone(&self.inner);
            self.inner.medium.to_the_end(async move { image.set_caches(request).await }).await
        })
    }
}

impl Inner {
    async fn set_caches(self: Arc<Self>, request: CacheRequest) -> Result<CacheSizes, Error> {
        let _managing = self.turns.managing.lock().await;
        // Refuses when the image was closed meanwhile.
        drop(self.enter().await?);
        let image = cached_image(self.size(), &self.medium.geometry);
        let sizes =
            cache_sizes(&request, &image).map_err(|error| self.medium.blame.invalid(error.to_string()))?;
        if sizes.l2_entry_bytes == self.map.shape.slice_bytes() as u64 {
            self.flush().await?;
        } else if self.options.writable {
            let _pause = self.pause().await?;
            self.cut_anew(sizes.l2_entry_bytes)?;
        } else {
            let _closed = self.turns.gate.close().await;
            self.cut_anew(sizes.l2_entry_bytes)?;
        }
        let ceiling = l2_ceiling(&request, &sizes);
        self.map.cache.set_bytes_max(ceiling);
        self.ask_chain(|chain| chain.set_bytes_max(ceiling));
        self.space.refcounts.set_blocks_max(usize::try_from(sizes.refcount_count).unwrap_or(usize::MAX));
        *self.map.cache_sizes.write() = sizes;
        Ok(sizes)
    }

    /// Cuts L2 tables into slices of `slice_bytes`. No request is in flight, and nothing is dirty.
    fn cut_anew(&self, slice_bytes: u64) -> Result<(), Error> {
        self.map.cache.clear();
        let per_table = self.medium.geometry.cluster_size() / slice_bytes;
        if !self.map.cache.reshape(per_table as usize) {
            return Err(self.medium.blame.refused("map slices that cannot be written keep their size"));
        }
        self.map.shape.set_slice_bytes(slice_bytes);
        Ok(())
    }
}

/// What decrypts the guest data in the file of an encrypted image, for tools that move it; `None` of one that is not encrypted.
///
/// # Errors
/// When the header is not one, the image is encrypted and `password` is not there or opens nothing, or is there and the image is not.
pub fn plain_text<'a>(
    file: &'a Arc<dyn Storage>,
    password: Option<&'a Secret>,
    host: &'a Arc<dyn Host>,
) -> BlockFuture<'a, Result<Option<Arc<dyn Storage>>, Error>> {
    Box::pin(async move {
        let header = read_header(&**file).await?;
        let data = guest_data(file, None, &header, password, true, host).await?;
        Ok((header.crypt != CryptMethod::None).then_some(data.storage))
    })
}
