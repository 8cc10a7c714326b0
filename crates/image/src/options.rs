//! The options of a drive: from a tree of texts to values that cannot be wrong.
//!
//! Names, defaults and rules are QEMU's (FACTS 1.4, 1.5). What depends on the image itself (a cache
//! entry larger than its clusters, lazy refcounts in version 2) is checked when it is opened.

mod error;
mod reader;
#[cfg(test)]
mod tests;
mod throttling;
#[cfg(test)]
mod throttling_tests;

use std::path::PathBuf;

use qcow2::cache_sizes::CacheRequest;
use qcow2::{OverlapCheck, Section};

pub use self::error::OptionError;
use self::reader::Reader;
pub use self::throttling::{DiscardCharge, ThrottleOptions};
use crate::cache_mode::CacheMode;
use crate::drive::OptionTree;
use crate::probe::Format;

/// Seconds after which an unused cache entry is dropped, unless said otherwise: ten minutes, long
/// enough that a working set stays, short enough that an idle guest gives its memory back.
pub const CACHE_CLEAN_INTERVAL_S_DEFAULT: u32 = 600;

/// A drive to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// `id`: how exports and messages call it.
    pub id: Option<String>,
    /// The image.
    pub filename: PathBuf,
    /// How it is opened.
    pub layer: LayerOptions,
    /// `throttling.*`: its limits.
    pub throttling: ThrottleOptions,
}

/// How one image of a chain is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerOptions {
    /// `node-name`.
    pub node_name: Option<String>,
    /// `driver` or `format`; `None`: the overlay's header says, or the content does.
    pub format: Option<Format>,
    /// `cache`, `cache.direct`, `cache.no-flush`, `cache.writeback`.
    pub cache: CacheMode,
    /// `discard`.
    pub discard: Discard,
    /// `detect-zeroes`.
    pub detect_zeroes: DetectZeroes,
    /// `read-only`. Always set below the active layer.
    pub read_only: bool,
    /// `force-share`: read without regard for who else writes.
    pub force_share: bool,
    /// `file.*`.
    pub file: FileOptions,
    /// `data-file.*`.
    pub data_file: FileOptions,
    /// Options that only qcow2 images have.
    pub qcow2: Qcow2Options,
    /// `backing.*`.
    pub backing: Backing,
    /// The first option given that only a qcow2 image can take, by full name.
    qcow2_option: Option<String>,
}

/// How the file below an image is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// `filename`: instead of the name that the image (or its overlay) gives.
    pub filename: Option<PathBuf>,
    /// `aio`; `None`: the best that the kernel permits.
    pub aio: Option<Aio>,
    /// `cache.direct`: O_DIRECT.
    pub direct: bool,
    /// `cache.no-flush`.
    pub no_flush: bool,
    /// `locking`: `off` takes no locks.
    pub locking: bool,
}

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// Submission and completion rings.
    IoUring,
    /// Blocking calls on a pool of threads.
    Threads,
}

/// What a guest's discard does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Nothing.
    Ignore,
    /// Clusters are freed, and with them space in the file.
    Unmap,
}

/// What a write of zeroes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectZeroes {
    /// It is a write like any other.
    Off,
    /// It becomes a write-zeroes request.
    On,
    /// As `On`, and space may be given back.
    Unmap,
}

/// Options of a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qcow2Options {
    /// `cache-size`, `l2-cache-size`, `l2-cache-entry-size`, `refcount-cache-size`.
    pub caches: CacheRequest,
    /// `cache-clean-interval` in seconds; 0 is never.
    pub cache_clean_interval_s: u32,
    /// `lazy-refcounts`; `None`: as the image's header says.
    pub lazy_refcounts: Option<bool>,
    /// `pass-discard-request`: what the guest discards gives its space back.
    pub pass_discard_request: bool,
    /// `pass-discard-snapshot`: what a deleted snapshot held gives its space back.
    pub pass_discard_snapshot: bool,
    /// `pass-discard-other`: so does everything else that is freed.
    pub pass_discard_other: bool,
    /// `discard-no-unref`: a discarded cluster keeps its place in the file.
    pub discard_no_unref: bool,
    /// `overlap-check*`.
    pub overlap_check: OverlapCheck,
}

/// What lies under an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// What its header names.
    AsInImage,
    /// Nothing, whatever its header names (`backing=` or JSON null).
    None,
    /// What its header names, or `file.filename` if that is given, with these options.
    With(Box<LayerOptions>),
}

