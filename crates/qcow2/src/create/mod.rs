//! Making a new image.

mod error;
mod in_order;
mod measure;
mod options;
mod plan;

use block::BlockFuture;
use luks::{Around, NewVolume};
use storage::{Allocation, Hints, IoBuf, Storage, Zeroing};

pub use error::CreateError;
pub use in_order::{InOrder, InOrderCluster, Packer};
pub use measure::{Content, DataClusters, FileSizes};
pub use options::{CreateOptions, Preallocation};
use plan::Plan;

use crate::table_io::{write_bytes, write_words};

/// COPIED: the entry's cluster has a refcount of exactly one, as everything in a new image.
const COPIED: u64 = 1 << 63;
/// The zero flag of a standard L2 entry.
const ZERO: u64 = 1;

/// Makes `file` a new, empty image; everything it held is lost, and so is everything in `data_file`.
///
/// `data_file` is there exactly if `options.data_file` names one; it gets the size of the disk.
/// Memory: one buffer of a megabyte. Writes only what is not zero where the file grows zeroed.
///
/// # Errors
/// Options that contradict each other or exceed a limit are found before anything is touched.
///
/// # After a crash
/// The header is written last, behind a flush: until then the file starts with zeroes, which is no image.
pub fn create<'a>(
    file: &'a dyn Storage,
    data_file: Option<&'a dyn Storage>,
    options: &'a CreateOptions,
) -> BlockFuture<'a, Result<(), CreateError>> {
    Box::pin(async move { create_with(file, data_file, options, None).await })
}

/// Likewise an encrypted image, with the key that `volume` makes; its cipher is the one of the options. Costs the time that a password
/// of the volume takes to be tried, where `around` calculates.
///
/// # Errors
/// Also when no key can be made.
///
/// # After a crash
/// As [`create`].
pub fn create_encrypted<'a>(
    file: &'a dyn Storage,
    data_file: Option<&'a dyn Storage>,
    options: &'a CreateOptions,
    volume: &'a NewVolume,
    around: &'a dyn Around,
) -> BlockFuture<'a, Result<(), CreateError>> {
    Box::pin(async move {
        let options = CreateOptions { encrypt: Some(volume.cipher), ..options.clone() };
        create_with(file, data_file, &options, Some((volume, around))).await
    })
}

async fn create_with(
    file: &dyn Storage,
    data_file: Option<&dyn Storage>,
    options: &CreateOptions,
    volume: Option<(&NewVolume, &dyn Around)>,
) -> Result<(), CreateError> {
    let plan = options.plan()?;
    let header = plan.header(options).encode()?;
    if data_file.is_some() != options.data_file.is_some() {
        return Err(CreateError::DataFileHandle { named: options.data_file.is_some() });
    }
    if options.encrypt.is_some() && volume.is_none() {
        return Err(CreateError::Needs { option: "encrypt.format=luks", needs: "encrypt.key-secret" });
    }
    check_room(file, plan.bytes())?;
    if let Some(data_file) = data_file {
        check_room(data_file, plan.size)?;
    }
    erase(file).await?;
    if let Some(data_file) = data_file {
        prepare_data_file(data_file, &plan, options.keeps_data_file).await?;
    }
    make_room(file, &plan).await?;
    if let Some((volume, around)) = volume {
        volume.write(file, plan.luks_start() * plan.cluster_size(), around).await?;
    }
    write_l2_tables(file, &plan).await?;
    write_l1_table(file, &plan).await?;
    write_refcounts(file, &plan).await?;
    file.flush().await.map_err(CreateError::io(file, "flush"))?;
    write_bytes(file, 0, &header).await.map_err(CreateError::io(file, "write the header"))?;
    file.flush().await.map_err(CreateError::io(file, "flush"))
}

/// A device must be long enough; a file grows.
fn check_room(medium: &dyn Storage, needed: u64) -> Result<(), CreateError> {
    let found = medium.length();
    if !medium.capabilities().resizable && found < needed {
        return Err(CreateError::MediumTooSmall { name: medium.name().to_owned(), found, needed });
    }
    Ok(())
}

/// Makes sure that no old header can be taken for the new image's while that is half written.
async fn erase(file: &dyn Storage) -> Result<(), CreateError> {
    /// What no medium tears, and what says that there is an image.
    const FIRST_SECTOR: u64 = 512;
    /// The largest header cluster.
    const HEADER_BYTES_MAX: u64 = 2 << 20;
    let length = file.length();
    if file.capabilities().resizable {
        file.shorten_to(0).await.map_err(CreateError::io(file, "erase"))?;
    } else {
        // A crash leaves the old image whole, or none.
        for end in [FIRST_SECTOR, HEADER_BYTES_MAX] {
            file.zero(0, length.min(end), Zeroing::Keep).await.map_err(CreateError::io(file, "erase"))?;
            file.flush().await.map_err(CreateError::io(file, "flush"))?;
        }
        return Ok(());
    }
    file.flush().await.map_err(CreateError::io(file, "flush"))
}

