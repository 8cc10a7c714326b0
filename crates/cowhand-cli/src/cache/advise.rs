//! `cowhand cache advise`: reads the whole map of an image, and says what it costs.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use block::Block;
use graph::{Disk, OpenRules};
use qcow2::cache_sizes::{CacheRequest, CachedImage, L2_BYTES_DEFAULT, L2_ENTRY_BYTES_DEFAULT, cache_sizes};
use qcow2::{Counters, Form, Prefetch, Qcow2};
use reactor::Reactor;
use tool::failure::Failure;
use tool::output::{printable, write_json};

use super::advice::{self, Advice, FormBytes, Settled};
use super::curve;
use super::replay::{self, Played};
use crate::drive::DRIVE_HELP;
use crate::drive::{DriveArgs, parse_bytes};
use crate::output::{OutputFormat, with_json};

/// Arguments of `cowhand cache advise`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Say what the map of an image takes in memory, here and in QEMU, and which options to give.\n\n\
        The map says for every cluster of the disk where it is in the file. QEMU keeps it as it lies in the file (8 \
        bytes a cluster, 16 with extended L2), for every layer of a chain apart; cowhand packs it, and \
        keeps one map for all layers below the first. What does not fit is read again and again: the memory for a \
        disk that is read all over is that of its whole map, that of a disk of which only a part is in use is \
        less. How much less a trace says (cowhand serve --trace FILE): its requests are played against caches of \
        many sizes here and in QEMU.\n\nThe image is only read: all of its L2 tables, once. While a server uses it for writing, add -U.",
    after_help = DRIVE_HELP,
    after_long_help = with_json(DRIVE_HELP, &[advice::JSON, curve::JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,

    /// Also say how much of the disk this much memory covers
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,

    /// Also say which part of the requests of a trace (cowhand serve --trace) each size of cache would have answered
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Gives the advice.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    let name = printable(&options.filename.to_string_lossy()).into_owned();
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot read the map of {name}"), error);
    options.layer.read_only = true;
    options.set_prefetch(Prefetch::Off);
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let reactor = Reactor::new(reactor::Backend::Ring).map_err(|error| failed(&error))?;
    let disk = reactor.run(graph::open(&options, &rules)).map_err(|error| failed(&error))?;
    let Some(first) = disk.image().as_ref().map(cached) else {
        return Err(Failure::new(format!(
            "{name} is a raw image: it has no map, and needs no memory for one"
        )));
    };
    drop(disk);
    // The slices are cut as they will be when the image is served, and all of them stay.
    // With a trace sizes are looked at that do not cover the disk.
    let slice_bytes = match first.l2_bytes_full() > L2_BYTES_DEFAULT || args.trace.is_some() {
        true => L2_ENTRY_BYTES_DEFAULT.min(first.cluster_bytes),
        false => first.cluster_bytes,
    };
    options.layer.qcow2.caches = CacheRequest {
        l2_bytes: Some(u64::MAX),
        l2_entry_bytes: options.layer.qcow2.caches.l2_entry_bytes.or(Some(slice_bytes)),
        ..CacheRequest::default()
    };
    let disk = reactor.run(graph::open(&options, &rules)).map_err(|error| failed(&error))?;
    if let Some(image) = disk.image() {
        reactor.run(image.prefetch()).map_err(|error| failed(&error))?;
    }
    let advice = advice(name, &disk, &first, args.memory);
    let curve = match (&args.trace, &disk.image()) {
        (Some(path), Some(image)) => {
            let played = Played {
                image,
                slice_bytes: disk.status().map_or(slice_bytes, |status| status.cache_sizes.l2_entry_bytes),
                full_bytes: [image.status().map.resident_bytes, first.l2_bytes_full()],
            };
            Some(replay::play(path, &options.filename, &played)?)
        }
        _ => None,
    };
    let advice = advice.with_trace(curve);
    match args.output {
        OutputFormat::Json => write_json(out, &advice)?,
        OutputFormat::Human => out.write_all(advice.to_string().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What decides QEMU's cache of an image.
fn cached(image: &Qcow2) -> CachedImage {
    let geometry = image.geometry();
    CachedImage {
        disk_bytes: image.size(),
        cluster_bytes: geometry.cluster_size(),
        l2_table_entry_bytes: geometry.l2_entry_bytes(),
    }
}

fn advice(image: String, disk: &Disk, first: &CachedImage, memory: Option<u64>) -> Settled {
    let layers: Vec<Arc<dyn Block>> = block::layers(disk.root()).collect();
    let images = || layers.iter().filter_map(|layer| layer.downcast_ref::<Qcow2>());
    let maps: Vec<Counters> = images()
        .map(Qcow2::status)
        .flat_map(|status| [Some(status.map), status.chain.map(|chain| chain.map)])
        .flatten()
        .collect();
    let form = |(at, form): (usize, &Form)| FormBytes {
        form: form.name(),
        bytes: maps.iter().filter_map(|map| map.bytes_by_form.get(at)).sum(),
    };
    let qemu_default = cache_sizes(&CacheRequest::default(), first);
    Advice {
        image,
        disk_bytes: disk.size(),
        cluster_bytes: first.cluster_bytes,
        layers: layers.len(),
        map_bytes: maps.iter().map(|map| map.resident_bytes).sum(),
        forms: Form::ALL.iter().enumerate().map(form).filter(|form| form.bytes > 0).collect(),
        complete: maps.iter().all(|map| map.evictions == 0),
        qemu_bytes: images().map(cached).map(|image| image.l2_bytes_full()).sum(),
        qemu_first_bytes: first.l2_bytes_full(),
        qemu_covers_by_default: qemu_default.is_ok_and(|sizes| sizes.covers_disk),
        memory_bytes: memory,
    }
    .settled(first.l2_table_entry_bytes)
}