const FORMATS: [(&str, Format); 2] = [("qcow2", Format::Qcow2), ("raw", Format::Raw)];
const AIO: [(&str, Aio); 2] = [("io_uring", Aio::IoUring), ("threads", Aio::Threads)];
const DISCARD: [(&str, Discard); 4] = [
    ("ignore", Discard::Ignore),
    ("off", Discard::Ignore),
    ("unmap", Discard::Unmap),
    ("on", Discard::Unmap),
];
const DETECT_ZEROES: [(&str, DetectZeroes); 3] =
    [("off", DetectZeroes::Off), ("on", DetectZeroes::On), ("unmap", DetectZeroes::Unmap)];
const FILE_DRIVERS: [(&str, ()); 2] = [("file", ()), ("host_device", ())];
const LOCKING: [(&str, bool); 3] = [("auto", true), ("on", true), ("off", false)];

/// Options of a layer that only a qcow2 image takes.
const QCOW2_NAMES: [&str; 23] = [
    "l2-cache-size",
    "l2-cache-entry-size",
    "refcount-cache-size",
    "cache-size",
    "cache-clean-interval",
    "lazy-refcounts",
    "pass-discard-request",
    "pass-discard-snapshot",
    "pass-discard-other",
    "discard-no-unref",
    "overlap-check",
    "overlap-check.template",
    "overlap-check.main-header",
    "overlap-check.active-l1",
    "overlap-check.active-l2",
    "overlap-check.refcount-table",
    "overlap-check.refcount-block",
    "overlap-check.snapshot-table",
    "overlap-check.inactive-l1",
    "overlap-check.inactive-l2",
    "overlap-check.bitmap-directory",
    "backing",
    "data-file",
];

/// Options that every layer takes.
const LAYER_NAMES: [&str; 14] = [
    "node-name",
    "driver",
    "format",
    "cache",
    "cache.direct",
    "cache.no-flush",
    "cache.writeback",
    "aio",
    "discard",
    "detect-zeroes",
    "read-only",
    "readonly",
    "force-share",
    "file",
];

/// Options of a file.
const FILE_NAMES: [&str; 7] =
    ["driver", "filename", "aio", "cache.direct", "cache.no-flush", "locking", "node-name"];

/// Options that QEMU's `-drive` takes beside the image's own.
const ELSEWHERE: [(&str, &str); 11] = [
    ("if", "the guest's device"),
    ("media", "the guest's device"),
    ("bus", "the guest's device"),
    ("unit", "the guest's device"),
    ("index", "the guest's device"),
    ("addr", "the guest's device"),
    ("serial", "the guest's device"),
    ("werror", "the guest's device"),
    ("rerror", "the guest's device"),
    ("snapshot", "the virtual machine's session"),
    ("copy-on-read", "a filter over the image"),
];

/// Options of the disk as a whole, which its lower images do not have.
const ELSEWHERE_BELOW: [(&str, &str); 1] = [("throttling", "the disk as a whole")];

/// Whether `key` (dotted) names an option, so that `key=...` cannot well be meant as a path.
pub fn is_option_name(key: &str) -> bool {
    let part = key.split('.').next().unwrap_or(key);
    let layer = LAYER_NAMES.iter().chain(&QCOW2_NAMES);
    let known = layer.chain(ELSEWHERE.iter().map(|(name, _)| name)).any(|known| *known == part);
    known || key == "id" || part == "throttling" || throttling::is_legacy_name(key)
}

/// What a layer has from the one above it.
#[derive(Clone, Copy, Debug)]
struct Inherited {
    cache: CacheMode,
    aio: Option<Aio>,
    force_share: bool,
    /// Below the active layer.
    backing: bool,
}

impl DiskOptions {
    /// Checks every option of `tree`.
    ///
    /// # Errors
    /// For the first option that is unknown, has a value it does not take, or contradicts another.
    pub fn of_tree(tree: OptionTree) -> Result<Self, OptionError> {
        let mut reader = Reader::new(tree, String::new());
        let id = reader.text("id")?;
        let throttling = throttling::read(&mut reader)?;
        let top = Inherited { cache: CacheMode::default(), aio: None, force_share: false, backing: false };
        let layer = LayerOptions::read(reader, top)?;
        let filename = layer.file.filename.clone().ok_or(OptionError::NoFile)?;
        Ok(Self { id, filename, layer, throttling })
    }

