//! block_set_io_throttle, and what the limits have done (x-query-throttle).

use std::sync::Arc;

use control::{Answer, Argument, List, QmpError, arguments, members};
use graph::ThrottleReport;
use serde_json::{Map, Value, json};
use throttle::{
    Counters, Dialect, Direction, Flow, Histogram, Limits, Options, PARAMETERS, Parameter, Part, SETTINGS,
    Setting, Weight,
};

use super::chosen::{self, Names, object};
use super::node_options::{LimitName, limits};
use crate::inventory::Inventory;
use crate::turns::Turn;

arguments! {
    /// The limits of a disk.
    pub struct SetThrottle { device: Option<String>, id: Option<String>, ..limits: LegacyLimits }

    /// One disk, or some.
    pub struct OfDisk { device: Option<String>, ..chosen: Names }
}

members! {
    /// Limits under the names of the command, with the group and the weight.
    pub struct LegacyLimits = &LEGACY_LIMITS;
}

static LEGACY_LIMITS: [Argument; SETTINGS.len()] = limits(LimitName::Argument);

/// Replaces the limits of a disk, or of the group that is named.
pub fn set(inventory: &Inventory, given: &SetThrottle) -> Result<(), QmpError> {
    let name = match (&given.id, &given.device) {
        (Some(name), None) | (None, Some(name)) => name,
        _ => return Err(QmpError::generic("give one of the arguments 'id' and 'device'")),
    };
    inventory.check_device(name)?;
    let node = inventory.disk(name)?;
    let mut options = Options::new();
    for (name, value) in &given.limits.0 {
        put(&mut options, name, Dialect::Legacy, value)?;
    }
    node.disk.set_throttling(&options).map_err(|error| QmpError::generic(error.describe(Dialect::Legacy)))
}

/// Puts what was given under a name into `options`.
pub fn put(options: &mut Options, name: &str, dialect: Dialect, value: &Value) -> Result<(), QmpError> {
    let wrong = || QmpError::generic(format!("argument '{name}' has a value that it cannot have: {value}"));
    match Setting::named(name, dialect) {
        Some(Setting::Limit(parameter)) => {
            options.set(parameter, value.as_u64().ok_or_else(wrong)?);
        }
        Some(Setting::Group) => options.group = Some(value.as_str().ok_or_else(wrong)?.to_owned()),
        Some(Setting::Weight) => {
            let weight = Weight::new(value.as_u64().ok_or_else(wrong)?);
            options.weight = Some(weight.map_err(|error| QmpError::generic(error.describe(dialect)))?);
        }
        None => return Err(QmpError::generic(format!("argument '{name}' is unknown"))),
    }
    Ok(())
}

/// The limits that options ask for; an error speaks `dialect`.
pub fn limits_of(options: &Options, dialect: Dialect) -> Result<Limits, QmpError> {
    options.check().map_err(|error| QmpError::generic(error.describe(dialect)))
}

/// What [`limits_value`] gives, in [`Dialect::Limits`].
pub const LIMITS_JSON: &str = "\
Of limits:
  {iops,bps}-{total,read,write}  operations or bytes a second in the long run; 0: no limit
  {iops,bps}-{total,read,write}-max  operations or bytes a second in a burst
  {iops,bps}-{total,read,write}-max-length  seconds that a burst may last
  iops-size               bytes that count as one operation";

/// Limits as an object, all 19 of them.
pub fn limits_value(limits: &Limits, dialect: Dialect) -> Value {
    limits_shown(limits, dialect, |_| true)
}

/// The limits of which `is_shown` holds.
pub fn limits_shown(limits: &Limits, dialect: Dialect, is_shown: impl Fn(Setting) -> bool) -> Value {
    let number = |setting| match setting {
        Setting::Limit(Parameter::Rate(flow, part)) => {
            let rate = limits.rate(flow);
            match part {
                Part::Average => rate.avg,
                Part::Max => rate.max,
                Part::MaxLength => u64::from(rate.length),
            }
        }
        _ => limits.iops_size(),
    };
    PARAMETERS
        .iter()
        .filter(|names| is_shown(names.setting))
        .map(|names| (names.in_dialect(dialect).to_owned(), json!(number(names.setting))))
        .collect()
}

