//! An image switches to other files: copies of those that it is open on, or the same ones with something else over them.
//!
//! What memory has stays true only if the other files say the same. So the image comes to rest first: no request is in flight, and its file has
//! all metadata. Then every byte of metadata is compared. What guests wrote is not: a copy whose data is older than its metadata is not found.
//!
//! What follows from a file as such (where its holes are, what has its room, whether it grows) is not taken along: docs/internals/kept-values.md.

use std::ops::Range;
use std::sync::Arc;

use block::{Blame, BlockFuture};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use storage::{Capabilities, Hints, IoBuf, Storage};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{ArcSwapOption, RwLock};

use crate::compressed::Decompressed;
use crate::image::{Inner, Qcow2};
use crate::medium::Medium;
use crate::open::metadata_places;
use crate::options::Options;
use crate::overlap::{OverlapCheck, Section};
use crate::pause::HeldStill;
use crate::turns::Turns;
use crate::{Error, Files};

/// Bytes of metadata that are compared at once.
const COMPARED_BYTES: u64 = 512 << 10;

/// Comparisons that are in flight at the same time, each of two reads: bounds the memory to 4 MiB.
const COMPARED_AT_ONCE: usize = 4;

/// What the files are that an image switches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherFiles {
    /// Those that it is open on, with something else over them. Nothing is read through that, which may fail by design.
    Same,
    /// Copies: their metadata is compared, and they are made durable.
    Copies,
}

/// An image that is held still, and the same image on other files, which have all that its own have. Until [`OnOtherFiles::go_on`] the image
/// is where it was, and is so again when this is dropped.
#[derive(Debug)]
#[must_use = "the image is on its old files until it is resumed"]
pub struct OnOtherFiles<'a> {
    still: HeldStill<'a>,
    image: Qcow2,
}

impl<'a> HeldStill<'a> {
    /// The image, to switch to `files`; what lies below stays. Writes what is dirty to the files that it is on, makes that durable, and of copies
    /// reads all metadata of both: one 8,192th of the disk's data at clusters of 64 KiB.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] when `files` are not the same in length, kind or metadata, which the message tells;
    /// [`crate::ErrorKind::Refused`] when the image takes no more writes; what reading and writing fail with.
    pub fn on_other_files(
        self,
        files: Files,
        which: OtherFiles,
    ) -> BlockFuture<'a, Result<OnOtherFiles<'a>, Error>> {
        Box::pin(async move {
            let image = self.image;
            let Files { file, data, backing: _ } = files;
            check_alike(image, &image.medium.file, &file)?;
            let external = image.medium.geometry.external_data;
            let data = match (external, data) {
                (true, Some(data)) => {
                    check_alike(image, &image.medium.data, &data)?;
                    data
                }
                (false, None) => Arc::clone(&file),
                (needs, _) => {
                    let what =
                        if needs { "needs an external data file" } else { "has no external data file" };
                    return Err(image.medium.blame.invalid(format!("the image {what}")));
                }
            };
            if image.options.writable {
                image.check_writable()?;
                image.settle_map().await?;
                image.medium.barrier().await?;
            }
            // The last commit may have made them longer.
            check_length(&image.medium.file, &file)?;
            if external {
                check_length(&image.medium.data, &data)?;
            }
            if which == OtherFiles::Copies {
                compare_metadata(image, &file).await?;
            }
            // What was reported to guests as durable must be so there: who copied it may have left it in the page cache.
            if which == OtherFiles::Copies && image.options.writable {
                make_durable(&file).await?;
                if external {
                    make_durable(&data).await?;
                }
            }
            let image = image.on(file, data);
            Ok(OnOtherFiles { still: self, image })
        })
    }
}

impl OnOtherFiles<'_> {
    /// The image on its other files. It answers no request before [`OnOtherFiles::go_on`].
    pub fn image(&self) -> &Qcow2 {
        &self.image
    }

    /// The image is on its other files from now on. Older handles of it are those of a closed image; to close them does nothing. Waits for
    /// nothing, and reads and writes nothing.
    pub fn go_on(self) {
        let (old, new) = (self.still.image, &self.image.inner);
        old.turns.closing.store(true, Ordering::Relaxed);
        old.turns.went_on.store(true, Ordering::Release);
        let medium = &new.medium;
        new.space.go_on(&medium.file, &medium.blame, medium.geometry.cluster_bits);
        self.still.for_ever();
    }
}

