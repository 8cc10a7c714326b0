//! The command line of `cowhand convert`.

use std::ffi::OsString;

use block::SECTOR_BYTES;
use graph::cache_mode::CacheMode;
use graph::options::DiskOptions;
use graph::probe::Format;
use qcow2::snapshot::SnapshotName;
use tool::failure::Failure;
use tool::numbers::between;
use tool::voice;

use super::plan;
use super::snapshot;
use crate::copying::MEMORY_BYTES_MIN;
use crate::drive::{
    BackingFormat, OpenArgs, backing_formats, cache_modes, formats, parse_bytes, target_formats,
};

/// Arguments of `cowhand convert`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Copy disks into an image: of another format, compressed, with other clusters, over a backing file. Several \
        disks become one, the first one first.\n\n\
        A new image has the name TARGET when it is whole and on disk: whatever happens before, there is what was there \
        before. On a block device what was there is lost, and is no image before the new one is whole. With -n the disk that is \
        there is written.\n\n\
        TARGET may be a new object of a store, s3://BUCKET/KEY (or gs, or az), raw or qcow2: it is uploaded in parts and visible when it is whole. An \
        object that is there stays, unless --force is given.\n\n\
        A vpc image (for Azure: -o subformat=fixed,force_size) or a vmdk (for an OVA: -o subformat=streamOptimized) is written in order, \
        such a vmdk and a fixed vpc also to a pipe.\n\n\
        A DRIVE that is - is read from a pipe to its end first, into a file without a name in TMPDIR (or /var/tmp). As TARGET, - takes a \
        raw disk from the first byte to the last.",
    after_help = "\
Examples:
  cowhand convert -O qcow2 disk.raw disk.qcow2
  cowhand convert -p disk.qcow2 disk.raw
  cowhand convert -O qcow2 -c -o compression_type=zstd disk.qcow2 archive.qcow2
  cowhand convert -C -O raw disk.raw copy.raw
  cowhand convert -O qcow2 -B base.qcow2 -F qcow2 overlay.qcow2 copy.qcow2
  cowhand convert -l before-upgrade disk.qcow2 then.raw
  cowhand convert -n -O raw --target-is-zero --verify disk.qcow2 /dev/vg/disk
  cowhand convert -n -O raw disk.qcow2 nbd://server/disk
  cowhand convert -O qcow2 --bitmaps disk.qcow2 copy.qcow2
  cowhand convert -O raw disk.qcow2 /dev/vg/disk
  cowhand convert -p -c -O qcow2 disk.raw s3://images/debian.qcow2
  cowhand convert -O vpc -o subformat=fixed,force_size disk.qcow2 disk.vhd
  cowhand convert -O vmdk -o subformat=streamOptimized,adapter_type=lsilogic disk.qcow2 disk.vmdk
  cowhand convert disk.qcow2 - | gzip > disk.raw.gz
cowhand info --help says what a DRIVE is."
)]
pub struct Args {
    /// What is copied, and the image that becomes of it as the last
    #[arg(value_name = "DRIVE... TARGET", required_unless_present = "options")]
    pub(super) names: Vec<OsString>,

    /// Format of each DRIVE: qcow2 or raw [default: what its first bytes say]
    #[arg(short = 'f', value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    pub(super) format: Option<Format>,

    #[command(flatten)]
    pub(super) opening: OpenArgs,

