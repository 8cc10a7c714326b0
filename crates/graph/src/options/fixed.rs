//! Options that stay as they are while a disk is open.
//!
//! An option changes while a disk is open ([`RuntimeOptions`](crate::RuntimeOptions)), or it is compared here: the table says which of
//! the two, so that none can be accepted and then do nothing.

use std::path::Path;

use super::entry::first_fixed_of;
use super::spec::Changes;
use super::table::{DISK, FILE, LAYER, LIMITS, THROTTLING};
use super::{Backing, DiskOptions, FileOptions, OptionError};
use crate::drivers::{StorageDriver, format_drivers};
use crate::probe::Format;

/// What is so of an open disk, whatever its options said.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// The node's name.
    pub node_name: &'a str,
    /// The image's format.
    pub format: Format,
    /// What the image's file is.
    pub file_driver: &'static StorageDriver,
    /// There is a backing file.
    pub has_backing: bool,
    /// The image keeps its data in a file of its own.
    pub has_data_file: bool,
}

/// The first option by which `new` differs from `old`, and which cannot change while the disk is open. What `new`
/// leaves out and what is so anyway is no difference.
///
/// # Errors
/// When `new` has an option that the image's format does not have.
pub fn first_fixed(
    old: &DiskOptions,
    new: &DiskOptions,
    opened: &Opened<'_>,
) -> Result<Option<String>, OptionError> {
    new.layer.check_format(opened.format)?;
    let [old, new] = [settled(old, old, opened), settled(new, old, opened)];
    // The image's own before its files', which inherit from it.
    // Of two that are elsewhere the option is named that differs.
    let is_path =
        |options: &DiskOptions| options.layer.file.target.is_none() && options.layer.file.over.is_none();
    let by_name = is_path(&old) || is_path(&new);
    let of_image = first_fixed_of(DISK, &old, &new)
        .or_else(|| (by_name && old.filename != new.filename).then(|| "file".to_owned()))
        .or_else(|| {
            let of_formats = format_drivers().iter().map(|driver| driver.options);
            [LAYER]
                .into_iter()
                .chain(of_formats)
                .find_map(|part| first_fixed_of(part, &old.layer, &new.layer))
        });
    let of_filters = || {
        let count = (old.filters.len() != new.filters.len()).then(|| "driver".to_owned());
        let mut pairs = old.filters.iter().zip(&new.filters);
        count.or_else(|| pairs.find_map(|(old, new)| old.first_difference(new)))
    };
    let of_disk =
        || first_fixed_of(THROTTLING, &old.throttling, &new.throttling).or_else(|| limits(&old, &new));
    let of_parts = || {
        let named = |name: &str, differs: bool| differs.then(|| name.to_owned());
        named("backing", old.layer.backing != new.layer.backing)
            .or_else(|| of_file(&old.layer.file, &new.layer.file))
            .or_else(|| named("data-file", old.layer.data_file != new.layer.data_file))
            .or_else(|| named("header", old.layer.luks_header != new.layer.luks_header))
            .or_else(|| named("bitmaps", old.layer.bitmaps != new.layer.bitmaps))
    };
    Ok(of_image.or_else(of_filters).or_else(of_disk).or_else(of_parts))
}

/// As [`first_fixed`], of a file by itself.
pub(crate) fn first_fixed_of_file(old: &FileOptions, new: &FileOptions) -> Option<String> {
    let mut new = new.clone();
    new.driver = new.driver.filter(|_| old.driver.is_some());
    new.node_name = new.node_name.or_else(|| old.node_name.clone());
    if let (Some(path), Some(other)) = (&old.filename, &new.filename)
        && is_same_file(path, other)
    {
        new.filename = Some(path.clone());
    }
    of_file(old, &new)
}

fn of_file(old: &FileOptions, new: &FileOptions) -> Option<String> {
    first_fixed_of(FILE, old, new)
        .or_else(|| old.target.as_ref()?.first_difference(&**new.target.as_ref()?))
        .or_else(|| {
            let (old, new) = (old.over.as_ref()?, new.over.as_ref()?);
            let below = || (old.below != new.below).then(|| format!("file.{}", old.child));
            old.by.first_difference(&*new.by).or_else(below)
        })
}

