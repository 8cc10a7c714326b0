//! `cowhand check`: whether an image's metadata is right, and its repair.

mod dry_run;
mod foreign;
pub mod report;

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use graph::OnLoop;
use graph::cache_mode::CacheMode;
use graph::options::DiskOptions;
use graph::probe::Format;
use qcow2::{Finding, Progress as Seen, Repair};
use qcow2_layout::SnapshotError;
use storage::Storage;
use tool::failure::Failure;
use tool::output::{printable, tell, write_json};
use tool::voice;

use self::dry_run::DryRun;
use self::report::{CheckReport, code};
use crate::compat;
use crate::copying;
use crate::copying::watch::Watch;
use crate::drive::DRIVE_HELP;
use crate::drive::{DriveArgs, cache_modes};
use crate::exit_codes;
use crate::output::{OutputFormat, with_json};
use crate::progress::Progress;

/// Findings that are shown one by one; the counts have them all.
const FINDINGS_SHOWN_MAX: u64 = 100;

/// Arguments of `cowhand check`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = format!("Check an image's metadata: every cluster that is referenced must be counted, and the reverse.\n\n\
        With -r the image is repaired, in an order that an interruption at any moment does not make worse.\n\
        The image must not be in use. With --dry-run all of that happens in memory: what is printed, and the exit code, are those \
        of the repair, and nothing is written.\n\n\
        {}", exit_codes::of_check()),
    after_help = DRIVE_HELP,
    after_long_help = with_json(DRIVE_HELP, &[report::JSON])
)]
pub struct Args {
    #[command(flatten)]
    drive: DriveArgs,

    /// Repair leaked clusters, or all that can be repaired
    #[arg(short = 'r', long, value_enum, value_name = "WHAT")]
    repair: Option<What>,

    /// Cache mode: writeback, writethrough, none, directsync, unsafe
    #[arg(short = 'T', value_name = "MODE", value_parser = cache_modes(), hide_possible_values = true)]
    cache: Option<CacheMode>,

    /// Only show what -r would do
    #[arg(long, requires = "repair")]
    dry_run: bool,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,

    /// Show how far it is, on a terminal, with --output json too (SIGUSR1 shows it anywhere)
    #[arg(short = 'p', long)]
    progress: bool,

    /// Print nothing but errors: the exit code is the verdict
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// What `-r` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Clusters that nothing uses
    Leaks,
    /// Leaks, refcounts, COPIED flags, dirty and corrupt marks
    All,
}

impl What {
    fn repair(asked: Option<Self>) -> Repair {
        match asked {
            None => Repair::None,
            Some(Self::Leaks) => Repair::Leaks,
            Some(Self::All) => Repair::All,
        }
    }
}

impl Args {
    /// What results call the image. qemu-img repeats what the user gave, options too.
    fn shown_name(&self, options: &DiskOptions) -> String {
        match voice::is_qemu() {
            true => self.drive.drive.to_string_lossy().into_owned(),
            false => options.filename.display().to_string(),
        }
    }
}

/// Checks an image.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut options = args.drive.options()?;
    options.layer.read_only = args.repair.is_none() || args.dry_run;
    if let Some(mode) = args.cache {
        options.set_cache(mode);
    }
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot check {}", options.filename.display()), error)
    };
    let reactor = copying::reactor()?;
    let image = reactor.run(graph::open_bare(&options)).map_err(|error| match options.layer.read_only {
        false => failed(&error),
        true => failed(&error).with_hint_about_lock(&error),
    })?;
    if foreign::has_check(image.format) {
        let format = image.format;
        drop(image);
        return foreign::run(args, (options, format), &reactor, out);
    }
    if image.format != Format::Qcow2 {
        let (name, format) = (options.filename.to_string_lossy(), image.format);
        let name = printable(&name);
        tell(format_args!("{}: {name}: a {format} image has no metadata to check", voice::name()));
        return Ok(ExitCode::from(code::UNSUPPORTED));
    }
    let quiet = args.quiet || args.output == OutputFormat::Json;
    // Under qemu-img's name nothing is said of that, as there.
    let shown = !voice::is_qemu() && !args.quiet && (args.progress || !quiet);
    let mut reported = Reported::new(quiet, Watch::of_questions(shown)?);
    let dry_run = args.dry_run.then(|| Arc::new(DryRun::over(Arc::clone(&image.file))));
    let over = dry_run.as_ref().map(|dry_run| Arc::clone(dry_run) as Arc<dyn Storage>);
    let file = over.unwrap_or_else(|| Arc::clone(&image.file));
    let host: Arc<dyn qcow2::Host> = Arc::new(OnLoop);
    let mut hear = |seen: Seen<'_>| reported.tell(&seen);
    let check = qcow2::check_in_parallel(&file, &host, What::repair(args.repair), &mut hear);
    let result = reactor.run(check);
    reported.end();
    if voice::is_qemu() && reported.cannot_be_opened && args.repair != Some(What::All) {
        // qemu-img reads an image only when it can open it.
        let what = format!("cannot check {}: its snapshot table is not valid", options.filename.display());
        return Err(Failure::new(what).with_hint("-r all removes what is too much of it"));
    }
    let report = CheckReport::of(&args.shown_name(&options), &result.map_err(|error| failed(&error))?);
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &report)?,
        OutputFormat::Human if voice::is_qemu() => compat::img::check::write_human(&report, out)?,
        OutputFormat::Human => {
            report.write_human(out)?;
            if let Some(dry_run) = dry_run {
                writeln!(out, "Nothing was written; the repair writes {} bytes.", dry_run.written_bytes())?;
            }
        }
    }
    Ok(ExitCode::from(report.code()))
}

/// What was said of a check under way, on standard error: findings, and on a terminal how far it is.
struct Reported {
    quiet: bool,
    findings: u64,
    /// Snapshots are such that the image cannot be opened.
    cannot_be_opened: bool,
    watch: Watch,
    /// Of this reading of the tables.
    progress: Option<Progress>,
}

impl Reported {
    fn new(quiet: bool, watch: Watch) -> Self {
        Self { quiet, findings: 0, cannot_be_opened: false, watch, progress: None }
    }

    fn tell(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Stage(_) => self.end_line(),
            Seen::Scanned { done, total } => {
                let watch = &self.watch;
                let progress = self.progress.get_or_insert_with(|| watch.progress(*total));
                // Nothing ends a check half-way: what it has not written is not needed.
                let _ = watch.look(progress, *done);
            }
            Seen::Copied { owner, clusters } => {
                let clusters = report::counted(*clusters, "cluster");
                let what = "what shared its place with something else gets its own";
                self.tell_line(format_args!("{what}: {owner}, {clusters}"));
            }
            Seen::Found(finding) => {
                self.cannot_be_opened |= matches!(
                    finding,
                    Finding::SnapshotsBeyond { .. } | Finding::Snapshot(SnapshotError::ExtraTooLarge { .. })
                );
                self.findings += 1;
                if self.findings <= FINDINGS_SHOWN_MAX {
                    self.tell_line(format_args!("{finding}"));
                }
            }
        }
    }

    fn tell_line(&mut self, line: fmt::Arguments<'_>) {
        if self.quiet {
            return;
        }
        if let Some(progress) = &mut self.progress {
            progress.end();
        }
        tell(line);
    }

    fn end_line(&mut self) {
        if let Some(mut progress) = self.progress.take() {
            progress.end();
        }
    }

    fn end(&mut self) {
        self.end_line();
        if !self.quiet && self.findings > FINDINGS_SHOWN_MAX {
            tell(format_args!("... and {} more", self.findings - FINDINGS_SHOWN_MAX));
        }
    }
}
