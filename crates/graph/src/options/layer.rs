//! How one image of a chain is opened: the fields, and the part of the table that every format has.

use qcow2::Prefetch;
use qcow2_layout::CryptMethod;

use super::entry::{At, Entry, at, choice_at, first_given, in_group, read_all};
use super::error::OptionError;
use super::file::{AIO, Aio, FileOptions};
use super::qcow2::Qcow2Options;
use super::raw::RawOptions;
use super::reader::Reader;
use super::spec::{Changes, Group, Kind, Qmp};
use super::table;
use crate::cache_mode::CacheMode;
use crate::drive::OptionTree;
use crate::drivers::{FormatDriver, format_drivers, formats};
use crate::format::Format;

/// How one image of a chain is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerOptions {
    /// `node-name`.
    pub node_name: Option<String>,
    /// `driver` or `format`; `None`: the overlay's header says, or the content does.
    pub format: Option<Format>,
    /// `cache`, `cache.direct`, `cache.no-flush`, `cache.writeback`. Files and backing files inherit it: set
    /// with [`DiskOptions::set_cache`](super::DiskOptions::set_cache).
    pub(crate) cache: CacheMode,
    /// `aio`: for files that do not say it themselves. Set with [`DiskOptions::set_aio`](super::DiskOptions::set_aio).
    pub(crate) aio: Option<Aio>,
    /// `discard`.
    pub discard: Discard,
    /// `detect-zeroes`.
    pub detect_zeroes: DetectZeroes,
    /// `read-only`. Always set below the active layer.
    pub read_only: bool,
    /// `force-share`: read without regard for other writers. Set with [`DiskOptions::set_force_share`](super::DiskOptions::set_force_share).
    pub(crate) force_share: bool,
    /// `file.*`.
    pub file: FileOptions,
    /// `data-file.*`.
    pub data_file: Box<FileOptions>,
    /// `header.*`: the file of a LUKS header, where that is not in front of the data.
    pub luks_header: Box<FileOptions>,
    /// `bitmaps.*`: the file with the bitmaps of a disk that is no qcow2 image.
    pub bitmaps: Box<FileOptions>,
    /// Options that only qcow2 images have.
    pub qcow2: Qcow2Options,
    /// Options that only raw images have.
    pub raw: RawOptions,
    /// `encrypt.format`: what the image must be encrypted with.
    pub encryption: Option<Encryption>,
    /// `encrypt.key-secret`, or `key-secret` of a LUKS file: the id of its password.
    pub key_secret: Option<String>,
    /// `backing.*`.
    pub backing: Backing,
    /// The first option given that only images of one format can take, by full name: at most one a format.
    pub(super) of_formats: Vec<(Format, String)>,
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

/// How images are encrypted that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// LUKS, version 1.
    Luks,
    /// AES-128 in CBC mode with the password as the key: as it was before LUKS. Only read.
    Aes,
}

impl Encryption {
    /// All of them, with QEMU's names.
    pub const NAMED: [(&'static str, Self); 2] = [("luks", Self::Luks), ("aes", Self::Aes)];

    /// QEMU's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Luks => "luks",
            Self::Aes => "aes",
        }
    }

