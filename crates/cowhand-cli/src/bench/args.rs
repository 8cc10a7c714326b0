//! `cowhand bench`: the command line, and the workload that it means.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use graph::cache_mode::CacheMode;
use graph::options::Aio;
use graph::size::parse_size;
use tool::failure::Failure;
use tool::numbers::{between, whole};

use crate::bench::load::{Access, Barrier, Operation, Workload};
use crate::drive::DRIVE_HELP;
use crate::drive::{DriveArgs, cache_modes};
use crate::output::{OutputFormat, with_json};

/// Requests if neither their number nor a time is given, as in qemu-img.
const COUNT_DEFAULT: u64 = 75_000;

/// Measure reads or writes of an image, in process
///
/// Takes `qemu-img bench`'s options with their meaning and defaults, so that both can be measured with one
/// command line, and adds random, zipf-distributed and allocating access, mixed requests, write-zeroes and
/// discard, warm-up, a time limit, latencies and CPU time per request.
#[derive(Debug, ClapArgs)]
#[command(after_help = DRIVE_HELP,
    after_long_help = with_json(DRIVE_HELP, &[crate::bench::load::REPORT_JSON]))]
pub struct Args {
    /// The image.
    #[command(flatten)]
    pub drive: DriveArgs,

    /// Requests in all [default: 75000, or as many as --runtime allows]
    #[arg(short = 'c', long, value_name = "N", value_parser = whole::<u64>)]
    count: Option<u64>,

    /// Requests in flight at a time
    #[arg(short = 'd', long, default_value_t = 64, value_parser = between::<u32>(1, 65_536))]
    depth: u32,

    /// Bytes of a request
    #[arg(short = 's', long, value_name = "SIZE", default_value = "4k", value_parser = request_size)]
    buffer_size: u64,

    /// Distance between two requests [default, or 0: the size of a request; with --access allocating the cluster size]
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size)]
    step_size: Option<u64>,

    /// Offset of the first request
    #[arg(short = 'o', long, value_name = "SIZE", default_value = "0", value_parser = size)]
    offset: u64,

    /// Keep to this many bytes behind the offset [default: to the end of the disk]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    range: Option<u64>,

    /// Write instead of reading
    #[arg(short = 'w')]
    write: bool,

    /// With -w: this many of 100 requests are reads all the same
    #[arg(long, value_name = "PERCENT", requires = "write",
          value_parser = between::<u8>(0, 100))]
    reads: Option<u8>,

    /// Make ranges read as zeroes instead of reading; gives space back if DRIVE says discard=unmap
    #[arg(long, conflicts_with_all = ["write", "discard"])]
    write_zeroes: bool,

    /// Discard ranges instead of reading
    #[arg(long, conflicts_with = "write")]
    discard: bool,

    /// The byte to write
    #[arg(long, default_value_t = 0, value_parser = between::<u8>(0, 255))]
    pattern: u8,

    /// Flush after so many writes, at least as many as are in flight; 0 is never
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>)]
    flush_interval: u64,

    /// Start requests while a flush is in flight, too
    #[arg(long, requires = "flush_interval")]
    no_drain: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', long, value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    pub cache: Option<CacheMode>,

    /// How requests reach the kernel: io_uring, threads (native is qemu-img's; here it means io_uring)
    #[arg(short = 'i', long, value_name = "AIO", value_parser = aios(), hide_possible_values = true)]
    aio: Option<Aio>,

    /// Use io_uring, as qemu-img's -n asks for native AIO
    #[arg(short = 'n')]
    native: bool,

    /// The order of offsets
    #[arg(long, value_enum, default_value_t)]
    access: Order,

    /// Repeats the same random offsets
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>)]
    seed: u64,

    /// Requests that are made first and not counted
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>)]
    warm_up: u64,

    /// Make requests for so many seconds first, without counting them
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    warm_up_seconds: Option<Duration>,

    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    runtime: Option<Duration>,

    /// Print nothing but the result
    #[arg(short = 'q')]
    pub quiet: bool,

    /// human or json
    #[arg(long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// The order of offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Order {
    /// One step after the other, back to the start at the end
    #[default]
    Sequential,
    /// Anywhere, each place as likely as any other
    Random,
    /// Anywhere, a few places far more often than the rest
    Zipf,
    /// Each step (cluster) once, in random order
    Allocating,
}

