//! The way down a backing chain: each file found, opened, locked and looked at, the upper ones first.
//!
//! It is a loop: a chain of any length costs no stack, and one that is too long or contains a cycle is
//! refused before any of its data is touched. A name in an image is followed only where the policy allows it.
//!
//! Each file is locked first: header, length and format are read when no other process can change them, and
//! stay true as long as the lock is held (docs/internals/kept-values.md).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::qcow1;
use qcow2_layout::{Header, Incompatible};
use serde_json::{Map, Value, json};
use storage::{Hints, IoBuf, Storage};

use crate::drive::OptionTree;
use crate::drivers::{StorageKind, format_names, format_of_backing, required_header, storage_of};
use crate::error::OpenError;
use crate::extents::{DataFiles, VmdkFiles};
use crate::file::{OpenFile, Source, by_user};
use crate::names::{Followed, Identity, Reason, Refused, Role};
use crate::open_rules::OpenRules;
use crate::options::{DiskOptions, FileOptions, LayerOptions, OptionError};
use crate::probe::{Access, Format, PROBE_BYTES, decide, probe};

/// Where it is logged that a backing file of a guessed format is opened for its data.
pub const GUESSED: &str = "graph::chain::guessed";

/// One image of a chain, read so far by its header only; the engine has not opened it.
#[derive(Debug)]
pub struct FoundImage {
    /// Which file it is.
    pub(crate) identity: Identity,
    pub(crate) file: OpenFile,
    pub(crate) data: Option<OpenFile>,
    pub(crate) luks_header: Option<OpenFile>,
    pub(crate) format: Format,
    /// How it is to be opened.
    pub options: LayerOptions,
    /// `None` for raw.
    pub header: Option<Header>,
    /// Descriptor and extents of a vmdk image.
    pub vmdk: Option<VmdkFiles>,
    /// What the header of a qcow image of version 1 says.
    pub qcow1: Option<qcow1::Description>,
}

impl FoundImage {
    /// The image's file, locked as long as this is there.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.file.storage
    }

    /// The file that has the LUKS header of a LUKS image, where that is not the image's own, and the name of its driver.
    pub fn luks_header(&self) -> Option<(&Arc<dyn Storage>, &'static str)> {
        self.luks_header.as_ref().map(|header| (&header.storage, header.driver.name))
    }

    /// What the file holds.
    pub fn format(&self) -> Format {
        self.format
    }

    /// How the image is opened by itself: with the options that it has in the chain (a part of a raw file, a password, a server), from the
    /// same file, and read-only as there. Opening it fails if the name leads to another file by then.
    pub fn by_itself(&self) -> DiskOptions {
        let mut layer = self.options.clone();
        layer.file = self.file.origin.options(&self.options.file);
        layer.format = Some(self.format);
        DiskOptions { layer, ..DiskOptions::of_path(self.file.storage.name()) }
    }

    /// Whether the user's options said which file it is, rather than the image above.
    pub fn is_named_by_options(&self) -> bool {
        self.options.file.is_named()
    }

    /// What leads to the file from everywhere: a full path, or what its driver calls it.
    pub fn full_name(&self) -> String {
        self.file.origin.full_name()
    }

    /// The name of the file's driver: `file`, `host_device`.
    pub fn file_driver(&self) -> &'static str {
        self.file.driver.name
    }
}

/// A walk down a chain, image by image.
#[derive(Debug)]
pub struct ChainWalk<'a> {
    rules: &'a OpenRules,
    data_files: DataFiles,
    /// What the user calls the active image.
    given: PathBuf,
    next: Option<(Source, LayerOptions)>,
    met: Vec<Identity>,
}

impl<'a> ChainWalk<'a> {
    /// As [`Self::new`], of options whose disks in the place of files are known.
    pub(crate) fn from(
        options: &DiskOptions,
        rules: &'a OpenRules,
        data_files: DataFiles,
    ) -> Result<Self, OpenError> {
        options.check_without_filters()?;
        let writable = !options.layer.read_only;
        let source = Source::by_options(&options.layer.file, &rules.fd_sets, writable)?;
        let source = source.map_or_else(|| by_user(&options.filename, &rules.fd_sets, writable), Ok)?;
        let next = Some((source, options.layer.clone()));
        Ok(Self { rules, data_files, given: options.filename.clone(), next, met: Vec::new() })
    }

