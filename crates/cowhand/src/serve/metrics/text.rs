//! The figures by Prometheus' conventions: base units, `_total` for what only grows, one label for the disk.

use std::fmt;
use std::time::Duration;

use image::front::Kind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use throttle::Direction;

use crate::serve::inventory::Inventory;
use crate::serve::inventory::disk_node::DiskNode;

const KINDS: [(Kind, &str); 5] = [
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Zero, "zero"),
    (Kind::Discard, "discard"),
    (Kind::Flush, "flush"),
];

const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Read, "read"), (Direction::Write, "write")];

/// What a family counts in.
#[derive(Clone, Copy, Debug)]
enum In {
    Things,
    Bytes,
    Seconds,
}

/// A figure of all disks: a line for each, or for each of a disk's parts.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    /// It only grows.
    counter: bool,
    unit: In,
    lines: Vec<Line>,
}

/// A value, under its labels.
#[derive(Debug)]
struct Line {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// All figures, as OpenMetrics text.
pub fn encode(inventory: &Inventory) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(families(inventory))));
    let mut text = String::new();
    // Writing into a text does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Figures(Vec<Family>);

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let unit = match family.unit {
                In::Things => None,
                In::Bytes => Some(Unit::Bytes),
                In::Seconds => Some(Unit::Seconds),
            };
            let kind = if family.counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            for line in &family.lines {
                let mut labelled = metric.encode_family(&line.labels)?;
                match family.counter {
                    true => labelled.encode_counter::<NoLabelSet, _, f64>(&line.value, None)?,
                    false => labelled.encode_gauge(&line.value)?,
                }
            }
        }
        Ok(())
    }
}

/// Collects families from the disks.
struct Collection {
    families: Vec<Family>,
}

impl Collection {
    fn add(&mut self, family: Family, labels: &[(&'static str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let line = Line { labels, value };
        match self.families.iter_mut().find(|known| known.name == family.name) {
            Some(known) => known.lines.push(line),
            None => self.families.push(Family { lines: vec![line], ..family }),
        }
    }
}

fn counter(name: &'static str, unit: In, help: &'static str) -> Family {
    Family { name, help, counter: true, unit, lines: Vec::new() }
}

fn gauge(name: &'static str, unit: In, help: &'static str) -> Family {
    Family { name, help, counter: false, unit, lines: Vec::new() }
}

fn families(inventory: &Inventory) -> Vec<Family> {
    let mut all = Collection { families: Vec::new() };
    all.add(
        gauge("cowhand_connections", In::Things, "NBD clients that are connected"),
        &[],
        inventory.server.connections() as f64,
    );
    for node in inventory.disks() {
        if let Ok(disk) = node.disk() {
            requests(&mut all, &node.name, disk);
            limits(&mut all, &node.name, disk);
            map_cache(&mut all, &node.name, disk);
        }
    }
    for export in inventory.exports() {
        let labels = [("export", export.entry.name()), ("disk", &export.disk_node.name)];
        let counted = export.entry.counters().snapshot();
        all.add(
            gauge("cowhand_export_connections", In::Things, "NBD clients of an export"),
            &labels,
            f64::from(export.entry.connections()),
        );
        all.add(
            counter(
                "cowhand_export_invalid_requests",
                In::Things,
                "Requests refused before they reached the disk",
            ),
            &labels,
            counted.invalid as f64,
        );
    }
    all.families
}

fn requests(all: &mut Collection, name: &str, node: &DiskNode) {
    let statistics = node.disk.statistics();
    all.add(
        gauge("cowhand_disk_size", In::Bytes, "Size of the disk"),
        &[("disk", name)],
        node.disk.size() as f64,
    );
    for (kind, word) in KINDS {
        let figures = statistics.of(kind);
        let labels = [("disk", name), ("kind", word)];
        let mut add = |family, value: u64| all.add(family, &labels, value as f64);
        add(
            counter("cowhand_disk_requests", In::Things, "Requests that ended with success"),
            figures.requests,
        );
        add(
            counter("cowhand_disk_failed_requests", In::Things, "Requests that ended with an error"),
            figures.failed,
        );
        add(
            counter("cowhand_disk_transferred", In::Bytes, "Bytes that successful requests covered"),
            figures.bytes,
        );
        add(
            gauge("cowhand_disk_requests_in_flight", In::Things, "Requests that have not ended"),
            figures.in_flight,
        );
        let spent = Duration::from_nanos(figures.total_ns).as_secs_f64();
        let help = "Time from arrival to end of all requests together, waiting for limits included";
        all.add(counter("cowhand_disk_request_time", In::Seconds, help), &labels, spent);
    }
}

fn limits(all: &mut Collection, name: &str, node: &DiskNode) {
    let report = node.disk.throttle_report();
    for (direction, word) in DIRECTIONS {
        let tally = report.disk.counters.of(direction);
        let labels = [("disk", name), ("direction", word)];
        let mut add = |family, value: f64| all.add(family, &labels, value);
        add(
            counter("cowhand_throttle_delayed_requests", In::Things, "Requests that waited for a limit"),
            tally.delayed.requests as f64,
        );
        add(
            counter(
                "cowhand_throttle_delay",
                In::Seconds,
                "Time that requests waited for a limit, all together",
            ),
            Duration::from_nanos(tally.delayed_ns).as_secs_f64(),
        );
        add(
            gauge("cowhand_throttle_queued_requests", In::Things, "Requests that wait for a limit now"),
            tally.queued.requests as f64,
        );
    }
    all.add(
        counter(
            "cowhand_throttle_at_limit",
            In::Seconds,
            "Time during which some request waited for a limit",
        ),
        &[("disk", name)],
        report.disk.time_at_limit.as_secs_f64(),
    );
    for flow in throttle::Flow::ALL {
        let rate = report.shared.limits.rate(flow);
        if rate.is_unlimited() {
            continue;
        }
        let parameter = throttle::Parameter::Rate(flow, throttle::Part::Average);
        let labels = [("disk", name), ("limit", parameter.name(throttle::Dialect::Limits))];
        let help = "Average that a limit allows, in operations or bytes a second";
        all.add(gauge("cowhand_throttle_limit_per_second", In::Things, help), &labels, rate.avg as f64);
    }
}

fn map_cache(all: &mut Collection, name: &str, node: &DiskNode) {
    let Some(status) = node.disk.status() else { return };
    let labels = [("disk", name)];
    let mut add = |family, value: u64| all.add(family, &labels, value as f64);
    add(counter("cowhand_map_cache_hits", In::Things, "Map lookups that memory answered"), status.map.hits);
    add(
        counter("cowhand_map_cache_misses", In::Things, "Map lookups that had to read the image"),
        status.map.misses,
    );
    add(
        gauge("cowhand_map_cache_covered", In::Bytes, "Bytes of disk that the map in memory covers"),
        status.covered_bytes,
    );
    add(
        gauge("cowhand_map_cache_limit", In::Bytes, "Most memory that the map may take"),
        status.cache_sizes.l2_bytes,
    );
    add(gauge("cowhand_refcount_cache", In::Bytes, "Memory in the refcount cache"), status.refcount_bytes);
    add(
        gauge("cowhand_image_corrupt", In::Things, "1 if the image was found corrupt"),
        u64::from(status.corrupt),
    );
}