impl Inner {
    /// The image on copies of its files, with all that memory has.
    fn on(&self, file: Arc<dyn Storage>, data: Arc<dyn Storage>) -> Qcow2 {
        let old = &self.medium;
        let plain = old.plain.as_ref().map(|plain| Arc::new(plain.over(Arc::clone(&data))));
        let tracking = self.tracking.on(&file);
        let inner = Inner {
            medium: Medium {
                blame: Blame::new(file.name()),
                host: Arc::clone(&old.host),
                file,
                data: plain.clone().map_or(data, |plain| plain as _),
                plain,
                by_guest: old.by_guest.clone(),
                encrypted: old.encrypted,
                raw_data: old.raw_data,
                geometry: old.geometry,
                overlap: Arc::clone(&old.overlap),
                health: Arc::clone(&old.health),
            },
            header: Arc::clone(&self.header),
            tracking,
            map: Arc::clone(&self.map),
            space: Arc::clone(&self.space),
            turns: Turns::default(),
            // What they hold is data, which was not compared.
            decompressed: Decompressed::new(self.decompressed.compression()),
            below: ArcSwapOption::from(self.below.load_full()),
            awaits_backing: AtomicBool::new(self.awaits_backing()),
            options: self.options,
            discards: RwLock::new(self.discards()),
            size: AtomicU64::new(self.size()),
            tables_charge: self.map.budget.charge(0),
        };
        inner.count_tables();
        Qcow2 { inner: Arc::new(inner) }
    }
}

/// Refuses a file that promises less than the image relies on.
fn check_alike(image: &Inner, old: &Arc<dyn Storage>, new: &Arc<dyn Storage>) -> Result<(), Error> {
    let (was, is) = (old.capabilities(), new.capabilities());
    let refused = |what: String| Err(Blame::new(new.name()).invalid(format!("{what}, as {}", old.name())));
    let lost = |has: fn(&Capabilities) -> bool| has(&was) && !has(&is);
    if image.options.writable && is.read_only {
        return refused("it is open for reading, and is not written".to_owned());
    }
    if was.resizable != is.resizable {
        let needed = if was.resizable { "a file that grows" } else { "a device that does not grow" };
        return refused(format!("it is not {needed}"));
    }
    if lost(|has| has.grows_zeroed) {
        return refused("what it grows by does not read as zeroes (locking=off, or no file)".to_owned());
    }
    if lost(|has| has.discards_to_zero) {
        return refused("what is discarded in it does not read as zeroes".to_owned());
    }
    if is.alignment > was.alignment {
        return refused(format!("it takes requests of {} bytes, and not of {}", is.alignment, was.alignment));
    }
    check_length(old, new)
}

fn check_length(old: &Arc<dyn Storage>, new: &Arc<dyn Storage>) -> Result<(), Error> {
    let (needed, found) = (old.length(), new.length());
    match found >= needed {
        true => Ok(()),
        false => {
            let old = old.name();
            let what = format!("it is no copy of {old}: it has {found} bytes; must be {needed} at least");
            Err(Blame::new(new.name()).invalid(what))
        }
    }
}

async fn make_durable(file: &Arc<dyn Storage>) -> Result<(), Error> {
    file.flush().await.map_err(Blame::new(file.name()).io("flushing"))
}

/// Refuses a file that has other metadata than the image's own. No request is in flight, and nothing is dirty.
async fn compare_metadata(image: &Inner, other: &Arc<dyn Storage>) -> Result<(), Error> {
    let Medium { file, blame, geometry, .. } = &image.medium;
    let header = image.header.lock().await.clone();
    let options = Options { overlap_check: OverlapCheck::ALL, ..image.options };
    let places = metadata_places(&**file, &header, geometry, &options, blame, &image.map.l1);
    let mut places = Box::pin(places).await?;
    let compared = stream::iter(places.runs(COMPARED_BYTES))
        .map(|(range, section)| compare(&**file, &**other, range, section))
        .buffer_unordered(COMPARED_AT_ONCE);
    compared.try_collect().await
}

async fn compare(
    file: &dyn Storage,
    other: &dyn Storage,
    range: Range<u64>,
    section: Section,
) -> Result<(), Error> {
    let len = (range.end - range.start) as usize;
    let (own, others) = futures_util::future::join(
        file.read(range.start, IoBuf::uninit(len), Hints::NONE),
        other.read(range.start, IoBuf::uninit(len), Hints::NONE),
    )
    .await;
    own.0.map_err(Blame::new(file.name()).io("reading metadata"))?;
    others.0.map_err(Blame::new(other.name()).io("reading metadata"))?;
    match own.1.iter().zip(others.1.iter()).position(|(own, other)| own != other) {
        None => Ok(()),
        Some(at) => {
            let (at, file) = (range.start + at as u64, file.name());
            let what =
                format!("it is no copy of {file} as it is now: its {section} at {at:#x} is another one");
            Err(Blame::new(other.name()).invalid(what))
        }
    }
}