    /// Opens, locks and looks at the next image; `None` below the last one. Only the first is opened for writing, if its
    /// options say so. Reads its header and nothing else; follows no name in it before the next step.
    ///
    /// # Errors
    /// When it cannot be opened, or its format is not known or not what was said.
    pub async fn next(&mut self, above: Option<&FoundImage>) -> Result<Option<FoundImage>, OpenError> {
        if let Some(above) = above {
            self.next = below(above, self.rules)?;
        }
        let Some((source, options)) = self.next.take() else { return Ok(None) };
        let identity = source.identity();
        if let Some(at) = self.met.iter().position(|met| *met == identity) {
            return Err(OpenError::Cycle { path: source.path(), down: self.met.len(), at });
        }
        if self.met.len() == self.rules.chain_max {
            return Err(OpenError::ChainTooLong { max: self.rules.chain_max });
        }
        let active = self.met.is_empty();
        self.met.push(identity);
        self.look_at(source, options, active).await.map(Some)
    }

    async fn look_at(
        &self,
        source: Source,
        options: LayerOptions,
        active: bool,
    ) -> Result<FoundImage, OpenError> {
        let writable = active && !options.read_only;
        let identity = source.identity();
        let path = source.path();
        let shown: &Path = if active { &self.given } else { &path };
        let name = shown.display().to_string();
        let file = match active {
            true => source.open_active(self.rules, &name, &options.file, &options, writable).await?,
            false => source.open_shared(&self.rules.shared_files, &name, &options.file, &options).await?,
        };
        let format = format_of(&file, &options, writable).await?;
        if !active && options.format.is_none() {
            warn_of_guess(&path, format, self.data_files);
        }
        options.check_format(format).map_err(|source| OpenError::Options { path: path.clone(), source })?;
        let header = match format {
            Format::Qcow2 => Some(qcow2::read_header(&*file.storage).await?),
            _ => None,
        };
        let data = match &header {
            _ if self.data_files == DataFiles::Leave => None,
            Some(header) if header.incompatible.contains(Incompatible::EXTERNAL_DATA) => {
                let data = open_data_file(&file, header, &options, writable, self.rules).await?;
                if !options.data_file.is_named() {
                    warn_of_data_file(&path, &data, writable);
                }
                Some(data)
            }
            _ if options.data_file.is_named() => {
                return Err(OpenError::Options { path, source: OptionError::NoDataFile });
            }
            _ => None,
        };
        let luks_header = match Source::by_options(&options.luks_header, &self.rules.fd_sets, false)? {
            Some(source) => Some(open_luks_header(source, &options).await?),
            None => None,
        };
        let vmdk = match format {
            Format::Vmdk => {
                Some(VmdkFiles::find(&file, &options, &self.rules.policy, self.data_files).await?)
            }
            _ => None,
        };
        let qcow1 = match format {
            Format::Qcow => Some(qcow1::describe(&*file.storage).await?),
            _ => None,
        };
        Ok(FoundImage { identity, file, data, luks_header, format, options, header, vmdk, qcow1 })
    }
}

/// Where the content decides whether a backing file is raw, its writer decides: a guest whose raw disk it
/// was, for one. What will be read as that has a place of its own in the log ([`GUESSED`]).
fn warn_of_guess(path: &Path, format: Format, data_files: DataFiles) {
    let message = format!(
        "{}: the image over it does not say in which format it is; its content looks like {}. If others write that content, they decide: \
         `rebase -u -b FILE -F FORMAT OVERLAY` records the format",
        path.display(),
        format.name()
    );
    match data_files {
        DataFiles::Open => tracing::warn!(target: GUESSED, "{message}"),
        DataFiles::Leave => tracing::warn!("{message}"),
    }
}

