//! `cowhand resize`: another size for the disk in an image that nobody else has open.

use std::io::Write;
use std::process::ExitCode;

use image::size::parse_size;
use image::{Disk, OpenRules};
use qcow2::{Layer, Preallocation, Raw, ResizeOptions};
use reactor::Reactor;
use storage::Allocation;

use crate::drive::DriveArgs;
use crate::failure::Failure;

/// Arguments of `cowhand resize`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Change the size of the disk in an image. What is added reads as zeroes; what is cut off is lost.\n\n\
        The image must not be open elsewhere.",
    after_help = "\
Examples:
  cowhand resize disk.qcow2 40G
  cowhand resize disk.qcow2 +10G --preallocation metadata
  cowhand resize --shrink disk.qcow2 -5G"
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// The new size in bytes, or with k, M, G, T, P, E; with + or - before it, the change
    #[arg(value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    size: String,

    /// A smaller disk is meant: what lies behind its end is lost
    #[arg(long)]
    shrink: bool,

    /// What of the added part is allocated at once: off, metadata, falloc or full
    #[arg(long, value_name = "MODE", value_parser = parse_preallocation, default_value = "off")]
    preallocation: Preallocation,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,
}

/// Changes the size.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let options = args.drive.options()?;
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot resize {}", options.filename.display()), error)
    };
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let reactor = Reactor::new(reactor::available()).map_err(|error| failed(&error))?;
    reactor.run(async {
        let disk = image::open(&options, &rules).await.map_err(|error| failed(&error))?;
        let done = match new_size(&args.size, disk.size()) {
            Ok(size) => resize(args, &disk, size).await.map_err(|error| failed(&*error)),
            Err(failure) => Err(failure),
        };
        let closed = disk.close().await.map_err(|error| failed(&error));
        done.and(closed)
    })?;
    if !args.quiet {
        writeln!(out, "Image resized.")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn resize(args: &Args, disk: &Disk, size: u64) -> Result<(), Box<dyn std::error::Error>> {
    let options = ResizeOptions { shrink: args.shrink, preallocation: args.preallocation };
    match disk.layer() {
        Layer::Qcow2(_) => Ok(disk.resize(size, options).await?),
        Layer::Raw(raw) => resize_raw(raw, size, options).await,
    }
}

/// A raw disk is as long as its file.
async fn resize_raw(raw: &Raw, size: u64, options: ResizeOptions) -> Result<(), Box<dyn std::error::Error>> {
    let old = raw.size;
    if !raw.storage.limits().resizable || raw.offset != 0 {
        return Err("the disk is a device or a part of a file, whose size is what it is".into());
    }
    if size < old && !options.shrink {
        return Err(format!(
            "the new size ({size}) is below the old one ({old}): what lies beyond would be lost; add --shrink"
        )
        .into());
    }
    if size < old && options.preallocation != Preallocation::Off {
        return Err("nothing is added that could be preallocated while shrinking".into());
    }
    let how = match options.preallocation {
        Preallocation::Off => None,
        Preallocation::Falloc => Some(Allocation::Reserve),
        Preallocation::Full => Some(Allocation::Write),
        Preallocation::Metadata => {
            return Err("a raw image has no metadata that could be preallocated".into());
        }
    };
    raw.storage.set_length(size).await?;
    if let Some(how) = how.filter(|_| size > old) {
        raw.storage.allocate(old, size - old, how).await?;
    }
    Ok(raw.storage.flush().await?)
}

/// The size that `text` means for a disk of `old` bytes.
fn new_size(text: &str, old: u64) -> Result<u64, Failure> {
    let refused = || {
        Failure::new(format!(
            "{text} is no change of a disk of {old} bytes: the result must be 0 to 2^63 bytes"
        ))
    };
    let parsed = |number: &str| {
        parse_size(number).map_err(|error| Failure::because(format!("cannot understand {text}"), &error))
    };
    if let Some(more) = text.strip_prefix('+') {
        return old.checked_add(parsed(more)?).ok_or_else(refused);
    }
    match text.strip_prefix('-') {
        Some(less) => old.checked_sub(parsed(less)?).ok_or_else(refused),
        None => parsed(text),
    }
}

fn parse_preallocation(name: &str) -> Result<Preallocation, String> {
    let all = [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];
    let found = all.into_iter().find(|mode| mode.name() == name);
    found.ok_or_else(|| "allowed: off, metadata, falloc, full".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_makes_a_change_of_a_size() {
        let size = |text| new_size(text, 1000).ok();
        assert_eq!([size("2k"), size("+1k"), size("-1000")], [Some(2048), Some(2024), Some(0)]);
        assert_eq!([size("-1001"), size("+16E"), size("x"), size("+-1")], [None; 4]);
    }
}
