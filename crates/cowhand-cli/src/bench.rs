//! `cowhand bench`: what an image costs to use, in process.

mod args;
pub mod load;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use graph::options::{Aio, DiskOptions};
use graph::{Disk, OpenRules};
use reactor::{Backend, Reactor};
use tool::failure::Failure;
use tool::output::write_json;
use tool::voice;

pub use self::args::Args;
use self::load::Report;
use crate::output::OutputFormat;

/// Runs `cowhand bench`.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let options = options(args)?;
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let backend = match options.layer.file.aio {
        Some(Aio::Threads) => Backend::Threads,
        Some(Aio::IoUring) | None => Backend::Ring,
    };
    let reactor =
        Reactor::new(backend).map_err(|error| Failure::because("cannot start an event loop", &error))?;
    let report = reactor.run(async {
        let disk = graph::open(&options, &rules)
            .await
            .map_err(|error| Failure::because("cannot open the image", &error))?;
        let disk = Arc::new(disk);
        disk.start_upkeep();
        let report = measure(args, &disk, out).await;
        let closed = disk.close().await.map_err(|error| Failure::because("cannot close the image", &error));
        report.and_then(|report| closed.map(|()| report))
    })?;
    show(&report, args.output, out)?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args) -> Result<DiskOptions, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = !args.operation().writes();
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    if let Some(aio) = args.aio() {
        options.set_aio(aio);
    }
    Ok(options)
}

async fn measure(args: &Args, disk: &Arc<Disk>, out: &mut dyn Write) -> Result<Report, Failure> {
    let cluster_bytes = disk.root().capabilities().cluster_bytes.unwrap_or(0);
    let workload = args.workload(cluster_bytes)?;
    if !args.quiet && matches!(args.output, OutputFormat::Human) {
        writeln!(out, "{}", args.announcement(&workload))?;
        out.flush()?;
    }
    load::run(disk, workload).await.map_err(|error| Failure::because("a request failed", &error))
}

fn show(report: &Report, format: OutputFormat, out: &mut dyn Write) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => write_json(out, report)?,
        OutputFormat::Human => out.write_all(summary(report).as_bytes())?,
    }
    Ok(())
}

/// The result for people; its first line is qemu-img's only one.
fn summary(report: &Report) -> String {
    let map = report.map.map_or(String::new(), |map| {
        format!(
            "  map: {} hits, {} misses, {} KiB in memory\n",
            map.hits,
            map.misses,
            map.resident_bytes >> 10
        )
    });
    let completed = format!("Run completed in {:.3} seconds.\n", report.seconds);
    if voice::is_qemu() {
        return completed;
    }
    format!(
        "{completed}  {} requests, {:.0} a second, {:.1} MiB/s\n  \
         CPU per request: {:.2} us user, {:.2} us system\n  \
         latency in us: {:.1} median, {:.1} at 90 %, {:.1} at 99 %, {:.1} at 99.9 %, {:.1} at most\n{map}",
        report.requests,
        report.requests_per_second,
        report.bytes_per_second / f64::from(1 << 20),
        report.user_us_per_request,
        report.system_us_per_request,
        report.p50_us,
        report.p90_us,
        report.p99_us,
        report.p999_us,
        report.max_us
    )
}