/// The image alone says which file of its directory holds the disk. It may say: that of another guest.
fn warn_of_data_file(path: &Path, data: &OpenFile, writable: bool) {
    let does = if writable { "reads and writes" } else { "reads" };
    tracing::warn!(
        "{}: by this image's own word its guest {does} {}; of an image that others made, keep nothing else in the directory, or name the file \
         (data-file.filename=)",
        path.display(),
        data.place.real().display()
    );
}

/// Where the backing file of `above` is and how it is opened, if there is one.
fn below(above: &FoundImage, rules: &OpenRules) -> Result<Option<(Source, LayerOptions)>, OpenError> {
    let backing = match (&above.header, &above.vmdk) {
        (Some(header), _) => header.backing.as_deref(),
        (None, Some(vmdk)) => vmdk.description.descriptor.parent(),
        (None, None) => match &above.qcow1 {
            Some(qcow1) => qcow1.backing.as_deref(),
            None => return Ok(None),
        },
    };
    let Some(mut layer) = above.options.below() else { return Ok(None) };
    let in_header = backing.filter(|_| !layer.file.is_named());
    if let Some(options) = in_header.and_then(|name| rules.policy.allowed_options(name)) {
        layer = below_as_allowed(above, layer, options)?;
    } else if let Some(name) = in_header
        && let Some(file) = over_a_file(above, name.as_bytes(), rules)?
    {
        (layer.file.driver, layer.file.over) = (file.driver, file.over);
    }
    let source = match (Source::by_options(&layer.file, &rules.fd_sets, false)?, backing) {
        (Some(by_option), _) => by_option,
        (None, Some(name)) => {
            Source::followed(rules.policy.resolve(&above.file.place, name.as_bytes(), Role::Backing)?)
        }
        (None, None) => return Ok(None),
    };
    if layer.format.is_none() {
        layer.format = named_format(above)?;
    }
    if layer.format.is_none() && rules.policy.wants_format() {
        let image = above.file.place.given().to_owned();
        let name = backing.map_or_else(|| source.path().into_os_string(), |name| name.to_owned().into());
        let role = Role::Backing.words();
        return Err(OpenError::from(Refused { image, role, name, reason: Reason::NoFormat }));
    }
    Ok(Some((source, layer)))
}

/// How the backing file of `above` is opened that its header describes by `options`, which are allowed. What else the user said of it (`layer`) counts as it
/// does of others: caches and locks.
fn below_as_allowed(
    above: &FoundImage,
    layer: LayerOptions,
    options: OptionTree,
) -> Result<LayerOptions, OpenError> {
    let refused = |source| OpenError::Options { path: above.file.place.given().to_owned(), source };
    let described = DiskOptions::of_tree(options).map_err(refused)?;
    described.check_without_filters()?;
    let mut below = described.layer;
    below.format = layer.format.or(below.format);
    below.file.aio = layer.file.aio;
    (below.file.direct, below.file.no_flush) = (layer.file.direct, layer.file.no_flush);
    below.file.locking = layer.file.locking;
    below.backing = layer.backing;
    Ok(below)
}

