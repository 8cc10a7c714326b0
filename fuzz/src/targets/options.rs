//! What users and programs write: drives, their options, sizes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use graph::drive::{OptionTree, parse_drive};
use graph::options::DiskOptions;
use graph::size::{human_size, parse_size};

use crate::input::Input;

/// Layers that are asked for.
const LAYERS: u32 = 8;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let text = input.rest();
    if let Ok(tree) = parse_drive(OsStr::from_bytes(text), |_| how & 1 == 1) {
        understand(tree);
    }
    // As JSON, whatever comes before.
    let json = [b"json:", text].concat();
    if let Ok(tree) = parse_drive(OsStr::from_bytes(&json), |_| false) {
        understand(tree);
    }
    let _ = graph::probe::probe(text);
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Ok(size) = parse_size(text) {
        let _ = human_size(size);
    }
    let _ = nearest::nearest(text, ["cache", "l2-cache-size", "discard"].into_iter());
}

fn understand(tree: OptionTree) {
    let _ = tree.filename();
    let Ok(options) = DiskOptions::of_tree(tree) else { return };
    // Every layer takes its options from the one above, for as long as the chain goes on.
    let mut layer = Some(options.layer);
    for _ in 0..LAYERS {
        layer = layer.and_then(|layer| layer.below());
    }
}