/// Whether `new` names another file of the image than `old`: the same one in another way, or under another node name, counts.
pub fn moves(old: &DiskOptions, new: &DiskOptions, opened: &Opened<'_>) -> bool {
    let [old, new] = [settled(old, old, opened), settled(new, old, opened)].map(|options| options.layer.file);
    let which = |file: &FileOptions| {
        (file.driver, file.node_name.clone(), file.filename.clone(), file.target.clone())
    };
    which(&old) != which(&new) || old.over != new.over
}

/// Whether the raw disk is to be another part of its file.
pub fn is_other_part(old: &DiskOptions, new: &DiskOptions, opened: &Opened<'_>) -> bool {
    let part = |options: &DiskOptions| (options.layer.raw.offset, options.layer.raw.size);
    opened.format == Format::Raw && part(old) != part(new)
}

/// What is said of limits that differ: a command of their own changes them.
fn limits(old: &DiskOptions, new: &DiskOptions) -> Option<String> {
    let command = LIMITS.iter().find_map(|limit| match limit.changes {
        Changes::By(command) => Some(command),
        _ => None,
    })?;
    (old.throttling != new.throttling).then(|| format!("throttling (use {command})"))
}

/// `options` in a comparable form: values that are not given are taken from `old` and the open disk, and
/// equal meanings get one form.
fn settled(options: &DiskOptions, old: &DiskOptions, opened: &Opened<'_>) -> DiskOptions {
    let mut options = options.clone();
    options.id = options.id.or_else(|| old.id.clone());
    let layer = &mut options.layer;
    layer.node_name.get_or_insert_with(|| opened.node_name.to_owned());
    layer.format.get_or_insert(opened.format);
    layer.file.driver.get_or_insert(opened.file_driver);
    layer.file.node_name = layer.file.node_name.take().or_else(|| old.layer.file.node_name.clone());
    if is_same_file(&options.filename, &old.filename) {
        options.filename.clone_from(&old.filename);
        layer.file.filename.clone_from(&old.layer.file.filename);
    }
    if !opened.has_data_file && *layer.data_file == FileOptions::defaults(layer.cache, layer.aio) {
        // Inherited values of a file that does not exist do not count.
        *layer.data_file = FileOptions::defaults(old.layer.cache, old.layer.aio);
    }
    if !old.layer.luks_header.is_named()
        && *layer.luks_header == FileOptions::defaults(layer.cache, layer.aio)
    {
        layer.luks_header.clone_from(&old.layer.luks_header);
    }
    if !old.layer.bitmaps.is_named() && *layer.bitmaps == FileOptions::defaults(layer.cache, layer.aio) {
        layer.bitmaps.clone_from(&old.layer.bitmaps);
    }
    // QEMU's clients leave `backing` out where it stays.
    match (&layer.backing, opened.has_backing) {
        (Backing::AsInImage | Backing::None, false) => layer.backing = Backing::None,
        (Backing::AsInImage, true) => layer.backing = old.layer.backing.clone(),
        (Backing::None | Backing::With(_), _) => {}
    }
    options
}