impl Args {
    /// What each request does.
    pub fn operation(&self) -> Operation {
        let pattern = self.pattern;
        match (self.write, self.reads) {
            (true, Some(reads_percent)) => Operation::Mixed { pattern, reads_percent },
            (true, None) => Operation::Write { pattern },
            _ if self.write_zeroes => Operation::WriteZeroes { unmap: true },
            _ if self.discard => Operation::Discard,
            _ => Operation::Read,
        }
    }

    /// How requests reach the kernel, if that was asked for.
    pub fn aio(&self) -> Option<Aio> {
        self.aio.or(self.native.then_some(Aio::IoUring))
    }

    /// The workload on an image of `cluster_bytes`.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn workload(&self, cluster_bytes: u64) -> Result<Workload, Failure> {
        let step = match self.step_size.filter(|&step| step > 0) {
            None if self.access == Order::Allocating => cluster_bytes.max(self.buffer_size),
            step => step.unwrap_or(self.buffer_size),
        };
        let count_default = if self.runtime.is_some() { u64::MAX } else { COUNT_DEFAULT };
        Ok(Workload {
            count: self.count.unwrap_or(count_default),
            runtime: self.runtime,
            depth: self.depth,
            size: self.buffer_size,
            offset: self.offset,
            range: self.range,
            step,
            access: match self.access {
                Order::Sequential => Access::Sequential,
                Order::Random => Access::Random,
                Order::Zipf => Access::Zipf,
                Order::Allocating => Access::Allocating,
            },
            seed: self.seed,
            operation: self.operation(),
            barrier: self.barrier()?,
            warm_up: self.warm_up,
            warm_up_time: self.warm_up_seconds,
        })
    }

    /// The rules are qemu-img's.
    fn barrier(&self) -> Result<Option<Barrier>, Failure> {
        let interval = self.flush_interval;
        match interval {
            0 => Ok(None),
            _ if !self.operation().writes() => {
                Err(Failure::new("--flush-interval is for writes; give -w, --write-zeroes or --discard too"))
            }
            _ if interval < u64::from(self.depth) => Err(Failure::new(format!(
                "--flush-interval is {interval}; must be at least the depth, {}",
                self.depth
            ))),
            _ => Ok(Some(Barrier { interval, drain: !self.no_drain })),
        }
    }

    /// The lines before the run, as qemu-img words them.
    pub fn announcement(&self, workload: &Workload) -> String {
        let kind = match workload.operation {
            Operation::Read => "read",
            Operation::Write { .. } => "write",
            Operation::Mixed { .. } => "read and write",
            Operation::WriteZeroes { .. } => "write-zeroes",
            Operation::Discard => "discard",
        };
        let count = match (workload.count, workload.runtime) {
            (u64::MAX, Some(runtime)) => format!("{} seconds of", runtime.as_secs_f64()),
            (count, _) => count.to_string(),
        };
        let flushes = workload
            .barrier
            .map_or(String::new(), |barrier| format!("\nSending flush every {} requests", barrier.interval));
        format!(
            "Sending {count} {kind} requests, {} bytes each, {} in parallel (starting at offset {}, step size {}){flushes}",
            workload.size, workload.depth, workload.offset, workload.step
        )
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Most bytes of one request; the same as QEMU's.
const REQUEST_BYTES_MAX: u64 = 2_147_483_136;

fn request_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        size @ 1..=REQUEST_BYTES_MAX => Ok(size),
        size => Err(format!("a request of {size} bytes; must be 1 to {REQUEST_BYTES_MAX}")),
    }
}