/// The file that `name` means if it begins as names of storage over another file do (`blkdebug:CONFIG:FILE`) and backing files are followed wherever they
/// lead. The files in the name are followed as one of a backing file is.
fn over_a_file(above: &FoundImage, name: &[u8], rules: &OpenRules) -> Result<Option<FileOptions>, OpenError> {
    let Some(name) = std::str::from_utf8(name).ok().filter(|_| rules.policy.follows_backing()) else {
        return Ok(None);
    };
    let Some(driver) = storage_of(Path::new(name)) else { return Ok(None) };
    let StorageKind::Over(over) = &driver.kind else { return Ok(None) };
    let place = &above.file.place;
    let refused = |reason| {
        let image = place.given().to_owned();
        OpenError::from(Refused { image, role: "backing file", name: name.into(), reason })
    };
    let follow = |value: &Value| {
        let name = value.as_str().unwrap_or_default();
        match rules.policy.resolve(place, name.as_bytes(), Role::Backing)? {
            Followed::File(located) => Ok(located),
            Followed::Elsewhere(driver, _) => {
                Err(refused(Reason::Protocol { protocol: driver.name.to_owned() }))
            }
        }
    };
    let tree = (over.options_of)(name).map_err(|allowed| refused(Reason::Malformed { allowed }))?;
    let mut file = tree.to_json().unwrap_or_default();
    file.insert("driver".to_owned(), Value::from(driver.name));
    if let Some(config) = file.get_mut("config") {
        *config = Value::from(follow(config)?.path().to_string_lossy());
    }
    let below = follow(file.get(over.child).map_or(&Value::Null, |below| &below["filename"]))?;
    file.insert(over.child.to_owned(), json!({ "filename": below.place().given() }));
    let disk =
        Map::from_iter([("driver".to_owned(), json!("raw")), ("file".to_owned(), Value::Object(file))]);
    let malformed = |error: String| refused(Reason::Malformed { allowed: error });
    let tree = OptionTree::of_json(disk).map_err(|error| malformed(error.to_string()))?;
    let mut file = DiskOptions::of_tree(tree).map_err(|error| malformed(error.to_string()))?.layer.file;
    if let Some(over) = &mut file.over {
        over.below.must_be = Some(below.identity());
    }
    Ok(Some(file))
}

/// The format that the overlay's header gives its backing file; without one, the content decides. Below a vmdk image is one.
fn named_format(above: &FoundImage) -> Result<Option<Format>, OpenError> {
    let Some(header) = &above.header else { return Ok(above.vmdk.as_ref().map(|_| Format::Vmdk)) };
    let Some(found) = &header.extensions.backing_format else { return Ok(None) };
    let unknown = || OpenError::BackingFormat {
        path: above.file.place.real().to_owned(),
        found: found.clone(),
        allowed: format_names(),
    };
    format_of_backing(found).map(Some).ok_or_else(unknown)
}

pub(crate) async fn format_of(
    file: &OpenFile,
    options: &LayerOptions,
    writable: bool,
) -> Result<Format, OpenError> {
    // A disk of a given format without a header is opened also where its first bytes cannot be read: to be rescued, or written anew.
    if let Some(asked) = options.format.filter(|asked| required_header(*asked).is_none()) {
        return Ok(asked);
    }
    let len = PROBE_BYTES.min(usize::try_from(file.storage.length()).unwrap_or(PROBE_BYTES));
    let (result, start) = file.storage.read(0, IoBuf::uninit(len), Hints::NONE).await;
    result.map_err(|source| OpenError::Find { path: file.place.real().to_owned(), source })?;
    let access = if writable { Access::Write } else { Access::Read };
    decide(options.format, probe(&start), access)
        .map_err(|source| OpenError::Format { path: file.place.real().to_owned(), source })
}

/// Only for reading: nothing of a LUKS header is written while its disk is open.
async fn open_luks_header(source: Source, options: &LayerOptions) -> Result<OpenFile, OpenError> {
    let name = options.luks_header.shown().unwrap_or_else(|| source.path());
    source.open(&name.display().to_string(), &options.luks_header, options, false).await
}

async fn open_data_file(
    image: &OpenFile,
    header: &Header,
    options: &LayerOptions,
    writable: bool,
    rules: &OpenRules,
) -> Result<OpenFile, OpenError> {
    let by_options = Source::by_options(&options.data_file, &rules.fd_sets, writable)?;
    let source = match (by_options, &header.extensions.data_file) {
        (Some(by_option), _) => by_option,
        (None, Some(name)) => {
            Source::followed(rules.policy.resolve(&image.place, name.as_bytes(), Role::Data)?)
        }
        (None, None) => {
            let error = std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "the image keeps its data in another file but does not name it; give data-file.filename=PATH",
            );
            return Err(OpenError::Find { path: image.place.real().to_owned(), source: error });
        }
    };
    if source.path() == image.place.real() {
        return Err(OpenError::DataIsImage { path: image.place.real().to_owned() });
    }
    let name = source.path().display().to_string();
    source.open(&name, &options.data_file, options, writable).await
}