/// A path given otherwise may still be the same file.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| path.canonicalize().ok();
    a == b || (identity(a).is_some() && identity(a) == identity(b))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::drive::parse_drive;

    const OPENED: Opened<'_> = Opened {
        node_name: "a",
        format: Format::Qcow2,
        file_driver: &crate::drivers::local::FILE,
        has_backing: false,
        has_data_file: false,
    };

    fn first_of(old: &str, set: &str, opened: &Opened<'_>) -> Option<String> {
        let mut tree = parse_drive(OsStr::new(old), |_| false).unwrap();
        let old = DiskOptions::of_tree(tree.clone()).unwrap();
        tree.replace_all(OsStr::new(set)).unwrap();
        first_fixed(&old, &DiskOptions::of_tree(tree).unwrap(), opened).unwrap()
    }

    /// `node-name`, `id` and others were taken for a success and did nothing; an option of the data file was blamed for
    /// what another one said.
    #[test]
    fn an_option_that_cannot_change_is_named_and_one_that_is_so_already_is_none() {
        let table = [
            ("node-name=b", Some("node-name")),
            ("node-name=a", None),
            ("id=b", Some("id")),
            ("driver=qcow2", None),
            ("driver=raw", Some("driver")),
            ("cache.direct=on", Some("cache.direct")),
            ("cache=none", Some("cache.direct")),
            ("cache=unsafe", Some("cache.no-flush")),
            ("cache=writethrough", None),
            ("aio=threads", Some("aio")),
            ("file.aio=threads", Some("file.aio")),
            ("file.driver=file", None),
            ("file.driver=host_device", Some("file.driver")),
            ("file.node-name=f", Some("file.node-name")),
            ("file.cache.direct=on", Some("file.cache.direct")),
            ("file.locking=off", Some("file.locking")),
            ("file=y", Some("file")),
            ("data-file.locking=off", Some("data-file")),
            ("data-file.node-name=f", Some("data-file")),
            ("backing=", None),
            ("backing.file=b", Some("backing")),
            ("prefetch=all", Some("prefetch")),
            ("allocation-reserve=0", Some("allocation-reserve")),
            ("read-only=on,force-share=on", Some("force-share")),
            ("throttling.iops-total=1", Some("throttling (use block_set_io_throttle)")),
            ("discard=unmap,detect-zeroes=unmap,read-only=on,l2-cache-size=1M,overlap-check=all", None),
        ];
        for (set, expected) in table {
            assert_eq!(first_of("file=x", set, &OPENED).as_deref(), expected, "{set}");
        }
    }

    #[test]
    fn an_option_of_the_whole_is_not_blamed_on_the_data_file() {
        for (old, set, expected) in [
            ("file=x,file.cache.direct=off", "cache.direct=on", "cache.direct"),
            ("file=x,file.aio=threads", "aio=threads", "aio"),
            ("file=x,cache.direct=off", "cache=none", "cache.direct"),
        ] {
            assert_eq!(first_of(old, set, &OPENED).as_deref(), Some(expected), "{old} {set}");
        }
    }

    #[test]
    fn no_image_below_is_what_an_image_without_one_has() {
        let below = Opened { has_backing: true, ..OPENED };
        assert_eq!(first_of("file=x", "backing=", &OPENED), None);
        assert_eq!(first_of("file=x", "backing=", &below).as_deref(), Some("backing"));
        assert_eq!(first_of("file=x,backing.file=b", "discard=unmap", &below), None);
    }

    /// `aio=threads` on the command line made every blockdev-reopen fail: its options have no such member.
    #[test]
    fn what_blockdev_reopen_has_no_words_for_stays() {
        let tree = |drive: &str| parse_drive(OsStr::new(drive), |_| false).unwrap();
        let old = tree("file=x,id=a,aio=threads,throttling.iops-total=5,throttling.discard=free,bps=9");
        let mut new = tree("driver=qcow2,node-name=a,file.driver=file,file.filename=x,discard=unmap");
        new.fill_for_reopen(&old);
        let [old, new] = [old, new].map(|tree| DiskOptions::of_tree(tree).unwrap());
        assert_eq!(first_fixed(&old, &new, &OPENED).unwrap(), None);
    }

    #[test]
    fn an_option_of_another_format_is_refused() {
        let raw = Opened { format: Format::Raw, ..OPENED };
        let old = DiskOptions::of_path("x");
        let mut tree = parse_drive(OsStr::new("file=x"), |_| false).unwrap();
        tree.replace_all(OsStr::new("l2-cache-size=1M")).unwrap();
        let new = DiskOptions::of_tree(tree).unwrap();
        let refused = first_fixed(&old, &new, &raw).unwrap_err().to_string();
        assert_eq!(refused, "option l2-cache-size is for qcow2 images, and this image is raw");
    }
}
