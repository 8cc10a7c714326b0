//! The copies that tools make, as values: which layers count, what the target reads as before, what becomes of zeroes.
//!
//! Each takes the options of its caller (memory, rate, flushes) and sets what the kind of copy decides: a tool that made a copy by hand would
//! decide it once more.

use block::Block;

use crate::content::Content;
use crate::copy::{Copy, CopyOptions, Zeroes};
use crate::layers::Scope;
use crate::marked::Marked;

/// An image takes over what lies below it, so that it stands alone, or directly on `base`: a layer of its chain with so many images above it,
/// opened by itself. `target` is the image, or what writes it compressed.
pub fn flatten<'a>(
    image: &'a dyn Block,
    target: &'a dyn Block,
    base: Option<(&'a dyn Block, u32)>,
    options: CopyOptions,
) -> Copy<'a> {
    match base {
        None => alone(image, target, options),
        Some((base, above)) => over(image, target, base, Scope::BelowTopWithin(above), options),
    }
}

/// An image is put over `backing`, opened by itself, or over nothing: it gets what it showed and would not show then. It is still open with
/// what lay below it before; one of version 2 must be asked to await a backing file. `target` is the image, or what writes it compressed.
pub fn rebase<'a>(
    image: &'a dyn Block,
    target: &'a dyn Block,
    backing: Option<&'a dyn Block>,
    options: CopyOptions,
) -> Copy<'a> {
    match backing {
        None => alone(image, target, options),
        Some(backing) => over(image, target, backing, Scope::BelowTop, options),
    }
}

/// What `layers` images say, of which `top` is the uppermost one, goes to the one below them. It is opened by itself, with what lies below it.
pub fn commit<'a>(top: &'a dyn Block, layers: u32, base: &'a dyn Block, options: CopyOptions) -> Copy<'a> {
    let options = CopyOptions { zeroes: Zeroes::ByMap, ..options };
    from_end_to_end(top, base, Scope::Layers(layers), Content::Unknown, options)
}

/// What the uppermost image of `source` says goes to an overlay, which is opened with its own backing file: that reads as the source's does.
pub fn overlay<'a>(
    source: &'a dyn Block,
    target: &'a dyn Block,
    content: Content<'a>,
    options: CopyOptions,
) -> Copy<'a> {
    from_end_to_end(source, target, Scope::Overlay, content, options)
}

/// What is marked goes to an overlay that is read over an earlier copy, and is opened without it.
pub fn incremental<'a>(marked: &'a Marked, target: &'a dyn Block, options: CopyOptions) -> Copy<'a> {
    let options = CopyOptions { zeroes: Zeroes::ByMap, ..options };
    from_end_to_end(marked, target, Scope::Layers(1), Content::Overlay, options)
}

/// All of `source` goes to `target`, which reads as `content` before.
pub fn whole<'a>(
    source: &'a dyn Block,
    target: &'a dyn Block,
    content: Content<'a>,
    options: CopyOptions,
) -> Copy<'a> {
    from_end_to_end(source, target, Scope::Everything, content, options)
}

/// An image that is backed by nothing afterwards.
fn alone<'a>(image: &'a dyn Block, target: &'a dyn Block, options: CopyOptions) -> Copy<'a> {
    let cluster_bytes = target.capabilities().cluster_bytes.unwrap_or(1);
    let options =
        CopyOptions { align_bytes: cluster_bytes, zeroes: Zeroes::Detect(cluster_bytes), ..options };
    from_end_to_end(image, target, Scope::BelowTop, Content::Zeroes, options)
}

/// An image that is backed by `base` afterwards.
fn over<'a>(
    image: &'a dyn Block,
    target: &'a dyn Block,
    base: &'a dyn Block,
    scope: Scope,
    options: CopyOptions,
) -> Copy<'a> {
    let cluster_bytes = target.capabilities().cluster_bytes.unwrap_or(1);
    let zeroes = match options.zeroes {
        Zeroes::WriteBefore(end) => Zeroes::WriteBefore(end),
        Zeroes::Detect(_) | Zeroes::ByMap | Zeroes::Write => Zeroes::ByMap,
    };
    let options = CopyOptions { align_bytes: cluster_bytes, zeroes, ..options };
    from_end_to_end(image, target, scope, Content::As(base), options)
}

/// A copy of the whole source to the same place of the target.
fn from_end_to_end<'a>(
    source: &'a dyn Block,
    target: &'a dyn Block,
    scope: Scope,
    content: Content<'a>,
    options: CopyOptions,
) -> Copy<'a> {
    Copy { source, from: 0..source.size(), target, to: 0, scope, content, options }
}
