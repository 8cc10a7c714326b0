//! `cowhand status`: what a running server has open, and how it goes.

mod map;
mod medium;
mod remotes;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use export::few_names;
use graph::size::human_size;
use monitor::map_figures;
use monitor::qmp;
use monitor::qmp::limits::{LIMITS_JSON, REPORT_JSON};
use serde_json::{Value, json};
use tool::failure::Failure;
use tool::medium::MEDIUM_JSON;
use tool::output::{self, write_json};

use crate::output::{OutputFormat, counted, with_json};
use crate::remote::figures::{KindFigures, ThrottleFigures, disk};
use crate::remote::{Remote, RemoteArgs};

const EXAMPLES: &str = "\
Examples:
  cowhand status /run/vm1.qmp
  cowhand status --disk data /run/vm1.qmp
  cowhand status --output json /run/vm1.qmp | jq '.disks[].stats'";

/// Arguments of `cowhand status`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = after_long_help())]
pub struct Args {
    #[command(flatten)]
    remote: RemoteArgs,

    /// Only this disk, by its node's name [default: all]
    #[arg(long, value_name = "NAME")]
    disk: Option<String>,

    /// Form of the result; json has the answers of query-version, query-blockstats, query-block-exports, x-query-remotes
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: OutputFormat,
}

/// What [`reported`] gives beside what the server answers.
const JSON: &str =
    "  version                 object: package (text), and qemu with major, minor and micro (numbers)
  disks                   list of objects
  exports                 list of objects
  remotes                 object, or null if the server is older
  package, qemu, major, minor, micro  of version";

fn after_long_help() -> String {
    let map = map_figures::json_help();
    with_json(
        EXAMPLES,
        &[
            JSON,
            qmp::figures::JSON,
            &map,
            "Of throttle:",
            REPORT_JSON,
            LIMITS_JSON,
            MEDIUM_JSON,
            qmp::exports::JSON,
            qmp::remotes::JSON,
        ],
    )
}

/// Shows it.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let mut remote = args.remote.connect()?;
    let mut reported = reported(&mut remote, args.disk.as_deref())?;
    if let Some(name) = &args.disk {
        keep_one(&mut reported, name)?;
    }
    match args.output {
        OutputFormat::Json => write_json(out, &reported)?,
        OutputFormat::Human => human(out, &reported)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn reported(remote: &mut Remote, disk: Option<&str>) -> Result<Value, Failure> {
    // One of thousands. A server of an older program returns all; a server without such a disk does, too, and the message lists them.
    let one = disk.map(|name| remote.ask("query-blockstats", json!({ "names": [name] })));
    let disks = match one {
        Some(Ok(disks)) => disks,
        Some(Err(_)) | None => remote.ask("query-blockstats", json!({}))?,
    };
    Ok(json!({
        "version": remote.ask("query-version", json!({}))?,
        "disks": disks,
        "exports": remote.ask("query-block-exports", json!({}))?,
        // Of a server that an older program started nothing is known.
        "remotes": remote.ask("x-query-remotes", json!({})).unwrap_or_default(),
    }))
}

/// Leaves out everything but the disk of this name and its exports.
fn keep_one(reported: &mut Value, name: &str) -> Result<(), Failure> {
    let is_it = |value: &Value| value["node-name"] == name;
    let disks = reported["disks"].as_array().map_or(&[][..], Vec::as_slice);
    if !disks.iter().any(is_it) {
        let names = few_names(disks.iter().filter_map(|disk| disk["node-name"].as_str()));
        return Err(Failure::new(format!("the server has no disk {name:?}; name one of {names}")));
    }
    for list in ["disks", "exports"] {
        if let Some(list) = reported[list].as_array_mut() {
            list.retain(is_it);
        }
    }
    Ok(())
}

fn human(out: &mut dyn Write, reported: &Value) -> io::Result<()> {
    let list = |name: &str| reported[name].as_array().map_or(&[][..], Vec::as_slice);
    let package = reported["version"]["package"].as_str().unwrap_or("?");
    let (disks, exports) = (list("disks"), list("exports"));
    let disks_reported = counted(disks.len() as u64, "disk");
    writeln!(out, "{package}: {disks_reported}, {}", counted(exports.len() as u64, "export"))?;
    for value in disks {
        let own = exports.iter().filter(|export| export["node-name"] == value["node-name"]);
        write_disk(out, value, own)?;
    }
    remotes::write(out, &reported["remotes"])
}

fn write_disk<'a>(
    out: &mut dyn Write,
    value: &Value,
    exports: impl Iterator<Item = &'a Value>,
) -> io::Result<()> {
    let disk = disk(value);
    writeln!(out, "{}: {}, {}", printable(&disk.name), disk.driver, human_size(disk.size))?;
    writeln!(out, "  reads     {}", kind(&disk.read))?;
    writeln!(out, "  writes    {}", kind(&disk.write))?;
    writeln!(out, "  now       {} in flight", counted(disk.in_flight, "request"))?;
    map::write(out, value, &disk)?;
    medium::write(out, &value["driver-specific"])?;
    writeln!(out, "  limits    {}", limits(&disk.throttle))?;
    for export in exports {
        let name = export["name"].as_str().unwrap_or_default();
        let mode = if export["writable"] == true { "writable" } else { "read-only" };
        let connections = counted(export["connections"].as_u64().unwrap_or(0), "connection");
        writeln!(out, "  export    {name:?}, {mode}, {connections}")?;
    }
    Ok(())
}

