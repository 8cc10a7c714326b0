//! `--overlay`: an image that clients write to, over a disk that is only read.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use cowhand::Existing;
use graph::drive::{Entry, OptionTree, shown};
use graph::options::DiskOptions;
use graph::probe::Format;
use tool::create::options::NewImage;
use tool::failure::Failure;

use crate::create::make;
use crate::info::read_image;

/// An overlay, and what it lies over.
#[derive(Clone, Debug)]
pub struct Overlay {
    base: DiskOptions,
    /// What the image calls it.
    base_name: String,
    /// How the image is made, if it is missing.
    image: NewImage,
}

impl Overlay {
    /// Puts `drive` over the only one of `disks`, in its place.
    ///
    /// # Errors
    /// When there are none or several, one of them is not understood, or the one below has no name that an image can have.
    pub fn put_over(
        disks: &mut [(OptionTree, DiskOptions)],
        drive: &OsString,
        create_options: &[String],
    ) -> Result<Self, Failure> {
        let [disk] = disks else {
            let found = disks.len();
            return Err(Failure::new(format!("--overlay lies over one DRIVE, and {found} are given")));
        };
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot understand --overlay {}", shown(drive)), error)
        };
        let mut tree = crate::drive::option_tree(drive, |path| path.symlink_metadata().is_ok())?;
        let (base_tree, base) = disk.clone();
        let path = name_in_image(&base.filename)?;
        let base_name = match base.layer.raw.is_part() {
            true => graph::part_name(&path, &base.layer.raw),
            false => path,
        };
        tree.replace("driver", Format::Qcow2.name()).map_err(|error| failed(&error))?;
        tree.insert("backing", Entry::Tree(base_tree)).map_err(|error| failed(&error))?;
        let options = DiskOptions::of_tree(tree.clone()).map_err(|error| failed(&error))?;
        let mut image = NewImage::parse(create_options, Format::Qcow2).map_err(|error| failed(&error))?;
        if image.options.backing_file.is_some() {
            return Err(Failure::new("-o backing_file: with --overlay that is the DRIVE; leave it out"));
        }
        image.options.backing_file = Some(base_name.clone());
        *disk = (tree, options);
        Ok(Self { base, base_name, image })
    }

    /// Makes the image at `path`, as large as what it lies over unless another size was asked for. One that exists must lie over the same.
    /// Says whether one was made.
    ///
    /// # Errors
    /// When it lies over something else, or one of the two cannot be read, or it cannot be made.
    pub fn make_if_missing(&self, path: &Path) -> Result<bool, Failure> {
        if path.symlink_metadata().is_ok() {
            return self.check(path).map(|()| false);
        }
        let base = read_image(&self.base)?;
        let mut image = self.image.clone();
        image.options.backing_format = Some(base.format);
        make(path, &image, image.size.unwrap_or(base.virtual_size), Existing::Refuse)?;
        Ok(true)
    }

    /// Refuses an image with another backing file. An overlay's data fits one base: over another it would
    /// show a disk that was never written.
    fn check(&self, path: &Path) -> Result<(), Failure> {
        let mut options = DiskOptions::of_path(path);
        options.layer.format = Some(Format::Qcow2);
        let found = read_image(&options)?.backing_filename;
        if found.as_deref() == Some(&self.base_name) {
            return Ok(());
        }
        let over = found.map_or_else(|| "nothing".to_owned(), |name| shown(OsStr::new(&name)));
        let what = format!("{} lies over {over}, not over {}", path.display(), self.base_name);
        Err(Failure::new(what).with_hint("name what it lies over as DRIVE, or another file with --overlay"))
    }
}

/// The backing file's name in the new image: one that is valid from everywhere, and has no credentials.
fn name_in_image(name: &Path) -> Result<String, Failure> {
    let refused = |reason: &str| {
        Failure::new(format!("--overlay over {}: {reason}", shown(name.as_os_str())))
            .with_hint("allowed: the path of a file, or a URL without user, password and query")
    };
    let text = name.to_str().ok_or_else(|| refused("an image holds only names in UTF-8"))?;
    if text.is_empty() {
        return Err(refused("what the overlay lies over must have a name"));
    }
    if graph::drivers::elsewhere(name).is_some() && name.symlink_metadata().is_err() {
        return match shown(name.as_os_str()) == text {
            true => Ok(text.to_owned()),
            false => Err(refused("everybody who reads the image would read the credentials")),
        };
    }
    let path = std::path::absolute(name)
        .map_err(|error| Failure::because("there is no current directory", &error))?;
    Ok(path.to_string_lossy().into_owned())
}