/// Gives the data file the size of the disk, empty, with the space that was asked for.
async fn prepare_data_file(data_file: &dyn Storage, plan: &Plan, keep: bool) -> Result<(), CreateError> {
    let capabilities = data_file.capabilities();
    if keep {
        data_file.grow_to(plan.size).await.map_err(CreateError::io(data_file, "extend"))?;
        return data_file.flush().await.map_err(CreateError::io(data_file, "flush"));
    }
    if capabilities.resizable {
        data_file.shorten_to(0).await.map_err(CreateError::io(data_file, "erase"))?;
        // Whole clusters where the map names them, as in QEMU.
        let length = match plan.preallocation {
            Preallocation::Off => plan.size,
            _ => plan.size.next_multiple_of(plan.cluster_size()),
        };
        data_file.grow_to(length).await.map_err(CreateError::io(data_file, "extend"))?;
    }
    let len = plan.size;
    let done = match plan.preallocation {
        _ if len == 0 => Ok(()),
        Preallocation::Full => data_file.allocate(0, len, Allocation::Write).await,
        Preallocation::Falloc if capabilities.resizable => {
            data_file.allocate(0, len, Allocation::Reserve).await
        }
        // Preallocated clusters read from the file, whatever it held before.
        Preallocation::Metadata | Preallocation::Falloc if !capabilities.grows_zeroed => {
            data_file.zero(0, len, Zeroing::Keep).await
        }
        Preallocation::Off | Preallocation::Metadata | Preallocation::Falloc => Ok(()),
    };
    done.map_err(CreateError::io(data_file, "allocate"))?;
    data_file.flush().await.map_err(CreateError::io(data_file, "flush"))
}

/// Gives the image its length; all metadata reads as zeroes afterwards.
async fn make_room(file: &dyn Storage, plan: &Plan) -> Result<(), CreateError> {
    let capabilities = file.capabilities();
    if capabilities.resizable {
        file.grow_to(plan.length()).await.map_err(CreateError::io(file, "extend"))?;
    }
    let data = (plan.data_start() * plan.cluster_size(), plan.data_clusters * plan.cluster_size());
    let done = match plan.preallocation {
        Preallocation::Full => file.allocate(0, plan.bytes(), Allocation::Write).await,
        Preallocation::Falloc if capabilities.resizable => {
            file.allocate(0, plan.bytes(), Allocation::Reserve).await
        }
        Preallocation::Off | Preallocation::Metadata | Preallocation::Falloc => Ok(()),
    };
    done.map_err(CreateError::io(file, "allocate"))?;
    if !capabilities.grows_zeroed {
        file.zero(0, data.0, Zeroing::Keep).await.map_err(CreateError::io(file, "zero"))?;
        if data.1 > 0 && !plan.zero_flag(file) && plan.preallocation != Preallocation::Full {
            file.zero(data.0, data.1, Zeroing::Keep).await.map_err(CreateError::io(file, "zero"))?;
        }
    }
    Ok(())
}

/// Entries for all guest clusters, when preallocated. With extended entries no subcluster is allocated: the
/// cluster has its place and the backing file still shows through.
async fn write_l2_tables(file: &dyn Storage, plan: &Plan) -> Result<(), CreateError> {
    if plan.l2_tables == 0 {
        return Ok(());
    }
    let flags = COPIED | if plan.zero_flag(file) { ZERO } else { 0 };
    let first = if plan.geometry.external_data { 0 } else { plan.data_start() };
    let words_per_entry = plan.geometry.l2_entry_bytes() / 8;
    let entry = |index: u64| ((first + index) << plan.geometry.cluster_bits) | flags;
    let word = |index: u64| match words_per_entry {
        1 => entry(index),
        _ if index.is_multiple_of(2) => entry(index / 2),
        _ => 0,
    };
    let count = plan.guest_clusters() * words_per_entry;
    let offset = plan.l2_start() * plan.cluster_size();
    write_words(file, offset, count, word).await.map_err(CreateError::io(file, "write L2 tables"))
}

async fn write_l1_table(file: &dyn Storage, plan: &Plan) -> Result<(), CreateError> {
    let offset = plan.l1_start() * plan.cluster_size();
    let word = |index: u64| ((plan.l2_start() + index) << plan.geometry.cluster_bits) | COPIED;
    write_words(file, offset, plan.l2_tables, word).await.map_err(CreateError::io(file, "write the L1 table"))
}

/// Every cluster of the new image has one reference. The blocks follow each other, so their refcounts
/// are one long array; the pattern of ones repeats after at most 8 bytes.
async fn write_refcounts(file: &dyn Storage, plan: &Plan) -> Result<(), CreateError> {
    const CHUNK: u64 = 1 << 20;
    let bits = u64::from(plan.geometry.refcount_bits());
    let start = plan.refcount_blocks_start() * plan.cluster_size();
    let total = plan.total_clusters();
    let per_chunk = CHUNK * 8 / bits;
    let mut done = 0;
    while done < total {
        let count = per_chunk.min(total - done);
        let chunk = ones(count, plan.geometry.refcount_order)?;
        let offset = start + done * bits / 8;
        file.write(offset, chunk.freeze().into(), Hints::NONE)
            .await
            .map_err(CreateError::io(file, "write refcounts"))?;
        done += count;
    }
    let word = |index: u64| (plan.refcount_blocks_start() + index) << plan.geometry.cluster_bits;
    write_words(file, plan.cluster_size(), plan.refcount_blocks, word)
        .await
        .map_err(CreateError::io(file, "write the refcount table"))
}

/// `count` refcounts of one.
fn ones(count: u64, order: u32) -> Result<IoBuf, CreateError> {
    let bytes = ((count << order).div_ceil(8)) as usize;
    let mut buf = IoBuf::zeroed(bytes);
    for index in 0..count {
        qcow2_layout::refcount_set(&mut buf, index, order, 1)?;
    }
    Ok(buf)
}
