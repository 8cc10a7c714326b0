//! Formats of images.

use graph::probe::Format;

/// All formats that images can be opened in.
pub fn formats() -> impl Iterator<Item = Format> {
    catalog::install();
    graph::drivers::formats()
}

/// The format that QEMU calls `name`; `None` where it is none that images can be opened in.
pub fn format_called(name: &str) -> Option<Format> {
    catalog::install();
    graph::drivers::format_called(name)
}
