//! What the header of an image calls the disk below it.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use block::Block;
use serde_json::json;

use crate::bitmaps_file::raw_of;
use crate::drivers::elsewhere;
use crate::options::RawOptions;

/// The name of a layer, as headers have it: the whole path of its file, or the options of a part of one, as QEMU writes them. What is no file of this
/// machine has one name everywhere.
pub fn file_name(block: &dyn Block) -> String {
    if elsewhere(Path::new(block.name())).is_some() {
        return block.name().to_owned();
    }
    let path = whole_path(block.name());
    let Some(raw) = raw_of(block).filter(|raw| raw.driver == "raw") else { return path };
    let part =
        RawOptions { offset: raw.offset, size: raw.fixed.then(|| raw.size()), ..RawOptions::default() };
    if part.is_part() { part_name(&path, &part) } else { path }
}

/// The same of a file and the options that it was named with.
pub fn part_name(path: &str, part: &RawOptions) -> String {
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let driver = if is_device { "host_device" } else { "file" };
    let file = json!({ "driver": driver, "filename": whole_path(path) });
    let mut options = json!({ "driver": "raw", "offset": part.offset, "file": file });
    if let Some(size) = part.size {
        options["size"] = json!(size);
    }
    format!("json:{options}")
}

fn whole_path(name: &str) -> String {
    let path = std::path::absolute(Path::new(name));
    path.map_or_else(|_| name.to_owned(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_file_is_named_by_its_options() {
        let part = RawOptions { offset: 1 << 20, size: Some(512), ..RawOptions::default() };
        let name = part_name("/no/disk", &part);
        let options: serde_json::Value = serde_json::from_str(name.strip_prefix("json:").unwrap()).unwrap();
        let file = json!({ "driver": "file", "filename": "/no/disk" });
        assert_eq!(options, json!({ "driver": "raw", "offset": 1 << 20, "size": 512, "file": file }));
    }
}