    /// A drive that is a path and nothing else.
    pub fn of_path(filename: impl Into<PathBuf>) -> Self {
        let filename = filename.into();
        let top = Inherited { cache: CacheMode::default(), aio: None, force_share: false, backing: false };
        let mut layer = LayerOptions::defaults(top);
        layer.file.filename = Some(filename.clone());
        Self { id: None, filename, layer, throttling: ThrottleOptions::default() }
    }
}

impl LayerOptions {
    /// The options of the image below this one, as far as they do not come from its overlay's
    /// header; `None` if there must be no image below.
    pub fn below(&self) -> Option<LayerOptions> {
        match &self.backing {
            Backing::None => None,
            Backing::With(layer) => Some((**layer).clone()),
            Backing::AsInImage => Some(Self::defaults(self.inherited())),
        }
    }

    /// Refuses options that an image of `format` does not have.
    ///
    /// # Errors
    /// When a raw image was given an option of qcow2.
    pub fn check_format(&self, format: Format) -> Result<(), OptionError> {
        match (&self.qcow2_option, format) {
            (Some(option), Format::Raw) => {
                Err(OptionError::Format { option: option.clone(), format: format.name() })
            }
            _ => Ok(()),
        }
    }

    fn inherited(&self) -> Inherited {
        Inherited { cache: self.cache, aio: self.file.aio, force_share: self.force_share, backing: true }
    }

    fn defaults(above: Inherited) -> Self {
        Self {
            node_name: None,
            format: None,
            cache: above.cache,
            discard: Discard::Ignore,
            detect_zeroes: DetectZeroes::Off,
            read_only: above.backing,
            force_share: above.force_share,
            file: FileOptions::defaults(above.cache, above.aio),
            data_file: FileOptions::defaults(above.cache, above.aio),
            qcow2: Qcow2Options::defaults(Discard::Ignore),
            backing: Backing::AsInImage,
            qcow2_option: None,
        }
    }

    fn read(mut reader: Reader, above: Inherited) -> Result<Self, OptionError> {
        let qcow2_option = reader.first_of(&QCOW2_NAMES);
        let format = reader.either(["driver", "format"], |reader, name| reader.choice(name, &FORMATS))?;
        let cache = read_cache(&mut reader, above.cache)?;
        let aio = reader.choice("aio", &AIO)?.or(above.aio);
        let discard = reader.choice("discard", &DISCARD)?.unwrap_or(Discard::Ignore);
        let detect_zeroes = read_detect_zeroes(&mut reader, discard)?;
        let read_only = read_read_only(&mut reader, above.backing)?;
        let force_share = reader.switch("force-share")?.unwrap_or(above.force_share);
        if force_share && !read_only {
            return Err(OptionError::Conflict {
                option: reader.full("force-share"),
                other: reader.full("read-only"),
                rule: "an image can be shared by force only for reading; give read-only=on",
            });
        }
        let mut layer = Self {
            node_name: reader.text("node-name")?,
            format,
            cache,
            discard,
            detect_zeroes,
            read_only,
            force_share,
            file: FileOptions::read(reader.group("file")?, cache, aio)?,
            data_file: FileOptions::read(reader.group("data-file")?, cache, aio)?,
            qcow2: Qcow2Options::read(&mut reader, discard)?,
            backing: Backing::AsInImage,
            qcow2_option,
        };
        layer.backing = match reader.group("backing")? {
            None => Backing::None,
            Some(group) if group.is_empty() => Backing::AsInImage,
            Some(group) => Backing::With(Box::new(Self::read(group, layer.inherited())?)),
        };
        let mut known = [&LAYER_NAMES[..], &QCOW2_NAMES[..]].concat();
        let mut elsewhere = ELSEWHERE.to_vec();
        match above.backing {
            true => elsewhere.extend(ELSEWHERE_BELOW),
            false => known.extend(throttling::legacy_names()),
        }
        reader.finish(&known, &elsewhere)?;
        if let Some(format) = format {
            layer.check_format(format)?;
        }
        Ok(layer)
    }
}

fn read_cache(reader: &mut Reader, above: CacheMode) -> Result<CacheMode, OptionError> {
    let mut cache = reader.choice("cache", &CacheMode::NAMED)?.unwrap_or(above);
    if let Some(direct) = reader.switch("cache.direct")? {
        cache.direct = direct;
    }
    if let Some(no_flush) = reader.switch("cache.no-flush")? {
        cache.no_flush = no_flush;
    }
    if let Some(writeback) = reader.switch("cache.writeback")? {
        cache.writethrough = !writeback;
    }
    Ok(cache)
}