/// Decimal, or hexadecimal after 0x, as qemu-img reads it.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    match seconds > 0.0 {
        true => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        false => Err("must be more than 0".to_owned()),
    }
}

fn aios() -> impl TypedValueParser<Value = Aio> {
    PossibleValuesParser::new(["io_uring", "threads", "native"])
        .map(|name| if name == "threads" { Aio::Threads } else { Aio::IoUring })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args)
    }

    fn workload(line: &str) -> Workload {
        parsed(line).unwrap().workload(65_536).unwrap()
    }

    #[test]
    fn without_options_it_does_what_qemu_img_bench_does() {
        let Workload { count, depth, size, offset, step, access, operation, barrier, .. } = workload("d");
        assert_eq!((count, depth, size, offset, step), (75_000, 64, 4096, 0, 4096));
        assert_eq!((access, operation, barrier), (Access::Sequential, Operation::Read, None));
    }

    #[test]
    fn every_option_of_qemu_img_bench_is_understood() {
        catalog::install();
        let line = "-c 10 -d 8 -f qcow2 -i threads -n -o 1M -s 8k -S 64k -t none -U -w -q --flush-interval=16 \
            --no-drain --pattern=0x5a --image-opts driver=qcow2";
        let args = parsed(line).unwrap();
        let Workload { count, depth, size, offset, step, operation, barrier, .. } =
            args.workload(65_536).unwrap();
        assert_eq!((count, depth, size, offset, step), (10, 8, 8192, 1 << 20, 65_536));
        assert_eq!(operation, Operation::Write { pattern: 0x5a });
        assert_eq!(barrier, Some(Barrier { interval: 16, drain: false }));
        assert_eq!(args.aio(), Some(Aio::Threads));
        assert!(args.quiet && args.cache.is_some_and(|mode| mode.direct));
    }

    #[test]
    fn a_flush_interval_is_for_writes_and_no_shorter_than_the_depth() {
        for (line, said) in
            [("d --flush-interval 64", "for writes"), ("d -w --flush-interval 63", "at least")]
        {
            let error = parsed(line).unwrap().workload(65_536).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let drained = workload("d -w --flush-interval 64").barrier;
        assert_eq!(drained, Some(Barrier { interval: 64, drain: true }));
    }

    #[test]
    fn allocating_access_steps_by_clusters_unless_asked_otherwise() {
        assert_eq!(workload("d --access allocating").step, 65_536);
        assert_eq!(workload("d --access allocating -s 128k").step, 131_072);
        assert_eq!(workload("d --access allocating -S 2M").step, 2 << 20);
        assert_eq!(workload("d -S 0").step, 4096);
    }

    #[test]
    fn a_time_limit_takes_the_place_of_the_number_of_requests() {
        let limited = workload("d --runtime 0.5");
        assert_eq!((limited.count, limited.runtime), (u64::MAX, Some(Duration::from_millis(500))));
        assert_eq!(workload("d --runtime 1 -c 9").count, 9);
        assert!(parsed("d --runtime 0").is_err() && parsed("d --runtime x").is_err());
    }

    #[test]
    fn what_requests_do_is_said_once() {
        assert_eq!(workload("d -w --reads 70").operation, Operation::Mixed { pattern: 0, reads_percent: 70 });
        assert_eq!(workload("d --discard").operation, Operation::Discard);
        assert_eq!(workload("d --write-zeroes").operation, Operation::WriteZeroes { unmap: true });
        for line in ["d -w --discard", "d -w --write-zeroes", "d --reads 5", "d -w --reads 101", "d -d 0"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_announcement_has_qemu_img_s_shape() {
        let args = parsed("d -w --flush-interval 64").unwrap();
        let expected = "Sending 75000 write requests, 4096 bytes each, 64 in parallel (starting at offset 0, step size \
            4096)\nSending flush every 64 requests";
        assert_eq!(args.announcement(&args.workload(65_536).unwrap()), expected);
    }
}