    /// What the header of such an image says.
    pub fn method(self) -> CryptMethod {
        match self {
            Self::Luks => CryptMethod::Luks,
            Self::Aes => CryptMethod::Aes,
        }
    }
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
const DISCARD: [(&str, Discard); 4] = [
    ("ignore", Discard::Ignore),
    ("off", Discard::Ignore),
    ("unmap", Discard::Unmap),
    ("on", Discard::Unmap),
];
const DETECT_ZEROES: [(&str, DetectZeroes); 3] =
    [("off", DetectZeroes::Off), ("on", DetectZeroes::On), ("unmap", DetectZeroes::Unmap)];

/// The part of the table for images of any format. What stands later overrides what stands before it.
pub const LAYER: &[Entry<LayerOptions>] = &in_group(
    Group::Layer,
    [
        Entry::text("node-name", at!(LayerOptions, node_name), "the image's name among the nodes")
            .default_follows("the name of its export"),
        Entry::driver(
            "driver",
            Kind::Format,
            |layer: &LayerOptions| Some(layer.format?.name()),
            "its format",
        )
        .alias("format")
        .default_follows("what its overlay or its first bytes say"),
        Entry::part("file", Kind::File, "the image").needed(),
        Entry::part(
            "bitmaps",
            Kind::File,
            "the file that keeps the bitmaps of a disk that is no qcow2 image; made where there is none",
        )
        .default_follows("none, and such a disk has no bitmaps"),
        Entry::choice(
            "cache",
            choice_at!(LayerOptions, CacheMode::NAMED, cache),
            "what a completed write and a flush mean: the three below at once",
        )
        .default_follows("writeback; below the active image as above")
        .changes(Changes::AsItsParts)
        .qmp(Qmp::None),
        Entry::switch(
            "cache.direct",
            at!(LayerOptions, cache.direct),
            "bypass the host's page cache (O_DIRECT)",
        )
        .default_follows("what cache says"),
        Entry::switch(
            "cache.no-flush",
            at!(LayerOptions, cache.no_flush),
            "do not flush: what was acknowledged may be lost with the machine",
        )
        .default_follows("what cache says"),
        Entry::switch(
            "cache.writeback",
            At {
                set: |layer: &mut LayerOptions, on: bool| layer.cache.writethrough = !on,
                get: |layer: &LayerOptions| Some(!layer.cache.writethrough),
            },
            "a write may complete before it is on disk",
        )
        .default_follows("what cache says")
        .reopens()
        .qmp(Qmp::None),
        Entry::choice(
            "aio",
            choice_at!(LayerOptions, AIO, aio),
            "how requests reach the kernel, where the file does not say it",
        )
        .default_follows("the best that the kernel permits")
        .qmp(Qmp::None),
        Entry::choice(
            "discard",
            choice_at!(LayerOptions, DISCARD, discard),
            "what a guest's discard does: nothing, or free space",
        )
        .default("ignore")
        .reopens()
        .qmp(Qmp::Values(&["ignore", "unmap"])),
        Entry::choice(
            "detect-zeroes",
            choice_at!(LayerOptions, DETECT_ZEROES, detect_zeroes),
            "what a write of zeroes does: as any, write zeroes, or free space (with discard=unmap)",
        )
        .reopens(),
        Entry::switch("read-only", at!(LayerOptions, read_only), "refuse every write")
            .alias("readonly")
            .default_follows("off; below the active image on")
            .reopens(),
        Entry::switch(
            "force-share",
            at!(LayerOptions, force_share),
            "read though others may write (with read-only=on)",
        )
        .default_follows("off; below the active image as above"),
    ],
);

/// What a layer has from the one above it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited {
    pub(super) cache: CacheMode,
    pub(super) aio: Option<Aio>,
    pub(super) force_share: bool,
    pub(super) prefetch: Prefetch,
    /// Below the active layer.
    backing: bool,
}

impl Inherited {
    /// What the active layer has.
    pub(super) fn by_nobody() -> Self {
        Self {
            cache: CacheMode::default(),
            aio: None,
            force_share: false,
            prefetch: Prefetch::default(),
            backing: false,
        }
    }
}

impl LayerOptions {
    /// The cache mode.
    pub fn cache(&self) -> CacheMode {
        self.cache
    }

    /// `force-share`.
    pub(crate) fn is_shared_by_force(&self) -> bool {
        self.force_share
    }

    /// The options of the backing file, as far as they do not come from this image's header; `None` if there
    /// must be no backing file.
    pub fn below(&self) -> Option<LayerOptions> {
        match &self.backing {
            Backing::None => None,
            Backing::With(layer) => Some((**layer).clone()),
            Backing::AsInImage => Some(Self::defaults(self.inherited())),
        }
    }

    /// All files that are named for this image and those below it.
    pub(crate) fn all_files(&self) -> Vec<&FileOptions> {
        let mut found = Vec::new();
        for file in [&self.file, &*self.data_file, &*self.luks_header, &*self.bitmaps] {
            let mut next = Some(file);
            while let Some(file) = next {
                found.push(file);
                next = file.over.as_ref().map(|over| &*over.below);
            }
        }
        if let Backing::With(below) = &self.backing {
            found.extend(below.all_files());
        }
        found
    }

