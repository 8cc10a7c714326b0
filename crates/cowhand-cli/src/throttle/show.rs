//! `cowhand throttle show`: limits in force, and what they did.

use std::io::Write;
use std::process::ExitCode;

use monitor::qmp::limits::{LIMITS_JSON, REPORT_JSON};
use serde_json::json;
use tool::failure::Failure;
use tool::output::write_json;

use crate::output::{OutputFormat, with_json};
use crate::remote::RemoteArgs;
use crate::remote::figures::throttle;
use crate::status::{limits, printable};

const EXAMPLES: &str = "\
Examples:
  cowhand throttle show /run/vm1.qmp
  cowhand throttle show --output json /run/vm1.qmp | jq '.[].limits'";

/// Arguments of `cowhand throttle show`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = with_json(EXAMPLES, &[JSON, REPORT_JSON, LIMITS_JSON]))]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// One disk, by its node's name [default: all]
    #[arg(long, value_name = "DISK")]
    disk: Option<String>,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What comes before [`REPORT_JSON`].
const JSON: &str = "\
A list of disks, of each:
  node-name               text";

/// Shows them.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut remote = args.remote.connect()?;
    let asked = args.disk.as_ref().map_or_else(|| json!({}), |disk| json!({ "device": disk }));
    let reports = remote.ask("x-query-throttle", asked)?;
    if args.output == OutputFormat::Json {
        write_json(out, &reports)?;
        return Ok(ExitCode::SUCCESS);
    }
    for report in reports.as_array().into_iter().flatten() {
        let name = report["node-name"].as_str().unwrap_or_default();
        writeln!(out, "{}: {}", printable(name), limits(&throttle(report)))?;
    }
    Ok(ExitCode::SUCCESS)
}
