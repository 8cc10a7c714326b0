//! `cowhand bench`: what an image costs to use, in process.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use bench::{Access, Report, Workload};
use clap::{Args as ClapArgs, ValueEnum};
use image::OpenRules;
use image::cache_mode::CacheMode;
use image::options::Aio;
use image::size::parse_size;
use reactor::{Backend, Reactor};

use crate::cli::DRIVE_HELP;
use crate::drive::DriveArgs;
use crate::failure::Failure;
use crate::output::{OutputFormat, write_json};

/// Measure reads or writes of an image, in process
///
/// Takes `qemu-img bench`'s options, so that both can be measured with one command line, and adds
/// random and zipf-distributed access, warm-up, latencies and CPU time per request.
#[derive(Debug, ClapArgs)]
#[command(after_help = DRIVE_HELP)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Requests in all
    #[arg(short = 'c', long, default_value_t = 75_000)]
    count: u64,

    /// Requests in flight at a time
    #[arg(short = 'd', long, default_value_t = 64)]
    depth: u32,

    /// Bytes of a request
    #[arg(short = 's', long, value_name = "SIZE", default_value = "4k", value_parser = size)]
    buffer_size: u64,

    /// Distance between two requests [default: the size of a request]
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = size)]
    step_size: Option<u64>,

    /// Offset of the first request
    #[arg(short = 'o', long, value_name = "SIZE", default_value = "0", value_parser = size)]
    offset: u64,

    /// Write instead of reading
    #[arg(short = 'w')]
    write: bool,

    /// The byte to write
    #[arg(long, default_value_t = 0)]
    pattern: u8,

    /// Flush after so many writes; 0 is never
    #[arg(long, value_name = "N", default_value_t = 0)]
    flush_interval: u64,

    /// Accepted for qemu-img's sake: a flush here never waits for requests that began after it
    #[arg(long, requires = "flush_interval")]
    no_drain: bool,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 't', long, value_name = "MODE", value_parser = cache_mode)]
    cache: Option<CacheMode>,

    /// How requests reach the kernel: io_uring, threads (native is qemu-img's; here it means io_uring)
    #[arg(short = 'i', long, value_name = "AIO", value_parser = aio)]
    aio: Option<Aio>,

    /// Use io_uring, as qemu-img's -n asks for native AIO
    #[arg(short = 'n')]
    native: bool,

    /// The order of offsets
    #[arg(long, value_enum, default_value_t)]
    access: Order,

    /// Repeats the same random offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Requests that are made first and not counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm_up: u64,

    /// Print nothing but the result
    #[arg(short = 'q')]
    quiet: bool,

    /// human or json
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// The order of offsets.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Order {
    /// One after the other, back to the start at the end.
    #[default]
    Sequential,
    /// Anywhere, each place as likely as any other.
    Random,
    /// Anywhere, a few places far more often than the rest.
    Zipf,
}

/// Runs `cowhand bench`.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = !args.write;
    if let Some(mode) = args.cache {
        options.layer.cache = mode;
        for file in [&mut options.layer.file, &mut options.layer.data_file] {
            (file.direct, file.no_flush) = (mode.direct, mode.no_flush);
        }
    }
    if args.native {
        options.layer.file.aio = Some(Aio::IoUring);
    }
    options.layer.file.aio = args.aio.or(options.layer.file.aio);
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let backend = match options.layer.file.aio {
        Some(Aio::Threads) => Backend::Threads,
        Some(Aio::IoUring) | None => reactor::available(),
    };
    let reactor =
        Reactor::new(backend).map_err(|error| Failure::because("cannot start an event loop", &error))?;
    let workload = workload(args);
    if !args.quiet && matches!(args.output, OutputFormat::Human) {
        writeln!(out, "{}", announcement(args))?;
        out.flush()?;
    }
    let report = reactor.run(async {
        let disk = image::open(&options, &rules)
            .await
            .map_err(|error| Failure::because("cannot open the image", &error))?;
        let disk = Arc::new(disk);
        disk.keep_house();
        let report =
            bench::run(&disk, workload).await.map_err(|error| Failure::because("a request failed", &error));
        let closed = disk.close().await.map_err(|error| Failure::because("cannot close the image", &error));
        report.and_then(|report| closed.map(|()| report))
    })?;
    show(&report, args.output, out)?;
    Ok(ExitCode::SUCCESS)
}

fn workload(args: &Args) -> Workload {
    Workload {
        count: args.count,
        depth: args.depth,
        size: args.buffer_size,
        offset: args.offset,
        step: args.step_size.unwrap_or(args.buffer_size),
        access: match args.access {
            Order::Sequential => Access::Sequential,
            Order::Random => Access::Random,
            Order::Zipf => Access::Zipf,
        },
        seed: args.seed,
        write: args.write.then_some(args.pattern),
        flush_interval: args.flush_interval,
        warm_up: args.warm_up,
    }
}

fn announcement(args: &Args) -> String {
    let what = if args.write { "write" } else { "read" };
    format!(
        "Making {} {what} requests of {} bytes, {} at a time (from offset {}, step {})",
        args.count,
        args.buffer_size,
        args.depth,
        args.offset,
        args.step_size.unwrap_or(args.buffer_size)
    )
}

fn show(report: &Report, format: OutputFormat, out: &mut dyn Write) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => write_json(out, report)?,
        OutputFormat::Human => {
            writeln!(out, "Run completed in {:.3} seconds.", report.seconds)?;
            writeln!(out, "  {:.0} requests/s", report.requests_per_second)?;
            writeln!(
                out,
                "  CPU per request: {:.2} us user, {:.2} us system",
                report.user_us_per_request, report.system_us_per_request
            )?;
            writeln!(
                out,
                "  latency: {:.1} us median, {:.1} us at 99 %, {:.1} us at 99.9 %",
                report.p50_us, report.p99_us, report.p999_us
            )?;
        }
    }
    Ok(())
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn cache_mode(name: &str) -> Result<CacheMode, String> {
    CacheMode::of_name(name)
        .ok_or_else(|| "allowed: writeback, writethrough, none, off, directsync, unsafe".to_owned())
}

fn aio(name: &str) -> Result<Aio, String> {
    match name {
        "io_uring" | "native" => Ok(Aio::IoUring),
        "threads" => Ok(Aio::Threads),
        _ => Err("allowed: io_uring, threads, native".to_owned()),
    }
}
