//! The files that the descriptor of a vmdk image names: parts of its disk. They are followed as data files are, and only read.

use std::path::PathBuf;
use std::sync::Arc;

use formats::vmdk::{Description, ExtentLine};
use storage::Storage;

use crate::drivers::OpenVmdk;
use crate::error::OpenError;
use crate::file::{OpenFile, Origin, Source};
use crate::names::{Followed, Policy, Role};
use crate::options::LayerOptions;

/// Whether the files are opened that hold data beside an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFiles {
    /// They are, and locked: the disk will be used.
    Open,
    /// They are not opened: only metadata is read.
    Leave,
}

/// The file of an extent.
#[derive(Debug)]
pub struct ExtentFile {
    /// Where it is, as the descriptor's own name leads to it.
    pub name: PathBuf,
    /// Its length and the space that it takes, in bytes; `None` where its name is not followed, or leads nowhere.
    pub sizes: Option<(u64, u64)>,
    file: Option<OpenFile>,
}

impl ExtentFile {
    /// The file, locked as long as this is there, where it was opened: for the disk, or because its header says what it is.
    pub fn storage(&self) -> Option<&Arc<dyn Storage>> {
        self.file.as_ref().map(|file| &file.storage)
    }

    /// The name of the file's driver.
    pub fn driver(&self) -> &'static str {
        self.file.as_ref().map_or("file", |file| file.driver.name)
    }
}

/// A vmdk image: what its descriptor says, and the files of its extents in their order.
#[derive(Debug)]
pub struct VmdkFiles {
    /// What the descriptor says.
    pub description: Arc<Description>,
    /// The files, as many as there are extents that have one.
    pub extents: Vec<ExtentFile>,
}

/// The descriptor of an open layer, and the extents: locks, and what it takes to open it once more.
#[derive(Clone, Debug)]
pub(crate) struct VmdkOrigins {
    description: Arc<Description>,
    extents: Vec<Origin>,
}

impl VmdkFiles {
    /// Reads the descriptor of `image`, and opens what it names. Where data files are left alone a flat extent is only looked at, and a name that
    /// is not followed is no error.
    pub(crate) async fn find(
        image: &OpenFile,
        options: &LayerOptions,
        policy: &Policy,
        data_files: DataFiles,
    ) -> Result<Self, OpenError> {
        let description = formats::vmdk::describe(&*image.storage).await?;
        let mut extents = Vec::new();
        for line in description.extents().iter().filter(|line| !line.file.is_empty()) {
            let found = find(image, line, policy).map_err(OpenError::from);
            extents.push(match (found, data_files) {
                (Ok(found), DataFiles::Leave) if line.kind.is_flat() => found.looked_at(),
                (Ok(found), DataFiles::Leave) => match found.open(options).await {
                    Ok(opened) => opened,
                    Err(_) => unknown(image, line),
                },
                (Ok(found), DataFiles::Open) => found.open(options).await?,
                (Err(_), DataFiles::Leave) => unknown(image, line),
                (Err(error), DataFiles::Open) => return Err(error),
            });
        }
        Ok(Self { description: Arc::new(description), extents })
    }

    /// What a block is made of, and what keeps the locks.
    pub(crate) fn divided(self) -> (OpenVmdk, VmdkOrigins) {
        let Self { description, extents } = self;
        let (mut files, mut origins) = (Vec::new(), Vec::new());
        for file in extents.into_iter().filter_map(|extent| extent.file) {
            files.push(file.storage);
            origins.push(file.origin);
        }
        let open = OpenVmdk { description: Arc::clone(&description), extents: files };
        (open, VmdkOrigins { description, extents: origins })
    }
}

impl VmdkOrigins {
    /// Whether the disk is in other files than the image's own.
    pub(crate) fn has_extents(&self) -> bool {
        !self.extents.is_empty()
    }
}

/// Opens the extents of a vmdk image once more, under the locks that they have.
pub(crate) async fn open_again(
    vmdk: Option<&VmdkOrigins>,
    options: &LayerOptions,
) -> Result<(Option<OpenVmdk>, Option<VmdkOrigins>), OpenError> {
    let Some(vmdk) = vmdk else { return Ok((None, None)) };
    let mut extents = Vec::with_capacity(vmdk.extents.len());
    for origin in &vmdk.extents {
        let file = origin.open_again(&origin.name(), &options.data_file, options, false).await?;
        extents.push(ExtentFile { name: origin.name().into(), sizes: None, file: Some(file) });
    }
    let (open, origins) = VmdkFiles { description: Arc::clone(&vmdk.description), extents }.divided();
    Ok((Some(open), Some(origins)))
}

/// A file that an extent's name leads to.
struct Target {
    name: PathBuf,
    followed: Followed,
}

fn find(image: &OpenFile, line: &ExtentLine, policy: &Policy) -> Result<Target, crate::names::Refused> {
    let followed = policy.resolve(&image.place, &line.file, Role::Extent)?;
    Ok(Target { name: name_of(image, line), followed })
}

impl Target {
    fn looked_at(self) -> ExtentFile {
        let sizes = match &self.followed {
            Followed::File(located) => std::fs::metadata(located.open_path()).ok(),
            Followed::Elsewhere(..) => None,
        };
        let sizes = sizes.map(|file| (file.len(), std::os::unix::fs::MetadataExt::blocks(&file) * 512));
        ExtentFile { name: self.name, sizes, file: None }
    }

    async fn open(self, options: &LayerOptions) -> Result<ExtentFile, OpenError> {
        let name = self.name.display().to_string();
        let file = Source::followed(self.followed).open(&name, &options.data_file, options, false).await?;
        let sizes = Some((file.storage.length(), file.storage.allocated_bytes().unwrap_or(0)));
        Ok(ExtentFile { name: self.name, sizes, file: Some(file) })
    }
}

fn unknown(image: &OpenFile, line: &ExtentLine) -> ExtentFile {
    ExtentFile { name: name_of(image, line), sizes: None, file: None }
}

/// The extent's name as seen from where the image was named.
fn name_of(image: &OpenFile, line: &ExtentLine) -> PathBuf {
    let directory = image.place.given().parent().unwrap_or(std::path::Path::new(""));
    directory.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&line.file))
}