    /// The options that `tree` says for this image, which is below another one. What it has from that and `tree` leaves out stays.
    ///
    /// # Errors
    /// As [`DiskOptions::of_tree`](super::DiskOptions::of_tree).
    pub(crate) fn reopened_below(&self, tree: OptionTree) -> Result<Self, OptionError> {
        Self::read(Reader::new(tree, String::new()), self.inherited())
    }

    /// Refuses options that an image of `format` does not have.
    ///
    /// # Errors
    /// When it was given an option that only images of another format have.
    pub fn check_format(&self, format: Format) -> Result<(), OptionError> {
        match self.of_formats.iter().find(|(needs, _)| *needs != format) {
            Some((needs, option)) => Err(OptionError::Format {
                option: option.clone(),
                needs: needs.name(),
                format: format.name(),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn inherited(&self) -> Inherited {
        Inherited {
            cache: self.cache,
            aio: self.file.aio,
            force_share: self.force_share,
            prefetch: self.qcow2.prefetch,
            backing: true,
        }
    }

    pub(super) fn defaults(above: Inherited) -> Self {
        Self {
            node_name: None,
            format: None,
            cache: above.cache,
            aio: above.aio,
            discard: Discard::Ignore,
            detect_zeroes: DetectZeroes::Off,
            read_only: above.backing,
            force_share: above.force_share,
            file: FileOptions::defaults(above.cache, above.aio),
            data_file: Box::new(FileOptions::defaults(above.cache, above.aio)),
            luks_header: Box::new(FileOptions::defaults(above.cache, above.aio)),
            bitmaps: Box::new(FileOptions::defaults(above.cache, above.aio)),
            qcow2: Qcow2Options::defaults(above.prefetch),
            raw: RawOptions::default(),
            encryption: None,
            key_secret: None,
            backing: Backing::AsInImage,
            of_formats: Vec::new(),
        }
    }

    pub(super) fn read(mut reader: Reader, above: Inherited) -> Result<Self, OptionError> {
        let mut layer = Self::defaults(above);
        let first_of = |driver: &&FormatDriver| {
            Some((Format::called(driver.name), first_given(&reader, driver.options)?))
        };
        layer.of_formats = format_drivers().iter().filter_map(first_of).collect();
        let names: Vec<_> = formats().map(Format::name).collect();
        let place = reader.either(["driver", "format"], |reader, name| reader.choice(name, &names))?;
        layer.format = place.map(|place| Format::called(names[place]));
        read_all(LAYER, &mut reader, &mut layer)?;
        layer.check_rules(&reader, above)?;
        for driver in format_drivers() {
            read_all(driver.options, &mut reader, &mut layer)?;
        }
        layer.file = FileOptions::read(reader.group("file")?, layer.cache, layer.aio)?;
        *layer.data_file = FileOptions::read(reader.group("data-file")?, layer.cache, layer.aio)?;
        *layer.luks_header = FileOptions::read(reader.group("header")?, layer.cache, layer.aio)?;
        *layer.bitmaps = FileOptions::read(reader.group("bitmaps")?, layer.cache, layer.aio)?;
        layer.backing = match reader.group("backing")? {
            None => Backing::None,
            Some(group) if group.is_empty() => Backing::AsInImage,
            Some(group) => Backing::With(Box::new(Self::read(group.with_format()?, layer.inherited())?)),
        };
        table::finish_layer(reader, above.backing)?;
        if let Some(format) = layer.format {
            layer.check_format(format)?;
        }
        Ok(layer)
    }

    /// Refuses options that contradict each other.
    fn check_rules(&self, reader: &Reader, above: Inherited) -> Result<(), OptionError> {
        let conflict = |option, other, rule| {
            Err(OptionError::Conflict { option: reader.full(option), other: reader.full(other), rule })
        };
        if self.detect_zeroes == DetectZeroes::Unmap && self.discard != Discard::Unmap {
            return conflict("detect-zeroes", "discard", "detect-zeroes=unmap needs discard=unmap");
        }
        if above.backing && !self.read_only {
            let allowed = "on (nothing below the active layer is written)";
            return Err(reader.value("read-only", "off", allowed));
        }
        if self.force_share && !self.read_only {
            let rule = "an image can be shared by force only for reading; give read-only=on";
            return conflict("force-share", "read-only", rule);
        }
        Ok(())
    }
}
