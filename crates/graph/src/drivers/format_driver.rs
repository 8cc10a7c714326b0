//! A driver of a format: it makes a block of a file.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use block::{Blame, Block};
use formats::vmdk::Description;
use qcow2_layout::Header;
use storage::Storage;

use crate::background::BackgroundTasks;
use crate::error::OpenError;
use crate::format::Format;
use crate::options::{Entry, LayerOptions};
use crate::secrets::Secrets;

/// A driver of a format.
#[derive(Debug)]
pub struct FormatDriver {
    /// What options and headers of overlays call it.
    pub name: &'static str,
    /// What an image of it is called in documentation: "a qcow2 image".
    pub title: &'static str,
    /// What its files begin with; `None` if that may be anything.
    pub header: Option<FormatHeader>,
    /// Options that only images of it have.
    pub options: &'static [Entry<LayerOptions>],
    /// Makes a block of a file.
    pub open: for<'a> fn(Opening<'a>) -> OpeningFuture<'a>,
}

/// What files of a format begin with.
#[derive(Debug)]
pub struct FormatHeader {
    /// What messages call it.
    pub name: &'static str,
    /// Whether these first bytes of a file (at most [`crate::probe::PROBE_BYTES`]) are one.
    pub begins: fn(&[u8]) -> bool,
    /// A file that is said to be of the format must begin with one. Otherwise the driver looks: its header may be in another file, or be a second copy.
    pub required: bool,
}

/// An image of a chain, about to become a block.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Its file.
    pub file: Arc<dyn Storage>,
    /// The file of its data, where that is another one.
    pub data: Option<Arc<dyn Storage>>,
    /// The file of its LUKS header, where that is another one.
    pub luks_header: Option<Arc<dyn Storage>>,
    /// Descriptor and extents of a vmdk image.
    pub vmdk: Option<OpenVmdk>,
    /// What lies below it.
    pub backing: Option<Arc<dyn Block>>,
    /// What it is opened with.
    pub options: &'a LayerOptions,
    /// Of a qcow2 image.
    pub header: Option<&'a Header>,
    /// It may be written.
    pub writable: bool,
    /// Where passwords are.
    pub secrets: &'a Secrets,
    /// Where it works beside requests.
    pub tasks: &'a BackgroundTasks,
}

/// A vmdk image, to be made a block of.
#[derive(Debug)]
pub struct OpenVmdk {
    /// What its descriptor says.
    pub description: Arc<Description>,
    /// The files of its extents, in their order.
    pub extents: Vec<Arc<dyn Storage>>,
}

/// A block that is being opened.
pub type OpeningFuture<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Block>, OpenError>> + 'a>>;

static HANDED_IN: OnceLock<&'static [&'static FormatDriver]> = OnceLock::new();

pub(super) fn hand_in(list: &'static [&'static FormatDriver]) {
    let _ = HANDED_IN.set(list);
}

/// All drivers of formats, in the order of the documentation.
pub fn format_drivers() -> &'static [&'static FormatDriver] {
    #[cfg(test)]
    return crate::catalog::DRIVERS.formats;
    #[cfg(not(test))]
    HANDED_IN.get().copied().unwrap_or_default()
}

/// The driver of a format; `None` where the program has none.
fn driver_of(format: Format) -> Option<&'static FormatDriver> {
    format_drivers().iter().find(|driver| driver.name == format.name()).copied()
}

impl Opening<'_> {
    /// The block.
    ///
    /// # Errors
    /// When the program has no driver of the format; else the driver's.
    pub(crate) async fn open(self, format: Format) -> Result<Arc<dyn Block>, OpenError> {
        match driver_of(format) {
            Some(driver) => (driver.open)(self).await,
            None => Err(Blame::new(self.file.name())
                .unsupported(format!("no driver of {format} is there"))
                .into()),
        }
    }
}

/// All formats that there are.
pub fn formats() -> impl Iterator<Item = Format> {
    format_drivers().iter().map(|driver| Format::called(driver.name))
}

/// The format of that name, if it is one that is served.
pub fn format_called(name: &str) -> Option<Format> {
    formats().find(|format| format.name() == name)
}

/// The format that an image gives its backing file by `name`: also one of [`Format::BARE`].
pub fn format_of_backing(name: &str) -> Option<Format> {
    format_called(name).or(Format::BARE.contains(&name).then_some(Format::Raw))
}

/// Names of the formats, as messages list them.
pub fn format_names() -> String {
    formats().map(Format::name).collect::<Vec<_>>().join(", ")
}

/// The header without which an image is not of this format, by name.
pub(crate) fn required_header(format: Format) -> Option<&'static str> {
    driver_of(format)?.header.as_ref().filter(|header| header.required).map(|header| header.name)
}