fn read_detect_zeroes(reader: &mut Reader, discard: Discard) -> Result<DetectZeroes, OptionError> {
    let detect_zeroes = reader.choice("detect-zeroes", &DETECT_ZEROES)?.unwrap_or(DetectZeroes::Off);
    if detect_zeroes == DetectZeroes::Unmap && discard != Discard::Unmap {
        return Err(OptionError::Conflict {
            option: reader.full("detect-zeroes"),
            other: reader.full("discard"),
            rule: "detect-zeroes=unmap needs discard=unmap",
        });
    }
    Ok(detect_zeroes)
}

fn read_read_only(reader: &mut Reader, backing: bool) -> Result<bool, OptionError> {
    let read_only = reader.either(["read-only", "readonly"], Reader::switch)?;
    if backing && read_only == Some(false) {
        return Err(reader.value("read-only", "off", "on (nothing below the active layer is written)"));
    }
    Ok(read_only.unwrap_or(backing))
}

impl FileOptions {
    fn defaults(cache: CacheMode, aio: Option<Aio>) -> Self {
        Self { filename: None, aio, direct: cache.direct, no_flush: cache.no_flush, locking: true }
    }

    fn read(group: Option<Reader>, cache: CacheMode, aio: Option<Aio>) -> Result<Self, OptionError> {
        let defaults = Self::defaults(cache, aio);
        let Some(mut reader) = group else { return Ok(defaults) };
        reader.choice("driver", &FILE_DRIVERS)?;
        reader.text("node-name")?;
        let options = Self {
            filename: reader.path("filename")?,
            aio: reader.choice("aio", &AIO)?.or(defaults.aio),
            direct: reader.switch("cache.direct")?.unwrap_or(defaults.direct),
            no_flush: reader.switch("cache.no-flush")?.unwrap_or(defaults.no_flush),
            locking: reader.choice("locking", &LOCKING)?.unwrap_or(defaults.locking),
        };
        reader.finish(&FILE_NAMES, &[])?;
        Ok(options)
    }
}

impl Qcow2Options {
    fn defaults(discard: Discard) -> Self {
        Self {
            caches: CacheRequest::default(),
            cache_clean_interval_s: CACHE_CLEAN_INTERVAL_S_DEFAULT,
            lazy_refcounts: None,
            pass_discard_request: discard == Discard::Unmap,
            pass_discard_snapshot: true,
            pass_discard_other: false,
            discard_no_unref: false,
            overlap_check: OverlapCheck::default(),
        }
    }

    fn read(reader: &mut Reader, discard: Discard) -> Result<Self, OptionError> {
        let defaults = Self::defaults(discard);
        Ok(Self {
            caches: CacheRequest {
                total_bytes: reader.size("cache-size")?,
                l2_bytes: reader.size("l2-cache-size")?,
                l2_entry_bytes: reader.size("l2-cache-entry-size")?,
                refcount_bytes: reader.size("refcount-cache-size")?,
            },
            cache_clean_interval_s: reader
                .whole_number("cache-clean-interval")?
                .unwrap_or(defaults.cache_clean_interval_s),
            lazy_refcounts: reader.switch("lazy-refcounts")?,
            pass_discard_request: reader
                .switch("pass-discard-request")?
                .unwrap_or(defaults.pass_discard_request),
            pass_discard_snapshot: reader
                .switch("pass-discard-snapshot")?
                .unwrap_or(defaults.pass_discard_snapshot),
            pass_discard_other: reader.switch("pass-discard-other")?.unwrap_or(defaults.pass_discard_other),
            discard_no_unref: reader.switch("discard-no-unref")?.unwrap_or(defaults.discard_no_unref),
            overlap_check: read_overlap_check(reader)?,
        })
    }
}

fn read_overlap_check(reader: &mut Reader) -> Result<OverlapCheck, OptionError> {
    let names = ["overlap-check", "overlap-check.template"];
    let template = reader.either(names, |reader, name| reader.choice(name, &OverlapCheck::NAMED))?;
    let mut check = template.unwrap_or_default();
    for section in Section::ALL {
        if let Some(on) = reader.switch(&format!("overlap-check.{section}"))? {
            check = check.with(section, on);
        }
    }
    Ok(check)
}
