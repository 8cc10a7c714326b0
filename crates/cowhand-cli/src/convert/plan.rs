//! What a conversion copies and what it makes: decided before anything is written.

use std::ffi::OsString;
use std::path::Path;

use block::SECTOR_BYTES;
use graph::probe::Format;
use job::{Content, CopyOptions, LoopClock, Order, RateLimit, Scope, Zeroes};
use qcow2::Preallocation;
use tool::create::options::NewImage;
use tool::failure::Failure;
use tool::voice;

use super::args::Args;
use crate::copying::{Memory, WAITING_BYTES_MAX};
use crate::drive::is_device;

/// The longest run of zeroes that may be asked for: pieces are no longer.
pub const SPARSE_BYTES_MAX: u64 = 16 << 20;
/// The shortest one that is looked for, unless said otherwise; as qemu-img's.
pub const SPARSE_BYTES_DEFAULT: u64 = 4 << 10;

/// The decisions.
#[derive(Debug)]
pub struct Plan {
    /// The image that is made; its options say nothing where none is made.
    pub image: NewImage,
    /// Its size in bytes.
    pub size: u64,
    /// Which layers of the source are copied.
    pub scope: Scope,
    /// What the target reads as before.
    pub content: Content<'static>,
    memory: Memory,
    is_cold: bool,
}

impl Plan {
    /// For `count` sources of `source_bytes` together, of which one has a backing file if `has_backing` is set.
    ///
    /// # Errors
    /// When options contradict each other.
    pub fn of(
        args: &Args,
        source_bytes: u64,
        count: usize,
        has_backing: bool,
        memory: Memory,
    ) -> Result<Self, Failure> {
        let mut image = NewImage::parse_whole(&args.options, args.target_format)
            .map_err(|error| Failure::because("cannot convert", &error))?;
        if args.no_create && !args.options.is_empty() {
            return Err(Failure::new(
                "-o is for an image that is created, and -n creates none; give one of them",
            ));
        }
        if args.no_create && image.foreign.is_some() {
            let format = image.format;
            return Err(Failure::new(format!(
                "-n: a {format} image is written whole, and no disk that is there; leave -n out"
            )));
        }
        // The data of a stream is compressed in any case.
        if args.compress && image.foreign.as_ref().is_some_and(|foreign| !foreign.is_compressed()) {
            let format = image.format;
            return Err(Failure::new(format!(
                "-c: this {format} image has no compressed clusters; convert to qcow2 (-O qcow2)"
            )));
        }
        if args.compress && image.options.preallocation != Preallocation::Off && voice::is_qemu() {
            return Err(Failure::new(
                "-c: a compressed copy takes none of the space that preallocation reserves",
            ));
        }
        set_backing(args, &mut image, count)?;
        let size = image.size.unwrap_or(source_bytes).next_multiple_of(SECTOR_BYTES);
        if size < source_bytes {
            return Err(Failure::new(format!("-o size is {size}; what is copied has {source_bytes} bytes")));
        }
        let over_backing = image.options.backing_file.is_some();
        let scope = if over_backing && has_backing { Scope::Overlay } else { Scope::Everything };
        // A new LUKS file reads as noise.
        let is_zero = image.format != Format::Luks && !over_backing;
        let is_blank = (!args.no_create && is_zero) || args.target_is_zero;
        let content = match is_blank {
            true => Content::Zeroes,
            // qemu-img records zeroes in an existing target, whatever that reads as.
            false if args.no_create && voice::is_qemu() => Content::Overlay,
            false => Content::Unknown,
        };
        Ok(Self { image, size, scope, content, memory, is_cold: false })
    }

    /// The same; files of the source are not in memory if `is_cold` is set.
    pub fn reading_cold(self, is_cold: bool) -> Self {
        Self { is_cold, ..self }
    }

    /// How the copy is done, in pieces of whole units of `align_bytes`.
    pub fn copy_options(&self, args: &Args, align_bytes: u64) -> CopyOptions {
        // In a new file the order does not matter, and compressed clusters are packed as they are ready. A
        // device that seeks is written in order.
        let any_order = args.any_order || args.compress || !(args.no_create || on_device(args));
        CopyOptions {
            order: if any_order { Order::Free } else { Order::InOrder },
            in_flight: usize::from(args.in_flight.unwrap_or_else(|| self.default_in_flight(args))),
            memory_bytes: self.memory.copy_bytes,
            align_bytes,
            zeroes: match args.sparse {
                Some(0) => Zeroes::Write,
                _ if args.offload => Zeroes::ByMap,
                // A cluster is compressed as a whole: one of zeroes alone is left out, and -S says nothing of it, as in qemu-img.
                _ if args.compress => Zeroes::Detect(align_bytes.min(SPARSE_BYTES_MAX)),
                sparse => Zeroes::Detect(sparse.unwrap_or(SPARSE_BYTES_DEFAULT)),
            },
            unmap: true,
            salvage: args.salvage,
            rate: args.rate.map(|rate| RateLimit::new(rate, LoopClock)),
            // A new image is written back continuously anyway.
            flush_bytes: args.no_create.then_some(WAITING_BYTES_MAX),
        }
    }

    /// Of a file in memory few pieces at a time stay in the processor's caches. Of one that is not, the device wants many: few readers take half
    /// as long again where data comes in runs of some MiB, since the kernel reads ahead over holes.
    fn default_in_flight(&self, args: &Args) -> u8 {
        let is_direct = args.source_cache.is_some_and(|mode| mode.direct);
        let through_cache = |name: &OsString| !is_direct && Path::new(name).is_file();
        match args.names.split_last() {
            Some((_, sources)) if !args.compress && !args.offload && sources.iter().all(through_cache) => {
                if self.is_cold {
                    16
                } else {
                    4
                }
            }
            _ => 8,
        }
    }
}

/// Whether the new image is made on a block device.
fn on_device(args: &Args) -> bool {
    args.names.last().is_some_and(|target| is_device(Path::new(target)))
}

fn set_backing(args: &Args, image: &mut NewImage, count: usize) -> Result<(), Failure> {
    let options = &mut image.options;
    options.backing_file = args.backing.clone().or(options.backing_file.take());
    let format = args.backing_format.as_ref().map(|format| format.name().to_owned());
    options.backing_format = format.or(options.backing_format.take());
    let Some(name) = &options.backing_file else {
        return match &args.backing_format {
            // Nothing is made, and no name is put anywhere.
            Some(_) if args.no_create => Ok(()),
            Some(_) => Err(Failure::new("-F is the format of the backing file; name that with -B")),
            None => Ok(()),
        };
    };
    if image.format != Format::Qcow2 {
        let format = image.format;
        return Err(Failure::new(format!(
            "a {format} image has no backing file; leave -B and -F out, or convert to qcow2",
        )));
    }
    // The header of an image that is there already says it.
    if options.backing_format.is_none() && !args.no_create {
        return Err(Failure::new(format!("backing file {name} needs its format (-F qcow2 or -F raw)")));
    }
    if count > 1 {
        return Err(Failure::new("-B: several disks joined have no backing file in common; convert one"));
    }
    Ok(())
}
