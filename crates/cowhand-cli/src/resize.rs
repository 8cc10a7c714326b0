//! `cowhand resize`: another size for a disk, in an image that is not in use or in a running server.

pub mod file;
mod served;

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

use graph::size::parse_size;
use qcow2::Preallocation;
use tool::failure::Failure;
use tool::voice;

use crate::drive::DriveArgs;

/// Arguments of `cowhand resize`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Change the size of a disk. What is added reads as zeroes (of a LUKS file as noise); what is cut off is lost.\n\n\
        An image must not be open elsewhere. A disk that cowhand serves is resized while it is in use: give the \
        server's control socket (cowhand serve --qmp) in place of the image. A guest over vhost-user-blk or ublk \
        sees the new size at once, and so does who reads the file of a FUSE export. NBD clients see it when they connect again.",
    after_help = "\
Examples:
  cowhand resize disk.qcow2 40G
  cowhand resize disk.qcow2 +10G --preallocation metadata
  cowhand resize --shrink disk.qcow2 -5G
  cowhand resize /run/vm1.qmp 40G --disk data"
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

    /// What of the added part is allocated at once: off, metadata, falloc or full (images only)
    #[arg(long, value_name = "MODE", value_parser = parse_preallocation, default_value = "off")]
    preallocation: Preallocation,

    /// The disk of a server, by its node's name [default: the only one]
    #[arg(long, value_name = "NAME")]
    disk: Option<String>,

    /// Say nothing
    #[arg(short = 'q')]
    quiet: bool,
}

/// Changes the size.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let path = Path::new(&args.drive.drive);
    let done = if path.metadata().is_ok_and(|found| found.file_type().is_socket()) {
        served::resize(path, args)?
    } else {
        file::resize(args)?
    };
    let done = if voice::is_qemu() { file::RESIZED } else { &done };
    if !args.quiet {
        writeln!(out, "{done}")?;
    }
    Ok(ExitCode::SUCCESS)
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

/// A smaller disk must be meant.
fn check_shrink(args: &Args, size: u64, old: u64) -> Result<(), Failure> {
    if size == 0 && voice::is_qemu() {
        return Err(Failure::new("the new size is 0 bytes; must be 1 at least"));
    }
    if size >= old || args.shrink {
        return Ok(());
    }
    let what = format!(
        "the new size ({size} bytes) is below the old one ({old} bytes): what lies beyond would be lost"
    );
    Err(Failure::new(what).with_hint("if that is meant, add --shrink"))
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