    /// Format of TARGET: qcow2, raw, luks, vpc or vmdk
    #[arg(
        short = 'O', value_name = "FORMAT", value_parser = target_formats(), hide_possible_values = true, default_value = "raw",
        requires_ifs = [("null-co", "no_create"), ("null-aio", "no_create")],
    )]
    pub(super) target_format: Format,

    /// Creation options of TARGET: name=value,... (-o help lists them; may be repeated)
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,

    /// The backing file of TARGET: only what DRIVE has above its own backing file is copied
    #[arg(short = 'B', visible_short_alias = 'b', value_name = "PATH")]
    pub(super) backing: Option<String>,

    /// Format of the backing file: qcow2 or raw (needed with -B)
    #[arg(short = 'F', value_name = "FORMAT", value_parser = backing_formats(), hide_possible_values = true)]
    pub(super) backing_format: Option<BackingFormat>,

    /// Write compressed clusters
    #[arg(short = 'c')]
    pub(super) compress: bool,

    /// TARGET is there: write to it, create nothing
    #[arg(short = 'n')]
    pub(super) no_create: bool,

    /// A snapshot of DRIVE, in place of its disk: an id or a name, or snapshot.id=ID,snapshot.name=NAME
    #[arg(short = 'l', value_name = "SNAPSHOT", value_parser = snapshot::parse)]
    pub(super) snapshot: Option<SnapshotName>,

    /// Zeroes of at least so many bytes stay holes; 0 writes all of them [default: 4k]
    #[arg(short = 'S', value_name = "BYTES", value_parser = parse_bytes, conflicts_with = "offload")]
    pub(super) sparse: Option<u64>,

    /// Have the kernel copy data from file to file, where it can share it too; zeroes in it are not looked for
    #[arg(short = 'C', conflicts_with = "compress")]
    pub(super) offload: bool,

    /// Pieces under way at a time: 1 to 16 [default: 8; 4 where files are read through the page cache]
    #[arg(short = 'm', value_name = "NUMBER", value_parser = between::<u8>(1, 16))]
    pub(super) in_flight: Option<u8>,

    /// Write in any order (the default for what is created; with -n it is the order of the disk)
    #[arg(short = 'W')]
    pub(super) any_order: bool,

    /// Bytes a second at most
    #[arg(short = 'r', value_name = "RATE", value_parser = parse_bytes)]
    pub(super) rate: Option<u64>,

    /// Cache mode of TARGET: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    pub(super) target_cache: Option<CacheMode>,

    /// Cache mode of each DRIVE
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    pub(super) source_cache: Option<CacheMode>,

    /// TARGET reads as zeroes everywhere (with -n)
    #[arg(long, requires = "no_create")]
    pub(super) target_is_zero: bool,

    /// Replace the object that is there, where TARGET is s3://BUCKET/KEY (a file is replaced anyway)
    #[arg(long, conflicts_with = "no_create")]
    pub(super) force: bool,

    /// Read TARGET as key=value options (with -n)
    #[arg(long, requires = "no_create")]
    pub(super) target_image_opts: bool,

    /// What cannot be read becomes zeroes
    #[arg(long, conflicts_with = "verify")]
    pub(super) salvage: bool,

    /// Compare afterwards
    #[arg(long)]
    pub(super) verify: bool,

    /// Memory for the copy and the maps, 4M at least
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64M")]
    pub(super) memory_limit: u64,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere), and how much is durable at the end
    #[arg(short = 'p')]
    pub(super) progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    pub(super) quiet: bool,

    /// Copy the persistent bitmaps of DRIVE too
    #[arg(long, conflicts_with = "snapshot")]
    pub(super) bitmaps: bool,

    /// Leave out bitmaps that are inconsistent
    #[arg(long, requires = "bitmaps")]
    pub(super) skip_broken_bitmaps: bool,
}

impl Args {
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.memory_limit < MEMORY_BYTES_MIN {
            let what = format!("--memory-limit is {}; allowed: 4M and more", self.memory_limit);
            return Err(Failure::new(what));
        }
        let sparse = self.sparse.unwrap_or(plan::SPARSE_BYTES_DEFAULT);
        if !sparse.is_multiple_of(SECTOR_BYTES) || sparse > plan::SPARSE_BYTES_MAX {
            let what = format!("-S is {sparse}; allowed: multiples of 512 up to 16M, and 0");
            return Err(Failure::new(what));
        }
        if self.compress && ![Format::Qcow2, Format::Vmdk].contains(&self.target_format) {
            let format = self.target_format;
            return Err(Failure::new(format!(
                "-c: a {format} image has no compressed clusters; convert to qcow2 (-O qcow2)",
            )));
        }
        if self.compress && self.sparse == Some(0) && !voice::is_qemu() {
            return Err(Failure::new(
                "-S 0 writes all of the disk and -c as little as possible; give one of them",
            ));
        }
        if self.offload && self.salvage && voice::is_qemu() {
            return Err(Failure::new(
                "-C has the kernel copy, and --salvage reads each piece; give one of them",
            ));
        }
        Ok(())
    }

    pub(super) fn source_options(&self, drive: &OsString) -> Result<DiskOptions, Failure> {
        let mut options = self.opening.options(drive, "-f", self.format)?;
        options.layer.read_only = true;
        if let Some(mode) = self.source_cache {
            options.set_cache(mode);
        }
        Ok(options)
    }
}
