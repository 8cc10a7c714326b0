//! The manifest of a lineage: what is read is written down and read again, and leads to no other directory.

use lineage::{MANIFEST_VERSION, Manifest};
use serde_json::json;

pub(super) fn run(data: &[u8]) {
    let Ok(manifest) = Manifest::parse(data) else { return };
    let entries: Vec<_> = manifest.entries().collect();
    assert!(entries.len() <= data.len());
    for entry in &entries {
        let disk = entry.disk.to_string();
        assert!(!disk.is_empty() && !disk.contains('/') && disk != "." && disk != "..", "{disk:?}");
        assert_eq!(manifest.entry(entry.id), Some(*entry));
    }
    let text = json!({ "cowhand-lineage": MANIFEST_VERSION, "layers": entries }).to_string();
    assert_eq!(Manifest::parse(text.as_bytes()), Ok(manifest.clone()), "what was written is read again");
}
