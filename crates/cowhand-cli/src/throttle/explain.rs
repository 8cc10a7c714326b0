//! `cowhand throttle explain`: what limits mean, before they are in force.

use std::io::Write;
use std::process::ExitCode;

use monitor::qmp::limits::LIMITS_JSON;
use serde::Serialize;
use throttle::{Dialect, Explanation, PARAMETERS, Setting};
use tool::failure::Failure;
use tool::output::write_json;

use super::LIMITS_HELP;
use super::limit_args::LimitArgs;
use crate::output::{OutputFormat, with_json};

const EXAMPLES: &str = "\
Examples:
  cowhand throttle explain iops=100,iops_max=2000,iops_max_length=60,iops_size=4096
  cowhand throttle explain throttling.bps-total=10M
  cowhand throttle explain --total-iops-sec 500 --total-iops-sec-max 2000";

/// Arguments of `cowhand throttle explain`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Say in sentences what limits mean: how long a burst lasts, how it is earned, what a large \
        request counts as; and draw what a client gets that always asks for more. Nothing is opened or changed.",
    after_help = LIMITS_HELP,
    after_long_help = with_json(&format!("{LIMITS_HELP}\n\n{EXAMPLES}"), &[JSON, LIMITS_JSON])
)]
pub struct Args {
    #[command(flatten)]
    limits: LimitArgs,

    /// Form of the result
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`Explained`] prints.
const JSON: &str =
    "  limits                  object: number for each limit that is given, under the names of a
                          drive's options without throttling.
  group?                  text: name of the group
  weight?                 number
  sentences               list of text
  curves                  list of objects: what a client gets that always asks for more
Of each curve:
  limit                   text: name of the limit
  points                  list of objects: pieces in time
Of each piece:
  from-seconds, until-seconds  seconds from the first request
  per-second              operations or bytes a second";

/// An explanation for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Explained<'a> {
    limits: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u16>,
    sentences: &'a [String],
    curves: Vec<Curve>,
}

/// Requests that one limit admits over time, from an idle start.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Curve {
    limit: &'static str,
    points: Vec<Point>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Point {
    from_seconds: f64,
    until_seconds: f64,
    per_second: f64,
}

/// Explains.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.limits.is_empty() {
        return Err(Failure::new("no limit is given; try cowhand throttle explain iops=100,iops_max=2000"));
    }
    let (options, _) = args.limits.limits()?;
    let explanation = throttle::explain(&options).map_err(|error| Failure::new(error.to_string()))?;
    match args.output {
        OutputFormat::Human => out.write_all(explanation.text().as_bytes())?,
        OutputFormat::Json => write_json(out, &explained(&options, &explanation))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn explained<'a>(options: &'a throttle::Options, explanation: &'a Explanation) -> Explained<'a> {
    let given = PARAMETERS.iter().filter_map(|names| match names.setting {
        Setting::Limit(parameter) => {
            options.get(parameter).map(|value| (names.limits.to_owned(), value.into()))
        }
        Setting::Group | Setting::Weight => None,
    });
    Explained {
        limits: given.collect(),
        group: options.group.as_deref(),
        weight: options.weight.map(|weight| weight.get()),
        sentences: &explanation.sentences,
        curves: explanation.curves.iter().map(curve).collect(),
    }
}

fn curve(curve: &throttle::Curve) -> Curve {
    let point = |point: &throttle::Point| Point {
        from_seconds: point.from,
        until_seconds: point.until,
        per_second: point.per_second,
    };
    let average = throttle::Parameter::Rate(curve.flow, throttle::Part::Average);
    Curve { limit: average.name(Dialect::Limits), points: curve.points.iter().map(point).collect() }
}
