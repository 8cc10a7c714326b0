//! Looking at a disk: its chain by the map, the active image's file by its tables and a check.

use std::sync::Arc;

use graph::BareImage;
use graph::OnLoop;
use graph::names::Policy;
use graph::options::DiskOptions;
use graph::probe::Format;
use qcow2::{Finding, Progress, Repair};
use qcow2_layout::Header;
use reactor::Reactor;
use tool::failure::Failure;
use tool::info::model::{FormatSpecific, ImageInfo};

use super::cells::Cells;
use super::kind::Kind;
use super::picture::{Checked, Image, Layer, Picture};
use super::tally::Tally;
use crate::copying::{Memory, reactor};
use crate::info::read_chain;
use crate::map::extent::Extent;
use crate::map::pieces::{pieces_max, too_many};
use crate::map::{Walk, file_names};

/// Looks at the disk of `options`, for reading.
///
/// # Errors
/// As those of `info`, `map` and `check`; that a check could not be done is part of the picture.
pub fn look(options: &DiskOptions, policy: &Policy) -> Result<Picture, Failure> {
    let infos = read_chain(options, policy.clone())?;
    let reactor = reactor()?;
    let mut layers: Vec<Layer> = infos.iter().map(layer_of).collect();
    let length = infos.iter().map(file_length).fold(0, u64::saturating_add);
    // The backing files are shown by their figures only.
    let image = look_at_file(&reactor, options, infos.into_iter().next())?;
    let unit = image.as_ref().map_or(block::SECTOR_BYTES, |image| image.cluster_size);
    let pieces_max = pieces_max(length);
    let rules = Memory::default().rules(policy.clone());
    let disk = reactor
        .run(graph::open(options, &rules))
        .map_err(|error| failed(options, &error).with_hint_about_lock(&error))?;
    let mut cells = Cells::new(disk.size(), unit);
    let files = reactor.run(file_names(disk.root(), &options.filename));
    for (pieces, extent) in (0..).zip(Walk::new(&reactor, &disk, files, 0, None)) {
        if pieces > pieces_max {
            let what = format!("cannot show {}", options.filename.display());
            return Err(Failure::explained(what, too_many(pieces_max)));
        }
        let extent = extent.map_err(|error| failed(options, &error))?;
        let Some(layer) = layers.get_mut(extent.depth as usize) else { continue };
        let kind = kind_of(&extent, layer);
        cells.add(extent.start, extent.length, kind);
        count(layer, kind, &extent);
    }
    let filename = options.filename.display().to_string();
    Ok(Picture { filename, virtual_size: disk.size(), disk: cells, layers, image })
}

fn failed(options: &DiskOptions, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot show {}", options.filename.display()), error)
}

fn layer_of(info: &ImageInfo) -> Layer {
    Layer {
        filename: info.filename.clone(),
        format: info.format.clone(),
        virtual_size: info.virtual_size,
        actual_size: info.actual_size,
        data: 0,
        compressed: 0,
        zeroes: 0,
    }
}

fn file_length(info: &ImageInfo) -> u64 {
    info.children.first().map_or(info.virtual_size, |child| child.info.virtual_size)
}

fn kind_of(extent: &Extent, layer: &Layer) -> Kind {
    match extent {
        Extent { data: true, zero: false, depth: 0, compressed: true, .. } => Kind::Compressed,
        Extent { data: true, zero: false, depth: 0, .. } => Kind::Data,
        Extent { data: true, zero: false, .. } => Kind::Below,
        // A raw image cannot say that there are zeroes: it has a hole.
        Extent { present: true, .. } if layer.format != Format::Raw.name() => Kind::Zeroes,
        Extent { .. } => Kind::Nothing,
    }
}

fn count(layer: &mut Layer, kind: Kind, extent: &Extent) {
    let bytes = match (kind, extent.compressed) {
        (Kind::Data | Kind::Below, false) => &mut layer.data,
        (Kind::Compressed | Kind::Below, _) => &mut layer.compressed,
        (Kind::Zeroes, _) => &mut layer.zeroes,
        _ => return,
    };
    *bytes += extent.length;
}

/// The active image's file; `None` for a raw one.
fn look_at_file(
    reactor: &Reactor,
    options: &DiskOptions,
    info: Option<ImageInfo>,
) -> Result<Option<Image>, Failure> {
    let image = reactor.run(graph::open_bare(options));
    let image = image.map_err(|error| failed(options, &error).with_hint_about_lock(&error))?;
    let (Format::Qcow2, Some(mut info)) = (image.format, info) else { return Ok(None) };
    let bitmaps = match &mut info.format_specific {
        Some(FormatSpecific::Qcow2(specific)) => std::mem::take(&mut specific.bitmaps),
        _ => Vec::new(),
    };
    let snapshots = info.snapshots;
    reactor.run(async {
        let header = qcow2::read_header(&*image.file).await.map_err(|error| failed(options, &error))?;
        let mut tally = tally_of(options, &image, &header)?;
        let reported = qcow2::survey(&*image.file, &mut |seen| tally.take(&seen)).await;
        reported.map_err(|error| failed(options, &error))?;
        let check = check(&image, &mut tally).await;
        // What is in use and belongs to none of these is the slack between compressed clusters.
        let has_other = !(snapshots.is_empty() && bitmaps.is_empty() && header.extensions.crypto.is_none());
        let (file, usage) = tally.file(has_other, image.file.allocated_bytes());
        Ok(Some(Image {
            cluster_size: 1 << header.cluster_bits,
            file_length: image.file.length(),
            clusters: tally.clusters(),
            fragmentation: tally.runs.figures(),
            usage,
            file,
            check,
            snapshots,
            bitmaps,
        }))
    })
}

fn tally_of(options: &DiskOptions, image: &BareImage, header: &Header) -> Result<Tally, Failure> {
    let geometry = header.geometry().map_err(|error| failed(options, &error))?;
    Ok(Tally::new(geometry, header.guest_size(), image.file.length()))
}

/// What a check says, with the places of what is leaked.
async fn check(image: &BareImage, tally: &mut Tally) -> Checked {
    let mut hear = |seen: Progress<'_>| {
        if let Progress::Found(Finding::Refcount { cluster, clusters, references: 0, .. }) = seen {
            tally.leaked(*cluster, *clusters);
        }
    };
    let host: Arc<dyn qcow2::Host> = Arc::new(OnLoop);
    match qcow2::check_in_parallel(&image.file, &host, Repair::None, &mut hear).await {
        Ok(report) => Checked {
            corruptions: report.corruptions,
            leaks: report.leaks,
            error: (report.check_errors > 0)
                .then(|| format!("metadata could not be read in {} places", report.check_errors)),
        },
        Err(error) => Checked { error: Some(error.to_string()), ..Checked::default() },
    }
}
