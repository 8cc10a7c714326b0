//! `cowhand info`: what an image says about itself, from its metadata alone.

mod chain;
pub mod date;
mod human;
pub mod keys;

use std::io::Write;
use std::process::ExitCode;

use tool::failure::Failure;
use tool::info::model::ImageInfo;
use tool::info::name;
use tool::output::write_json;
use tool::voice;

pub use self::chain::{read_chain, read_image};
pub use self::human::{show_snapshots, show_specific};
use graph::cache_mode::CacheMode;

use crate::drive::{DRIVE_HELP, DriveArgs, cache_modes};
use crate::output::{OutputFormat, with_json};

/// Arguments of `cowhand info`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what an image says about itself: format, sizes, backing file, snapshots, bitmaps.\n\n\
        Only metadata is read, and no file that the image names is opened, except sparse extents of a vmdk image in its directory, \
        which say how large they are, and with --backing-chain: \
        then each backing file is shown too, as far as its name leads to a regular file in the directory of \
        the image that names it, under a directory given with --allow-path, or to an NBD server given with --allow-name, or as far as the administrator's rules in /etc/cowhand/policy.d allow it.",
    after_help = DRIVE_HELP,
    after_long_help = with_json(DRIVE_HELP, &keys::ALL)
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,

    /// Show the backing files too
    #[arg(long)]
    backing_chain: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', long, value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Show the limits of requests too: alignment, and what zeroes and discards are best aligned to
    #[arg(long)]
    limits: bool,

    /// Show what the file system or device of each file does too: holes, direct I/O, whether overwriting takes room
    #[arg(long)]
    medium: bool,
}

/// Shows the image, or its chain.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    let mut infos = match args.backing_chain {
        true => read_chain(&options, args.drive.policy()?)?,
        false => vec![read_image(&options)?],
    };
    if voice::is_qemu()
        && let Some(top) = infos.first_mut()
    {
        name::as_qemu(top, &options, args.drive.tree()?, args.drive.bare_driver());
    }
    for info in &mut infos {
        info.medium = info.medium.take().filter(|_| args.medium);
        if !args.limits {
            info.leave_out_limits();
        }
    }
    show(args, &infos, out)?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Args, infos: &[ImageInfo], out: &mut dyn Write) -> Result<(), Failure> {
    match (args.output, args.backing_chain, infos) {
        (OutputFormat::Json, true, infos) => write_json(out, &infos)?,
        (OutputFormat::Json, false, infos) => infos.iter().try_for_each(|info| write_json(out, info))?,
        (OutputFormat::Human, _, infos) => {
            for (index, info) in infos.iter().enumerate() {
                if index > 0 {
                    writeln!(out)?;
                }
                human::write_human(out, info)?;
            }
        }
    }
    Ok(())
}