/// What the limits of disks have done: of one, of the named ones, or of all.
///
/// # Errors
/// When there is no such disk.
pub async fn query(inventory: &Inventory, of: &OfDisk) -> Result<Answer, QmpError> {
    let nodes = match &of.device {
        Some(_) if of.chosen.names.is_some() => {
            return Err(QmpError::generic("give one of the arguments 'device' and 'names'"));
        }
        Some(name) => vec![Arc::downgrade(&inventory.disk(name)?)],
        None => chosen::disks(inventory, &of.chosen)?,
    };
    let (mut reports, mut turn) = (List::default(), Turn::begin());
    for node in nodes {
        turn.pass().await;
        // It may be gone by now.
        let Some(node) = node.upgrade() else { continue };
        let mut report = report_value(&node.disk.throttle_report());
        report["node-name"] = json!(node.name());
        reports.push(&report);
    }
    Ok(Answer::List(reports))
}

/// What [`report_value`] gives.
pub const REPORT_JSON: &str = "  group                   text: the group whose limits these are, or null
  weight                  number: the disk's share of the group
  members                 number of disks in the group
  limits                  object
  bucket-levels           object: for each flow that is limited, under its name, an object
  time-at-limit-ns, group-time-at-limit-ns
                          nanoseconds in which a request of the disk, or of the group, waited
  queue, group-queue      number of requests that wait now
  read, write, group-read, group-write  objects: what passed and what waited
Of each of bucket-levels:
  level, capacity         operations or bytes in the bucket: requests wait above its capacity
  burst-level?, burst-capacity?  the same of a second bucket, where bursts have a length
Of read, write, group-read, group-write:
  passed, passed-bytes    requests, and their bytes, that passed while something was limited
  delayed, delayed-bytes, delayed-ns
                          requests that waited, their bytes, how long all of them together
  delays                  object: boundaries (list of nanoseconds) and bins (list of numbers, one
                          more)
  queued, queued-bytes    requests that wait now, and their bytes
  boundaries, bins        of delays";

/// A report as an object.
pub fn report_value(report: &ThrottleReport) -> Value {
    let levels: Map<String, Value> = report
        .shared
        .levels
        .iter()
        .map(|(flow, level)| {
            let mut value = json!({ "level": level.level, "capacity": level.capacity });
            if let Some((level, capacity)) = level.burst {
                (value["burst-level"], value["burst-capacity"]) = (json!(level), json!(capacity));
            }
            (flow_name(*flow).to_owned(), value)
        })
        .collect();
    let (disk, shared) = (&report.disk, &report.shared);
    let members = [
        ("group", json!(report.group)),
        ("weight", json!(disk.weight.get())),
        ("members", json!(shared.members)),
        ("limits", limits_value(&shared.limits, Dialect::Limits)),
        ("bucket-levels", Value::Object(levels)),
        ("time-at-limit-ns", json!(nanos(disk.time_at_limit))),
        ("group-time-at-limit-ns", json!(nanos(shared.time_at_limit))),
        ("queue", json!(disk.counters.queued_requests())),
        ("read", tally_value(&disk.counters, Direction::Read)),
        ("write", tally_value(&disk.counters, Direction::Write)),
        ("group-queue", json!(shared.counters.queued_requests())),
        ("group-read", tally_value(&shared.counters, Direction::Read)),
        ("group-write", tally_value(&shared.counters, Direction::Write)),
    ];
    Value::Object(object(members))
}

fn flow_name(flow: Flow) -> &'static str {
    Parameter::Rate(flow, Part::Average).name(Dialect::Limits)
}

fn tally_value(counters: &Counters, direction: Direction) -> Value {
    let tally = counters.of(direction);
    let members = [
        ("passed", json!(tally.passed.requests)),
        ("passed-bytes", json!(tally.passed.bytes)),
        ("delayed", json!(tally.delayed.requests)),
        ("delayed-bytes", json!(tally.delayed.bytes)),
        ("delayed-ns", json!(tally.delayed_ns)),
        ("delays", histogram_value(&tally.delays)),
        ("queued", json!(tally.queued.requests)),
        ("queued-bytes", json!(tally.queued.bytes)),
    ];
    Value::Object(object(members))
}

/// As QEMU writes latency histograms: bounds in nanoseconds, and one count more than there are bounds.
fn histogram_value(histogram: &Histogram) -> Value {
    let (bounds, counts): (Vec<_>, Vec<u64>) = histogram.bins().unzip();
    let bounds: Vec<u64> = bounds.into_iter().flatten().map(nanos).collect();
    json!({ "boundaries": bounds, "bins": counts })
}

/// Nanoseconds, which last 584 years.
pub fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
