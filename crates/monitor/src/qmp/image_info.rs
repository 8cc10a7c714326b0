//! ImageInfo: what queries say of an image and of those below it, without opening anything.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use block::{Block, SECTOR_BYTES};
use graph::{present_image, raw_of};
use memory::secret::without_credentials;
use qcow2::Qcow2;
use qcow2_layout::{CryptMethod, Incompatible};
use serde_json::{Map, Value, json};
use storage::Storage;
use tool::info::name::is_same_file;
use tool::info::read::{full_name, limits, named_in_header, specific};

use super::bitmaps;
use super::chosen::object;
use super::full_name::FullName;

/// Layers that are described one inside another; chains may be a thousand deep, and programs that read this recurse.
const LAYERS_SHOWN_MAX: usize = 32;

/// `image` and all below it, also below a disk that it is over as that changes.
fn layers(image: &Arc<dyn Block>) -> impl Iterator<Item = Arc<dyn Block>> {
    std::iter::successors(Some(Arc::clone(image)), |layer| layer.below().map(present_image))
}

/// How one query describes images.
pub struct Images {
    /// Backing images that are described inside their overlay, at most.
    nested_max: usize,
    /// A backing file is called as the header calls it, where it is that one.
    as_in_header: bool,
    /// Images with the driver of the filter that is over each.
    filtered: Vec<(Arc<dyn Block>, &'static str)>,
}

impl Images {
    /// For a query that is `flat`: no image is described inside another one. `filtered` are backing files, each with the driver of a filter over it.
    pub fn new(flat: bool, as_in_header: bool, filtered: Vec<(Arc<dyn Block>, &'static str)>) -> Self {
        Self { nested_max: if flat { 0 } else { LAYERS_SHOWN_MAX }, as_in_header, filtered }
    }

    /// Members of a disk with `image` on top: the image with those below it, and how many these are.
    pub async fn chain(&self, image: &Arc<dyn Block>) -> Value {
        let depth = layers(image).skip(1).count();
        let image_info = self.described(image).await;
        let mut value = object([("backing_file_depth", json!(depth)), ("image", image_info)]);
        if let Some(below) = layers(image).nth(1) {
            let written = name_in_header(image, &*below).await.filter(|_| self.as_in_header);
            let name = written.unwrap_or_else(|| below.name().to_owned());
            value.insert("backing_file".to_owned(), json!(without_credentials(&name)));
        }
        Value::Object(value)
    }

    /// An image with those below it, each in the one above.
    async fn described(&self, image: &Arc<dyn Block>) -> Value {
        let known: Vec<Arc<dyn Block>> = layers(image).take(LAYERS_SHOWN_MAX + 1).collect();
        let (mut below, mut name): (Option<Value>, Option<FullName>) = (None, None);
        for (depth, layer) in known.iter().enumerate().rev() {
            let full = FullName::over(layer, name.as_ref()).await;
            if depth <= self.nested_max {
                let mut described = alone(layer).await;
                described.insert("filename".to_owned(), json!(full.text()));
                if let Some(below) = below.take() {
                    described.insert("backing-image".to_owned(), below);
                }
                below = Some(Value::Object(described));
            }
            let filter = self.filtered.iter().find(|(image, _)| Arc::ptr_eq(image, layer));
            name =
                Some(filter.map_or_else(|| full.clone(), |(_, driver)| FullName::of_filter(driver, &full)));
        }
        below.unwrap_or_default()
    }
}

/// How the header of `image` calls `below`, seen from where the image was named, if it is what it names.
async fn name_in_header(image: &Arc<dyn Block>, below: &dyn Block) -> Option<String> {
    let full = named_in_header(image, Path::new(image.name())).await?;
    (full == below.name() || is_same_file(full.as_ref(), below.name().as_ref())).then_some(full)
}

/// An image by itself. What is not known of it is not there.
async fn alone(layer: &Arc<dyn Block>) -> Map<String, Value> {
    let mut image = Map::new();
    let mut put = |name: &str, value: Value| image.insert(name.to_owned(), value);
    put("filename", json!(layer.name()));
    put("format", json!(layer.driver()));
    put("virtual-size", json!(layer.size()));
    if let Some(qcow2) = layer.downcast_ref::<Qcow2>() {
        let (geometry, header) = (qcow2.geometry(), qcow2.header().await);
        put("cluster-size", json!(geometry.cluster_size()));
        put("dirty-flag", json!(header.incompatible.contains(Incompatible::DIRTY)));
        if header.crypt != CryptMethod::None {
            put("encrypted", json!(true));
        }
        if let Some(name) = &header.backing {
            put("backing-filename", json!(without_credentials(name)));
            let full = full_name(Path::new(layer.name()), name);
            put("full-backing-filename", json!(without_credentials(&full)));
        }
        if let Some(format) = &header.extensions.backing_format {
            put("backing-filename-format", json!(format));
        }
        let mut data = json!(specific(&header, &[]));
        data["corrupt"] = json!(qcow2.is_corrupt());
        let bitmaps = bitmaps::values_of(qcow2);
        if bitmaps.as_array().is_some_and(|bitmaps| !bitmaps.is_empty()) {
            data["bitmaps"] = bitmaps;
        }
        put("format-specific", Value::Object(object([("type", json!("qcow2")), ("data", data)])));
        put_file(&mut put, &**qcow2.file(), Some((geometry.cluster_size(), geometry.subcluster_size())));
    } else if let Some(raw) = raw_of(&**layer) {
        put("dirty-flag", json!(false));
        put_file(&mut put, &*raw.storage, None);
    }
    image
}

/// The file called `path` by itself.
pub fn of_file(driver: &str, file: &dyn Storage, path: &str) -> Value {
    let mut image = Map::new();
    let mut put = |name: &str, value: Value| image.insert(name.to_owned(), value);
    put("filename", json!(path));
    put("format", json!(driver));
    put("virtual-size", json!(file.length()));
    put("dirty-flag", json!(false));
    if driver == "file" {
        put("format-specific", json!({ "type": "file", "data": {} }));
    }
    put_file(&mut put, file, None);
    Value::Object(image)
}

/// A file that is a node by itself and that nothing has open, by its options.
pub fn bare_file(node_name: &str, options: &Map<String, Value>) -> Value {
    let driver = options.get("driver").and_then(Value::as_str).unwrap_or("file");
    let below = options.get("image").and_then(|image| image.get("filename"));
    let file = match options.get("filename") {
        Some(name) => name.clone(),
        None => json!(name_of_bare(driver, options)),
    };
    let image = of_closed_file(driver, &file, below.unwrap_or(&file));
    json!({
        "node-name": node_name,
        "drv": driver,
        "file": file,
        "image": image,
        "ro": options.get("read-only") == Some(&Value::Bool(true)),
        "encrypted": false,
        "detect_zeroes": "off",
        "backing_file_depth": 0,
        "write_threshold": 0,
        "children": [],
        "cache": { "writeback": true, "direct": false, "no-flush": false },
    })
}

/// The name of a file without one in its options. As in QEMU that of blkdebug has the file below it, unless more than a name says what it does.
fn name_of_bare(driver: &str, options: &Map<String, Value>) -> String {
    const IN_NAMES: [&str; 5] = ["driver", "node-name", "image", "config", "read-only"];
    let below = options.get("image").and_then(|image| image.get("filename")).and_then(Value::as_str);
    match below.filter(|_| driver == "blkdebug" && options.keys().all(|key| IN_NAMES.contains(&key.as_str())))
    {
        Some(below) => {
            let config = options.get("config").and_then(Value::as_str).unwrap_or_default();
            format!("blkdebug:{config}:{below}")
        }
        None => format!("{driver}://"),
    }
}

/// A file that nothing has open, by its `driver` and `name`: its length is known where `path` leads to a regular file.
fn of_closed_file(driver: &str, name: &Value, path: &Value) -> Value {
    let mut image = Map::new();
    image.insert("filename".to_owned(), name.clone());
    image.insert("format".to_owned(), json!(driver));
    let found = path.as_str().and_then(|path| std::fs::metadata(path).ok()).filter(Metadata::is_file);
    if let Some(found) = found {
        image.insert("virtual-size".to_owned(), json!(found.len()));
        image.insert("actual-size".to_owned(), json!(found.blocks() * SECTOR_BYTES));
    }
    Value::Object(image)
}

/// What is known of the file of an image with clusters of these sizes.
fn put_file(
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
    file: &dyn Storage,
    clusters: Option<(u64, u64)>,
) {
    if let Some(bytes) = file.allocated_bytes() {
        put("actual-size", json!(bytes));
    }
    let mut limits = limits(file);
    if let Some((cluster, subcluster)) = clusters {
        (limits.discard_alignment, limits.write_zeroes_alignment) = (Some(cluster), Some(subcluster));
    }
    put("limits", json!(limits));
}
