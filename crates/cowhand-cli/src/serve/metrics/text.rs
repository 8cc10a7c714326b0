//! The figures by Prometheus' conventions: base units, `_total` for what only grows, one label for the disk.

use std::time::Duration;

use graph::DiskNode;
use graph::drivers::OpenCache;
use graph::front::Kind;
use prometheus_client::registry::Registry;
use qcow2::Counters;
use throttle::Direction;

use super::family::{Collection, Figure, In, counter, gauge, times};
use crate::map_figures::{CountsIn, MAP_FIGURES, forms};
use crate::serve::inventory::Inventory;

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

/// All figures, as OpenMetrics text.
pub fn encode(inventory: &Inventory, histograms: Histograms) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collected(inventory, histograms)));
    let mut text = String::new();
    // Writing into a text does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

fn collected(inventory: &Inventory, histograms: Histograms) -> Collection {
    let mut all = Collection::default();
    all.add(
        gauge("cowhand_connections", In::Things, "NBD clients that are connected"),
        &[],
        inventory.server.connections() as f64,
    );
    clients(&mut all, inventory);
    for disk in inventory.graph.disks() {
        requests(&mut all, &disk.name(), &disk, histograms);
        limits(&mut all, &disk.name(), &disk, histograms);
        map_cache(&mut all, &disk.name(), &disk);
    }
    dial::servers().iter().for_each(|server| remote_server(&mut all, server));
    graph::drivers::caches().iter().for_each(|cache| remote_cache(&mut all, cache));
    for export in inventory.exports() {
        let disk_name = export.disk.name();
        let labels = [("export", export.entry.name()), ("disk", disk_name.as_str())];
        let counted = export.entry.counters().snapshot();
        all.add(
            gauge(
                "cowhand_export_connections",
                In::Things,
                "Clients of an export: NBD connections, virtual machines",
            ),
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
        let help = "Requests given up because their client was gone";
        all.add(
            counter("cowhand_export_dropped_requests", In::Things, help),
            &labels,
            counted.dropped as f64,
        );
        let help = "Requests that went to the disk as part of another one";
        for (direction, merged) in [("read", counted.merged_reads), ("write", counted.merged_writes)] {
            let family = counter("cowhand_export_merged_requests", In::Things, help);
            all.add(family, &[&labels[..], &[("direction", direction)]].concat(), merged as f64);
        }
    }
    all
}

/// What all clients together cost.
fn clients(all: &mut Collection, inventory: &Inventory) {
    let costs = inventory.server.client_costs();
    let mut add = |family, value: u64| all.add(family, &[], value as f64);
    let help = "Memory that requests in flight and replies not yet read hold";
    add(gauge("cowhand_client_memory", In::Bytes, help), costs.held_bytes);
    let help = "The most that cowhand_client_memory ever was";
    add(gauge("cowhand_client_memory_peak", In::Bytes, help), costs.held_bytes_most);
    let help = "What cowhand_client_memory may be";
    add(gauge("cowhand_client_memory_limit", In::Bytes, help), costs.held_bytes_max);
    let help = "Clients sent away because they read no reply, or sent nothing of a payload, for too long";
    add(counter("cowhand_clients_stalled", In::Things, help), costs.stalled);
    let help = "Connections closed because there were too many";
    add(counter("cowhand_connections_refused", In::Things, help), costs.refused);
}

fn requests(all: &mut Collection, name: &str, node: &DiskNode, histograms: Histograms) {
    let statistics = node.disk.statistics();
    all.add(
        gauge("cowhand_disk_size", In::Bytes, "Size of the disk"),
        &[("disk", name)],
        node.disk.size() as f64,
    );
    let pauses = node.disk.pauses();
    let help = "Snapshots and ends of jobs that kept requests of the disk out";
    all.add(counter("cowhand_disk_pauses", In::Things, help), &[("disk", name)], pauses.count as f64);
    let help = "Time for which they did, all together";
    all.add(counter("cowhand_disk_paused", In::Seconds, help), &[("disk", name)], pauses.total.as_secs_f64());
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
        if histograms == Histograms::None || figures.latencies.count() == 0 {
            continue;
        }
        let spent = Duration::from_nanos(figures.total_ns).as_secs_f64();
        let help = "Time from arrival to end of requests, waiting for limits included; of reads that are answered at once \
                    every sixteenth stands for sixteen";
        let taken = Figure::Times(spent, Box::new(figures.latencies));
        all.add(times("cowhand_disk_request_time", help), &labels, taken);
    }
}

