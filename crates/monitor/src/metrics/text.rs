//! The figures by Prometheus' conventions: base units, `_total` for what only grows, one label for the disk.

use std::sync::{Arc, Weak};
use std::time::Duration;

use catalog::OpenCache;
use graph::DiskNode;
use graph::front::Kind;
use prometheus_client::registry::Registry;
use qcow2::Counters;
use throttle::Direction;

use super::family::{Collection, Figure};
use crate::inventory::Inventory;
use crate::map_figures::{MAP_FIGURES, forms};
use crate::remote_figures::CACHE_FIGURES;
use crate::turns::Turn;

const KINDS: [(Kind, &str); 5] = [
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Zero, "zero"),
    (Kind::Discard, "discard"),
    (Kind::Flush, "flush"),
];

const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Read, "read"), (Direction::Write, "write")];

/// Which histograms are included. Each is 32 lines, of which an idle disk would have seven: with 200 disks
/// nine tenths of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Histograms {
    /// Histograms with counts, and those of delays if a limit is set.
    Busy,
    /// None (`?histograms=none`).
    None,
}

/// What a scrape requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// Which histograms.
    pub histograms: Histograms,
    /// Names of the disks whose figures are wanted (`?disk=NAME`, as often as there are such); none: all.
    pub disks: Vec<String>,
}

impl Scrape {
    fn has(&self, disk: &str) -> bool {
        self.disks.is_empty() || self.disks.iter().any(|name| name == disk)
    }
}

/// The figures, as OpenMetrics text. It is made on a thread of its own: that of some thousand disks takes a while.
pub async fn encode(inventory: &Inventory, wanted: &Scrape) -> String {
    let collected = collected(inventory, wanted).await;
    reactor::blocking(move || {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collected));
        let mut text = String::new();
        // Writing into a text does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    })
    .await
}

/// The disks that are wanted, one after another. Nothing keeps them open until their turn comes.
fn disks(inventory: &Inventory, wanted: &Scrape) -> Vec<Weak<DiskNode>> {
    let graph = &inventory.graph;
    match wanted.disks.is_empty() {
        true => graph.disks().iter().map(Arc::downgrade).collect(),
        // One that there is not has no figures, as it will be of one that has gone.
        false => {
            let found = wanted.disks.iter().filter_map(|name| graph.node(name).ok());
            found.filter_map(|node| node.disk().ok().map(Arc::downgrade)).collect()
        }
    }
}

async fn collected(inventory: &Inventory, wanted: &Scrape) -> Collection {
    let (mut all, mut turn) = (Collection::default(), Turn::begin());
    let histograms = wanted.histograms;
    all.add("cowhand_connections", &[], inventory.server.connections() as f64);
    clients(&mut all, inventory);
    for disk in disks(inventory, wanted) {
        turn.pass().await;
        // It may be gone by now.
        let Some(disk) = disk.upgrade() else { continue };
        requests(&mut all, &disk.name(), &disk, histograms);
        limits(&mut all, &disk.name(), &disk, histograms);
        map_cache(&mut all, &disk.name(), &disk);
    }
    net::dial::servers().iter().for_each(|server| remote_server(&mut all, server));
    catalog::caches().iter().for_each(|cache| remote_cache(&mut all, cache));
    for export in inventory.exports() {
        let disk_name = export.disk.name();
        if !wanted.has(&disk_name) {
            continue;
        }
        let labels = [export.entry.name(), disk_name.as_str()];
        let counted = export.entry.counters().snapshot();
        all.add("cowhand_export_connections", &labels, f64::from(export.entry.connections()));
        all.add("cowhand_export_invalid_requests", &labels, counted.invalid as f64);
        all.add("cowhand_export_dropped_requests", &labels, counted.dropped as f64);
        for (direction, merged) in [("read", counted.merged_reads), ("write", counted.merged_writes)] {
            let labels = [&labels[..], &[direction]].concat();
            all.add("cowhand_export_merged_requests", &labels, merged as f64);
        }
    }
    all
}

/// What all clients together cost.
fn clients(all: &mut Collection, inventory: &Inventory) {
    let costs = inventory.server.client_costs();
    let mut add = |name, value: u64| all.add(name, &[], value as f64);
    add("cowhand_client_memory", costs.held_bytes);
    add("cowhand_client_memory_peak", costs.held_bytes_most);
    add("cowhand_client_memory_limit", costs.held_bytes_max);
    add("cowhand_clients_stalled", costs.stalled);
    add("cowhand_connections_refused", costs.refused);
}

