//! `cowhand throttle set`: other limits for a disk that is served.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use throttle::{Dialect, Options, PARAMETERS, Setting};
use tool::failure::Failure;

use super::LIMITS_HELP;
use super::limit_args::LimitArgs;
use crate::remote::figures::throttle;
use crate::remote::{Remote, RemoteArgs};
use crate::status::limits;

/// Arguments of `cowhand throttle set`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Change the limits of a disk that is served, for all disks of its group. Limits that are not given stay; 0 \
        takes one away. Requests that wait stay in line, or go, as the new limits say.",
    after_help = LIMITS_HELP,
    after_long_help = "\
Examples:
  cowhand throttle set /run/vm1.qmp iops=100,iops_max=2000
  cowhand throttle set /run/vm1.qmp --disk data --total-bytes-sec 10M
  cowhand throttle set /run/vm1.qmp --none"
)]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// The disk, by its node's name [default: the only one]
    #[arg(long, value_name = "DISK")]
    disk: Option<String>,

    /// No limits any more; the disk leaves its group
    #[arg(long, conflicts_with = "limits")]
    none: bool,

    #[command(flatten)]
    limits: LimitArgs,
}

/// Does it, and shows what is in force.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.limits.is_empty() && !args.none {
        return Err(Failure::new("no limit is given; try iops=100, or --none"));
    }
    let given = args.limits.options()?;
    let mut remote = args.remote.connect()?;
    let disk = remote.disk(args.disk.as_deref())?;
    let mut wanted = if args.none { Options::new() } else { in_force(&mut remote, &disk)? };
    wanted.update(&given);
    remote.ask("block_set_io_throttle", arguments(&disk, &wanted))?;
    let now = report(&mut remote, &disk)?;
    writeln!(out, "{disk}: {}", limits(&throttle(&now)))?;
    Ok(ExitCode::SUCCESS)
}

fn report(remote: &mut Remote, disk: &str) -> Result<Value, Failure> {
    let reports = remote.ask("x-query-throttle", json!({ "device": disk }))?;
    reports.get(0).cloned().ok_or_else(|| Failure::new(format!("the server tells nothing of {disk}")))
}

/// The limits that a disk has.
fn in_force(remote: &mut Remote, disk: &str) -> Result<Options, Failure> {
    let figures = throttle(&report(remote, disk)?);
    let mut options = Options::new();
    for (name, value) in &figures.limits {
        if let Some(Setting::Limit(parameter)) = Setting::named(name, Dialect::Limits) {
            options.set(parameter, *value);
        }
    }
    Ok(options)
}

/// What block_set_io_throttle takes: the six averages always, the others if they are set.
fn arguments(disk: &str, wanted: &Options) -> Value {
    let mut arguments = Map::new();
    arguments.insert("id".to_owned(), json!(disk));
    for name in ["bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"] {
        arguments.insert(name.to_owned(), json!(0));
    }
    for names in &PARAMETERS {
        if let Setting::Limit(parameter) = names.setting
            && let Some(value) = wanted.get(parameter)
        {
            arguments.insert(names.legacy.to_owned(), json!(value));
        }
    }
    if let Some(group) = &wanted.group {
        arguments.insert("group".to_owned(), json!(group));
    }
    if let Some(weight) = wanted.weight {
        arguments.insert("weight".to_owned(), json!(weight.get()));
    }
    Value::Object(arguments)
}

#[cfg(test)]
mod tests {
    use throttle::{Flow, Parameter, Part};

    use super::*;

    #[test]
    fn all_averages_are_given_and_of_the_rest_what_is_set() {
        let mut options = Options::new();
        options.set(Parameter::Rate(Flow::IopsTotal, Part::Average), 100);
        options.set(Parameter::Rate(Flow::IopsTotal, Part::Max), 200);
        let expected = json!({ "id": "d", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 100, "iops_rd": 0,
            "iops_wr": 0, "iops_max": 200 });
        assert_eq!(arguments("d", &options), expected);
    }
}
