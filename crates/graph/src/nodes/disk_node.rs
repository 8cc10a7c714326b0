//! A disk that is open under a name.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::name::NodeName;
use crate::child::Child;
use crate::disk::Disk;
use crate::drive::OptionTree;
use crate::options::DiskOptions;

/// A disk, and how it was asked for.
#[derive(Debug)]
pub struct DiskNode {
    pub(super) name: NodeName,
    /// The disk.
    pub disk: Arc<Disk>,
    pub(super) asked: Mutex<RootOptions>,
    /// The disks that are files of its images, as these see them.
    pub(super) files: Mutex<Vec<Arc<Child>>>,
    /// What queries call its driver, if that is not the driver of its uppermost image.
    shown_as: Option<&'static str>,
    /// The disk of which it is a layer, read by the layer's own name.
    owner: OnceLock<Arc<Self>>,
    /// [`Self::news_of_bitmaps`] has returned the names.
    bitmaps_are_reported: AtomicBool,
}

/// The image and the options of the disk's present root.
#[derive(Clone, Debug)]
pub(super) struct RootOptions {
    /// The image's path, as the user gave it.
    pub(super) path: PathBuf,
    /// The options in force. `blockdev-reopen` compares its own with them.
    pub(super) tree: OptionTree,
}

impl DiskNode {
    /// `disk`, opened as `tree` says, of the image that was named `path`.
    pub fn new(name: String, path: PathBuf, tree: OptionTree, disk: impl Into<Arc<Disk>>) -> Self {
        let disk = disk.into();
        disk.expect_guest();
        Self {
            name: NodeName::new(name),
            disk,
            asked: Mutex::new(RootOptions { path, tree }),
            files: Mutex::default(),
            shown_as: None,
            owner: OnceLock::new(),
            bitmaps_are_reported: AtomicBool::new(false),
        }
    }

    /// The disk of which this is a layer, if a command named the layer.
    pub fn owner(&self) -> Option<&Arc<Self>> {
        self.owner.get()
    }

    /// It is a layer of `owner` from now on, and stays one.
    pub(super) fn is_layer_of(&self, owner: &Arc<Self>) {
        // Set once: a layer that leaves the disk is not read by its name any more.
        let _ = self.owner.set(Arc::clone(owner));
    }

    /// The node's name: that of its uppermost image.
    pub fn name(&self) -> String {
        self.name.get()
    }

    /// The image, as it was named.
    pub fn path(&self) -> PathBuf {
        self.asked.lock().path.clone()
    }

    /// The export's description: the file's name.
    pub fn description(&self) -> String {
        self.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The driver's name.
    pub fn driver(&self) -> &'static str {
        self.shown_as.unwrap_or_else(|| self.disk.top_image().driver())
    }

    /// The same, whose images have these disks as files.
    pub(super) fn over(self, files: Vec<Arc<Child>>) -> Self {
        Self { files: Mutex::new(files), ..self }
    }

    /// Whether a file of its images is a disk.
    pub(super) fn is_over_disks(&self) -> bool {
        !self.files.lock().is_empty()
    }

    /// The same, with another driver for queries.
    pub(super) fn shown_as(self, driver: &'static str) -> Self {
        Self { shown_as: Some(driver), ..self }
    }

    /// The options in force.
    pub fn options(&self) -> Option<DiskOptions> {
        // They were accepted when the disk was opened.
        DiskOptions::of_tree(self.asked.lock().tree.clone()).ok()
    }

    /// Names of the bitmaps that the first change put out of date; given once, empty before and afterwards.
    pub fn news_of_bitmaps(&self) -> Vec<String> {
        if self.bitmaps_are_reported.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let names = self.disk.bitmaps_out_of_date();
        // Of two callers at once, one gets the names.
        if names.is_empty() || self.bitmaps_are_reported.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        names
    }
}