fn requests(all: &mut Collection, name: &str, node: &DiskNode, histograms: Histograms) {
    let statistics = node.disk.statistics();
    all.add("cowhand_disk_size", &[name], node.disk.size() as f64);
    let pauses = node.disk.pauses();
    all.add("cowhand_disk_pauses", &[name], pauses.count as f64);
    all.add("cowhand_disk_paused", &[name], pauses.total.as_secs_f64());
    for (kind, word) in KINDS {
        let figures = statistics.of(kind);
        let labels = [name, word];
        let mut add = |name, value: u64| all.add(name, &labels, value as f64);
        add("cowhand_disk_requests", figures.requests);
        add("cowhand_disk_failed_requests", figures.failed);
        add("cowhand_disk_transferred", figures.bytes);
        add("cowhand_disk_requests_in_flight", figures.in_flight);
        if histograms == Histograms::None || figures.latencies.count() == 0 {
            continue;
        }
        let spent = Duration::from_nanos(figures.total_ns).as_secs_f64();
        let taken = Figure::Times(spent, Box::new(figures.latencies));
        all.add("cowhand_disk_request_time", &labels, taken);
    }
}

fn limits(all: &mut Collection, name: &str, node: &DiskNode, histograms: Histograms) {
    let report = node.disk.throttle_report();
    let limited = !report.shared.levels.is_empty();
    for (direction, word) in DIRECTIONS {
        let tally = report.disk.counters.of(direction);
        let labels = [name, word];
        let mut add = |name, value: u64| all.add(name, &labels, value as f64);
        add("cowhand_throttle_passed_requests", tally.passed.requests);
        add("cowhand_throttle_passed", tally.passed.bytes);
        add("cowhand_throttle_delayed_requests", tally.delayed.requests);
        add("cowhand_throttle_delayed", tally.delayed.bytes);
        add("cowhand_throttle_queued_requests", tally.queued.requests);
        if histograms == Histograms::None || !(limited || tally.delays.count() > 0) {
            continue;
        }
        let delays =
            Figure::Times(Duration::from_nanos(tally.delayed_ns).as_secs_f64(), Box::new(tally.delays));
        all.add("cowhand_throttle_delay", &labels, delays);
    }
    all.add("cowhand_throttle_at_limit", &[name], report.disk.time_at_limit.as_secs_f64());
    for (flow, bucket) in &report.shared.levels {
        let parameter = throttle::Parameter::Rate(*flow, throttle::Part::Average);
        let labels = [name, parameter.name(throttle::Dialect::Limits)];
        let mut add = |name, value: f64| all.add(name, &labels, value);
        add("cowhand_throttle_limit_per_second", report.shared.limits.rate(*flow).avg as f64);
        add("cowhand_throttle_bucket_level", bucket.level);
        add("cowhand_throttle_bucket_capacity", bucket.capacity);
    }
}

fn map_cache(all: &mut Collection, name: &str, node: &DiskNode) {
    let Some(status) = node.disk.status() else { return };
    counters(all, [name, "own"], &status.map);
    if let Some(chain) = &status.chain {
        counters(all, [name, "below"], &chain.map);
    }
    let mut add = |metric, value: u64| all.add(metric, &[name], value as f64);
    add("cowhand_map_cache_covered", status.covered_bytes);
    add("cowhand_refcount_cache", status.refcount_bytes);
    add("cowhand_free_space", status.free_space_bytes);
    add("cowhand_image_corrupt", u64::from(status.corrupt));
}

/// Whether the server of a remote disk answers.
fn remote_server(all: &mut Collection, server: &net::dial::Server) {
    let mut add = |name, value: u64| all.add(name, &[server.name.as_str()], value as f64);
    add("cowhand_remote_reachable", u64::from(server.lost.is_none()));
    add("cowhand_remote_losses", server.losses);
    add("cowhand_remote_failures", server.failures);
}

/// What is kept of a remote file on this machine.
fn remote_cache(all: &mut Collection, cache: &OpenCache) {
    let path = cache.path.to_string_lossy();
    for figure in &CACHE_FIGURES {
        all.add(figure.metric, &[&*path, cache.of.as_str()], (figure.of)(&cache.figures) as f64);
    }
}

fn counters(all: &mut Collection, labels: [&str; 2], map: &Counters) {
    for figure in &MAP_FIGURES {
        all.add(figure.metric, &labels, (figure.of)(map) as f64);
    }
    let [name, which] = labels;
    for (form, bytes) in forms(map) {
        all.add("cowhand_map_cache_form", &[name, which, form], bytes as f64);
    }
    let advice = map.ghost_hits.advice();
    let more = advice.map_or(0, |advice| advice.more_bytes);
    all.add("cowhand_map_cache_wanted", &labels, more as f64);
    let avoided = advice.map_or(0, |advice| advice.avoided_misses);
    all.add("cowhand_map_cache_avoidable_misses", &labels, avoided as f64);
}
