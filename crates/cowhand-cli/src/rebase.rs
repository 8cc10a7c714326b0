//! `cowhand rebase`: an overlay put over another image.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use block::Block;
use graph::cache_mode::CacheMode;
use graph::drivers::elsewhere;
use graph::names::beside;
use graph::options::{Backing, Discard, DiskOptions};
use graph::{Disk, OpenRules};
use job::{CopyOptions, Counters, Zeroes};
use tool::failure::Failure;
use tool::voice;

use crate::copying::watch::Watch;
use crate::copying::{self, Memory, WAITING_BYTES_MAX};
use crate::drive::{
    BackingFormat, DriveArgs, backing_formats, cache_modes, check_backing_name, disk_options,
};

/// Arguments of `cowhand rebase`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Give an overlay another backing file. What it showed of the old one and the new one does not have is written to \
        it first, so that its disk stays the same. With -b '' it has no backing file afterwards.\n\n\
        With -u only the name is changed: right where the backing file was moved or renamed, and wrong where it has another \
        content.",
    after_help = "\
Examples:
  cowhand rebase -b new-base.qcow2 -F qcow2 overlay.qcow2
  cowhand rebase -b '' overlay.qcow2              # no backing file afterwards
  cowhand rebase -u -b moved/base.qcow2 -F qcow2 overlay.qcow2"
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// The new backing file, from the overlay's directory; '' for none
    #[arg(short = 'b', value_name = "PATH")]
    backing: String,

    /// Its format: qcow2 or raw
    #[arg(short = 'F', value_name = "FORMAT", value_parser = backing_formats(), hide_possible_values = true)]
    backing_format: Option<BackingFormat>,

    /// Change the name alone, without looking at either backing file
    #[arg(short = 'u', conflicts_with = "compress")]
    only_name: bool,

    /// Write compressed clusters
    #[arg(short = 'c')]
    compress: bool,

    /// Cache mode of the overlay: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Cache mode of the backing files
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    backing_cache: Option<CacheMode>,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    quiet: bool,
}

/// Rebases.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.backing.is_empty() && args.backing_format.is_none() {
        let what = format!("backing file {} needs its format (-F qcow2 or -F raw)", args.backing);
        return Err(Failure::new(what));
    }
    let mut options = args.drive.options()?;
    options.layer.discard = Discard::Unmap;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    if args.only_name {
        options.layer.backing = Backing::None;
    }
    let memory = Memory::default();
    let rules = memory.rules(args.drive.policy()?);
    let watch = Watch::begin(args.progress && !args.quiet)?;
    copying::reactor()?.run(async {
        let overlay = copying::open(&options, &rules, "rebase").await?;
        let rebased = rebase(args, &options, &overlay, &rules, &watch, memory).await;
        copying::finish(&overlay, rebased, |error| copying::because("rebase", &options, error)).await
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn rebase(
    args: &Args,
    options: &DiskOptions,
    overlay: &Arc<Disk>,
    rules: &OpenRules,
    watch: &Watch,
    memory: Memory,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| copying::because("rebase", options, error);
    let Some(image) = overlay.image() else {
        return Err(Failure::new(format!("{} is raw: it has no image below", options.filename.display())));
    };
    if !args.only_name {
        let backing = match args.backing.is_empty() {
            true => None,
            false => Some(copying::open(&below(args, options)?, rules, "open backing file").await?),
        };
        if backing.is_some() {
            // Zeroes that are written now hide what the new image has, also where nothing lies below yet.
            image.await_backing();
        }
        copy(args, overlay, backing.as_deref(), watch, memory).await.map_err(|error| failed(&*error))?;
        watch.check()?;
    }
    if args.only_name {
        let mut progress = watch.progress(1);
        let _ = watch.look(&mut progress, 1);
        progress.end();
    }
    let name = Some(args.backing.clone()).filter(|name| !name.is_empty());
    // Without a backing file its format means nothing; callers give it all the same.
    let format =
        args.backing_format.as_ref().filter(|_| name.is_some()).map(|format| format.name().to_owned());
    image.set_backing_name(name, format).await.map_err(|error| failed(&error))
}

/// How the new backing file is opened: by its name from the overlay's directory, or from the server that the
/// name leads to.
fn below(args: &Args, overlay: &DiskOptions) -> Result<DiskOptions, Failure> {
    check_backing_name(&overlay.filename, &args.backing)?;
    let is_drive = args.backing.starts_with("json:") || elsewhere(Path::new(&args.backing)).is_some();
    let mut options = match is_drive {
        true => disk_options(&OsString::from(&args.backing), |_| false)?,
        false => DiskOptions::of_path(beside(&overlay.filename, &args.backing)),
    };
    options.layer.read_only = true;
    options.layer.format =
        options.layer.format.or(args.backing_format.as_ref().and_then(BackingFormat::format));
    if let Some(mode) = args.backing_cache {
        options.set_cache(mode);
    }
    Ok(options)
}

/// Copies to the overlay what it shows of the old backing file and the new one would not show.
async fn copy(
    args: &Args,
    overlay: &Disk,
    backing: Option<&Disk>,
    watch: &Watch,
    memory: Memory,
) -> Result<(), Box<dyn std::error::Error>> {
    let compressing = match args.compress {
        true => Some(overlay.compressing()?),
        false => None,
    };
    let target = compressing.as_ref().map_or(overlay as &dyn Block, |compressing| compressing);
    let backing = backing.map(|backing| backing as &dyn Block);
    // qemu-img writes as data what the old backing file has, zeroes too.
    let old_bytes = overlay.image().and_then(|image| image.below()).map_or(0, |old| old.size());
    let zeroes = if voice::is_qemu() { Zeroes::WriteBefore(old_bytes) } else { Zeroes::ByMap };
    let options = CopyOptions {
        memory_bytes: memory.copy_bytes,
        zeroes,
        flush_bytes: Some(WAITING_BYTES_MAX),
        ..CopyOptions::default()
    };
    let copy = job::copies::rebase(overlay, target, backing, options);
    watch.run(&copy, &Counters::default()).await?;
    Ok(())
}