/// Names may come from an image's path: a terminal would obey control characters in them.
pub fn printable(text: &str) -> String {
    output::printable(text).into_owned()
}

fn kind(kind: &KindFigures) -> String {
    let mut text = format!("{}, {}", kind.requests, human_size(kind.bytes));
    if kind.merged > 0 {
        text.push_str(&format!(", {} more merged into them", kind.merged));
    }
    if kind.failed > 0 {
        text.push_str(&format!(", {} failed", kind.failed));
    }
    if let Some(mean) = kind.total_ns.checked_div(kind.requests) {
        text.push_str(&format!(", {} on average", nanos(mean)));
    }
    if let Some(p99) = kind.p99_ns {
        text.push_str(&format!(", 99 % within {}", nanos(p99)));
    }
    text
}

/// Limits in one line.
pub fn limits(throttle: &ThrottleFigures) -> String {
    if throttle.limits.is_empty() {
        return "none".to_owned();
    }
    let set: Vec<String> = throttle.limits.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let group =
        throttle.group.as_ref().map_or(String::new(), |group| format!(" in group {}", printable(group)));
    format!(
        "{}{group}; {} waiting, {} have waited, at the limit for {}",
        set.join(","),
        throttle.queue,
        throttle.delayed,
        nanos(throttle.at_limit_ns)
    )
}

/// A part of a whole.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A time in the unit that suits it.
pub fn nanos(nanos: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_reported_in_a_few_lines() {
        let reported = json!({
            "version": { "package": "cowhand 1" },
            "disks": [{
                "node-name": "a\u{1b}",
                "stats": { "rd_operations": 10, "rd_bytes": 40960, "rd_total_time_ns": 1_000_000,
                    "rd_latency_p99_ns": 131_072, "failed_wr_operations": 1, "in_flight": 2 },
                "driver-specific": {
                    "driver": "qcow2", "size": 1 << 30,
                    "map-cache": { "hits": 99, "misses": 1, "loads": 2, "loaded-bytes": 8192, "evictions": 0,
                        "used-bytes": 4096, "covered-bytes": 1 << 20, "limit-bytes": 1 << 17,
                        "bytes-by-form": { "run": 100, "runs": 0, "frame": 2048 },
                        "advice": { "more-bytes": 1 << 21, "avoided-misses": 1 } },
                    "chain-map": { "hits": 1, "misses": 1, "layers": 3, "covered-bytes": 0, "advice": null },
                    "throttle": { "group": "g", "limits": { "iops-total": 100 }, "queue": 3,
                        "read": { "delayed": 4 }, "write": { "delayed": 5 }, "time-at-limit-ns": 1_500_000_000_u64 },
                },
            }],
            "exports": [{ "node-name": "a\u{1b}", "name": "x", "writable": true, "connections": 1 }],
        });
        let mut out = Vec::new();
        human(&mut out, &reported).unwrap();
        let expected = "\
cowhand 1: 1 disk, 1 export
a\\u{1b}: qcow2, 1 GiB
  reads     10, 40 KiB, 100.0µs on average, 99 % within 131.1µs
  writes    0, 0 B, 1 failed
  now       2 requests in flight
  map       hits 99.0 %, covers 1 MiB of 1 GiB, memory 4 KiB of 128 KiB
            hits 99, misses 1, loads 2, loaded 8 KiB, evictions 0, used 4 KiB, allowed 128 KiB
            packed: run 100 B, frame 2 KiB
            2 MiB more would have avoided 100.0 % of the misses
  below     hits 50.0 %, covers 0 B of 1 GiB, memory 0 B of 0 B, 3 layers
            hits 1, misses 1
  limits    iops-total=100 in group g; 3 waiting, 9 have waited, at the limit for 1.5s
  export    \"x\", writable, 1 connection
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
