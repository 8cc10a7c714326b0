//! The check of images of other hypervisors, which are only read.

use std::io::Write;
use std::process::ExitCode;

use formats::vhdx::Vhdx;
use formats::{Finding, Kind};
use graph::OpenRules;
use graph::options::DiskOptions;
use graph::probe::Format;
use reactor::Reactor;
use tool::failure::Failure;
use tool::output::{printable, tell, write_json};
use tool::voice;

use super::report::{CheckReport, code};
use super::{Args, FINDINGS_SHOWN_MAX};
use crate::compat;
use crate::output::OutputFormat;

/// Whether images of the format have a check.
pub fn has_check(format: Format) -> bool {
    Kind::of_name(format.name()).is_some_and(formats::has_check)
}

/// Checks the image that `options` name.
pub fn run(
    args: &Args,
    (mut options, format): (DiskOptions, Format),
    reactor: &Reactor,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    options.layer.read_only = true;
    let failed = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot check {}", options.filename.display()), error)
    };
    let is_repaired = args.repair.is_some();
    // QEMU repairs nothing of a vmdk either, and of a vhdx no more than that its log is replayed.
    if is_repaired && Kind::of_name(format.name()) != Some(Kind::Vhdx) {
        let name = options.filename.to_string_lossy();
        let name = printable(&name);
        tell(format_args!(
            "{}: {name}: the image is of a format that is only read: nothing is repaired",
            voice::name()
        ));
        return Ok(ExitCode::from(code::UNSUPPORTED));
    }
    let rules = OpenRules { policy: args.drive.policy()?, ..OpenRules::default() };
    let is_silent = args.quiet || args.output == OutputFormat::Json;
    let mut findings = 0;
    let mut show = |finding: Finding| {
        findings += 1;
        if voice::is_qemu() {
            tell(format_args!("{}", finding.in_qemus_words()));
        } else if !is_silent && findings <= FINDINGS_SHOWN_MAX {
            tell(format_args!("{finding}"));
        }
    };
    let corruptions = reactor.run(async {
        let disk = graph::open(&options, &rules).await;
        let disk = disk.map_err(|error| failed(&error).with_hint_about_lock(&error))?;
        let image = disk.top_image();
        if is_repaired && image.downcast_ref::<Vhdx>().is_some_and(Vhdx::is_replayed) {
            let why =
                "the image was not closed, and its log is replayed in memory only: nothing of it is written";
            return Err(Failure::new(format!("cannot repair {}: {why}", options.filename.display()))
                .with_hint("QEMU's qemu-img check -r all replays the log in the file"));
        }
        formats::check(&*image, &mut show).await.map_err(|error| failed(&error))
    })?;
    if !is_silent && !voice::is_qemu() && findings > FINDINGS_SHOWN_MAX {
        tell(format_args!("... and {} more", findings - FINDINGS_SHOWN_MAX));
    }
    let report = CheckReport {
        filename: args.shown_name(&options),
        format: format.name().to_owned(),
        corruptions,
        ..CheckReport::default()
    };
    match args.output {
        _ if args.quiet => {}
        OutputFormat::Json => write_json(out, &report)?,
        OutputFormat::Human if voice::is_qemu() => compat::img::check::write_human(&report, out)?,
        OutputFormat::Human => report.write_human(out)?,
    }
    Ok(ExitCode::from(report.code()))
}
