//! A disk that is open under a name.

use std::path::PathBuf;
use std::sync::Arc;

use image::Disk;
use image::drive::OptionTree;
use image::options::DiskOptions;
use qcow2::Layer;

/// A disk, and how it was asked for.
#[derive(Debug)]
pub struct DiskNode {
    /// The image, as it was named.
    pub path: PathBuf,
    /// What was asked for: what changes later is compared with it.
    pub tree: std::cell::RefCell<OptionTree>,
    /// It was made just now.
    pub created: bool,
    /// The disk.
    pub disk: Arc<Disk>,
}

impl DiskNode {
    /// For people who list exports: the file's name.
    pub fn description(&self) -> String {
        self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The driver's name.
    pub fn driver(&self) -> &'static str {
        driver(self.disk.layer())
    }

    /// The options in force.
    pub fn options(&self) -> Option<DiskOptions> {
        // They were accepted when the disk was opened.
        DiskOptions::of_tree(self.tree.borrow().clone()).ok()
    }
}

/// The name of a layer's format.
pub fn driver(layer: &Layer) -> &'static str {
    match layer {
        Layer::Qcow2(_) => "qcow2",
        Layer::Raw(_) => "raw",
    }
}

/// The name of a layer's file.
pub fn file_name(layer: &Layer) -> &str {
    match layer {
        Layer::Qcow2(image) => image.file().name(),
        Layer::Raw(raw) => raw.storage.name(),
    }
}