fn limits(all: &mut Collection, name: &str, node: &DiskNode, histograms: Histograms) {
    let report = node.disk.throttle_report();
    let limited = !report.shared.levels.is_empty();
    for (direction, word) in DIRECTIONS {
        let tally = report.disk.counters.of(direction);
        let labels = [("disk", name), ("direction", word)];
        let mut add = |family, value: u64| all.add(family, &labels, value as f64);
        let help = "Requests that passed while something was limited";
        add(counter("cowhand_throttle_passed_requests", In::Things, help), tally.passed.requests);
        let help = "Bytes that passed while something was limited";
        add(counter("cowhand_throttle_passed", In::Bytes, help), tally.passed.bytes);
        let help = "Requests that waited for a limit";
        add(counter("cowhand_throttle_delayed_requests", In::Things, help), tally.delayed.requests);
        let help = "Bytes of requests that waited for a limit";
        add(counter("cowhand_throttle_delayed", In::Bytes, help), tally.delayed.bytes);
        let help = "Requests that wait for a limit now";
        add(gauge("cowhand_throttle_queued_requests", In::Things, help), tally.queued.requests);
        if histograms == Histograms::None || !(limited || tally.delays.count() > 0) {
            continue;
        }
        let help = "Time that requests waited for a limit";
        let delays =
            Figure::Times(Duration::from_nanos(tally.delayed_ns).as_secs_f64(), Box::new(tally.delays));
        all.add(times("cowhand_throttle_delay", help), &labels, delays);
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
    for (flow, bucket) in &report.shared.levels {
        let parameter = throttle::Parameter::Rate(*flow, throttle::Part::Average);
        let labels = [("disk", name), ("limit", parameter.name(throttle::Dialect::Limits))];
        let mut add = |name, help, value: f64| all.add(gauge(name, In::Things, help), &labels, value);
        let help = "Average that a limit allows, in operations or bytes a second";
        add("cowhand_throttle_limit_per_second", help, report.shared.limits.rate(*flow).avg as f64);
        let help = "What a limit's bucket holds, in operations or bytes: requests wait above its capacity";
        add("cowhand_throttle_bucket_level", help, bucket.level);
        add("cowhand_throttle_bucket_capacity", "What a limit's bucket can hold", bucket.capacity);
    }
}

fn map_cache(all: &mut Collection, name: &str, node: &DiskNode) {
    let Some(status) = node.disk.status() else { return };
    counters(all, &[("disk", name), ("map", "own")], &status.map);
    if let Some(chain) = &status.chain {
        counters(all, &[("disk", name), ("map", "below")], &chain.map);
    }
    let labels = [("disk", name)];
    let mut add = |family, value: u64| all.add(family, &labels, value as f64);
    let help = "Bytes of disk that the map in memory covers";
    add(gauge("cowhand_map_cache_covered", In::Bytes, help), status.covered_bytes);
    add(gauge("cowhand_refcount_cache", In::Bytes, "Memory in the refcount cache"), status.refcount_bytes);
    add(
        gauge("cowhand_free_space", In::Bytes, "Memory in what is known of free clusters"),
        status.free_space_bytes,
    );
    let help = "1 if the image was found corrupt";
    add(gauge("cowhand_image_corrupt", In::Things, help), u64::from(status.corrupt));
}

/// Whether the server of a remote disk answers.
fn remote_server(all: &mut Collection, server: &dial::Server) {
    let labels = [("server", server.name.as_str())];
    let mut add = |family, value: u64| all.add(family, &labels, value as f64);
    let help = "1 if the server of a remote disk answers";
    add(gauge("cowhand_remote_reachable", In::Things, help), u64::from(server.lost.is_none()));
    let help = "How often the server of a remote disk was lost";
    add(counter("cowhand_remote_losses", In::Things, help), server.losses);
    let help = "Attempts to reach the server of a remote disk that failed";
    add(counter("cowhand_remote_failures", In::Things, help), server.failures);
}

/// What is kept of a remote file on this machine.
fn remote_cache(all: &mut Collection, cache: &OpenCache) {
    let (path, figures) = (cache.path.to_string_lossy(), &cache.figures);
    let labels = [("cache", &*path), ("of", cache.of.as_str())];
    let help = "Bytes of a remote file in its cache";
    all.add(gauge("cowhand_remote_cache_size", In::Bytes, help), &labels, figures.cached_bytes as f64);
    for (name, unit, help, value) in [
        (
            "cowhand_remote_cache_hits",
            In::Things,
            "Reads of a remote file that needed nothing of its server",
            figures.hits,
        ),
        (
            "cowhand_remote_cache_misses",
            In::Things,
            "Reads of a remote file that needed its server",
            figures.misses,
        ),
        (
            "cowhand_remote_cache_served",
            In::Bytes,
            "Bytes that were read of a remote file",
            figures.served_bytes,
        ),
        (
            "cowhand_remote_cache_fetched",
            In::Bytes,
            "Bytes that came from the server of a remote file",
            figures.fetched_bytes,
        ),
        (
            "cowhand_remote_cache_prefetched",
            In::Bytes,
            "Bytes among them that came before a read asked for them (prefetch-trace)",
            figures.prefetched_bytes,
        ),
        (
            "cowhand_remote_cache_prefetched_used",
            In::Bytes,
            "Bytes of clusters among these that a read asked for afterwards",
            figures.prefetched_used_bytes,
        ),
        (
            "cowhand_remote_cache_evictions",
            In::Things,
            "Clusters of a cache that were given up for others",
            figures.evictions,
        ),
        (
            "cowhand_remote_cache_not_kept",
            In::Things,
            "Fetched clusters that a cache did not keep",
            figures.not_kept,
        ),
        (
            "cowhand_remote_cache_failures",
            In::Things,
            "How often the file of a cache failed",
            figures.failures,
        ),
    ] {
        all.add(counter(name, unit, help), &labels, value as f64);
    }
}

fn counters(all: &mut Collection, labels: &[(&'static str, &str)], map: &Counters) {
    for figure in &MAP_FIGURES {
        let unit = match figure.counts_in {
            CountsIn::Things => In::Things,
            CountsIn::Bytes => In::Bytes,
        };
        let family = if figure.grows { counter } else { gauge }(figure.metric, unit, figure.help);
        all.add(family, labels, (figure.of)(map) as f64);
    }
    let help = "Memory that slices take, by how they lie there";
    for (form, bytes) in forms(map) {
        let labels = [labels, &[("form", form)]].concat();
        all.add(gauge("cowhand_map_cache_form", In::Bytes, help), &labels, bytes as f64);
    }
    let advice = map.ghost_hits.advice();
    let help = "How much more memory would have avoided most of the misses that memory can avoid";
    let more = advice.map_or(0, |advice| advice.more_bytes);
    all.add(gauge("cowhand_map_cache_wanted", In::Bytes, help), labels, more as f64);
    let help = "Misses that the additional memory of the label would have avoided";
    let avoided = advice.map_or(0, |advice| advice.avoided_misses);
    all.add(gauge("cowhand_map_cache_avoidable_misses", In::Things, help), labels, avoided as f64);
}
