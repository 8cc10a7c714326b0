//! `cowhand compact`: a smaller file for the same image, in place.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use graph::OnLoop;
use graph::Secrets;
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::size::human_size;
use qcow2::{CompactOptions, CompactReport};
use serde::Serialize;
use storage::Storage;
use tool::failure::Failure;
use tool::output::write_json;

use crate::copying;
use crate::copying::watch::Watch;
use crate::drive::DriveArgs;
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand compact --dry-run disk.qcow2        # says what it would gain
  cowhand compact -p disk.qcow2
  cowhand compact --defragment disk.qcow2     # also puts the data in the guest's order
  cowhand compact --detect-zeroes disk.qcow2  # also frees clusters of zeroes
cowhand info --help says what a DRIVE is.";

/// Arguments of `cowhand compact`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Make an image's file smaller, in place: clusters at its end move, in the guest's order, to where the file has \
        free ones, clusters that nothing uses are freed, the file is cut behind the last one in use, and the space of what is \
        free before that goes back to the file system. Disk, snapshots and bitmaps keep what they hold; compressed clusters \
        stay compressed.\n\n\
        With --defragment all data is put in the guest's order, and so are the tables that lead to it (L2), among themselves. \
        Compressed clusters stay: several share one cluster of the file, and each is read by a request of its own wherever it is. The \
        file is longer by up to 4 GiB meanwhile.\n\n\
        Data of an encrypted image is encrypted anew for each new place: give encrypt.key-secret=ID.\n\n\
        The image must not be in use. It is whole at any moment: interrupted or killed, it keeps clusters that are counted and \
        not used at most, which the next run frees.",
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Change nothing, and say what would be gained
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Free clusters that hold nothing but zeroes
    #[arg(long)]
    detect_zeroes: bool,

    /// Put the data in the guest's order first, from the front of the file on (moves most of it, some of it twice)
    #[arg(long)]
    defragment: bool,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p', long)]
    progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q', long)]
    quiet: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`Report`] prints.
const JSON: &str = "  filename                text: the image
  dry-run                 bool: nothing was changed
  length-before, length-after  length of the file
  allocated-before, allocated-after  space that the file takes, or null if that is not known
  allocated-clusters      number of clusters of the disk in the image
  fragmented-clusters-before, fragmented-clusters-after
                          number of these that do not follow the one before them
  leaks-freed             number of clusters that nothing used
  zero-clusters-freed     number of clusters of zeroes
  moved-bytes             bytes of clusters that were moved";

/// The result, as it is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    filename: String,
    dry_run: bool,
    /// Bytes of the file.
    length_before: u64,
    length_after: u64,
    /// Bytes that the file occupies on disk.
    allocated_before: Option<u64>,
    allocated_after: Option<u64>,
    /// Clusters of the disk in the image.
    allocated_clusters: u64,
    /// Of those, clusters that do not follow the one before them.
    fragmented_clusters_before: u64,
    fragmented_clusters_after: u64,
    leaks_freed: u64,
    zero_clusters_freed: u64,
    moved_bytes: u64,
}

impl Report {
    fn of(filename: String, dry_run: bool, report: &CompactReport) -> Self {
        Self {
            filename,
            dry_run,
            length_before: report.length_before,
            length_after: report.length_after,
            allocated_before: report.allocated_before,
            allocated_after: report.allocated_after,
            allocated_clusters: report.allocated_clusters,
            fragmented_clusters_before: report.fragmented_before,
            fragmented_clusters_after: report.fragmented_after,
            leaks_freed: report.leaks_freed,
            zero_clusters_freed: report.zeroes_freed,
            moved_bytes: report.moved_bytes,
        }
    }

    fn write_human(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let would = if self.dry_run { "would be" } else { "is" };
        let (before, after) = (human_size(self.length_before), human_size(self.length_after));
        writeln!(out, "file length: was {before}, {would} {after}")?;
        if let (Some(before), Some(after)) = (self.allocated_before, self.allocated_after) {
            writeln!(out, "disk size: was {}, is {}", human_size(before), human_size(after))?;
        }
        if !self.dry_run && self.fragmented_clusters_before != self.fragmented_clusters_after {
            let (before, after) = (self.fragmented_clusters_before, self.fragmented_clusters_after);
            writeln!(out, "fragmented clusters: were {before}, are {after} of {}", self.allocated_clusters)?;
        }
        for (count, what) in [
            (self.leaks_freed, "clusters that nothing used"),
            (self.zero_clusters_freed, "clusters of zeroes"),
        ] {
            if count > 0 {
                writeln!(out, "{}: {count} {what}", if self.dry_run { "to be freed" } else { "freed" })?;
            }
        }
        writeln!(
            out,
            "{}: {}",
            if self.dry_run { "to be moved" } else { "moved" },
            human_size(self.moved_bytes)
        )
    }
}

/// Compacts.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = args.dry_run;
    let failed = |error: &dyn std::error::Error| copying::because("compact", &options, error);
    let watch = Watch::begin(args.progress && !args.quiet)?;
    let reactor = copying::reactor()?;
    let image = reactor.run(graph::open_bare(&options)).map_err(|error| failed(&error))?;
    let name = options.filename.display().to_string();
    if image.format != Format::Qcow2 {
        return Err(Failure::new(format!("{name} is raw: it has no clusters to move"))
            .with_hint("fallocate -d gives the space of its zeroes back"));
    }
    let mut progress = watch.progress(0);
    let mut look = |seen: qcow2::CompactProgress| {
        progress.set_total(seen.total_bytes);
        watch.look(&mut progress, seen.done_bytes)
    };
    let asked = CompactOptions {
        detect_zeroes: args.detect_zeroes,
        defragment: args.defragment,
        dry_run: args.dry_run,
    };
    let plain = reactor.run(plain_text(&options, &image.file))?;
    let result = reactor.run(qcow2::compact(&*image.file, plain.as_deref(), asked, &mut look));
    if result.is_ok() {
        watch.answer_at_end(&mut progress);
    }
    progress.end();
    let report = Report::of(name, args.dry_run, &result.map_err(|error| failed(&error))?);
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &report)?,
        OutputFormat::Human => report.write_human(out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the data of an encrypted image can be read; `None` of others.
async fn plain_text(
    options: &DiskOptions,
    file: &Arc<dyn Storage>,
) -> Result<Option<Arc<dyn Storage>>, Failure> {
    let failed = |error: &dyn std::error::Error| copying::because("compact", options, error);
    let id = options.layer.key_secret.as_deref();
    let password = id.map(|id| Secrets::default().get(id)).transpose().map_err(|error| failed(&error))?;
    let host: Arc<dyn qcow2::Host> = Arc::new(OnLoop);
    qcow2::plain_text(file, password.as_ref(), &host).await.map_err(|error| failed(&error))
}
