//! Every figure of the server, described once: the scrape, docs/reference/metrics.md and its test read it from here.

use std::sync::LazyLock;

use crate::figure::{CountsIn, Figure};
use crate::map_figures::MAP_FIGURES;
use crate::remote_figures::CACHE_FIGURES;

/// What a figure counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum In {
    /// Requests, slices, clients.
    Things,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// How a figure changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How long things took.
    Histogram,
}

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the unit and without `_total`, which the encoder adds.
    pub name: &'static str,
    /// How it changes.
    pub kind: Kind,
    /// What it counts in.
    pub unit: In,
    /// Names of its labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// Figures that belong together.
#[derive(Debug)]
pub struct Group {
    title: &'static str,
    metrics: Vec<Metric>,
}

static GROUPS: LazyLock<[Group; 5]> = LazyLock::new(|| {
    let maps = MAP_FIGURES.iter().map(|figure| listed(figure, &["disk", "map"])).chain(MAPS).collect();
    let caches = CACHE_FIGURES.iter().map(|figure| listed(figure, &["cache", "of"]));
    [
        Group { title: "Disks", metrics: DISKS.to_vec() },
        Group { title: "Exports and clients", metrics: EXPORTS.to_vec() },
        Group { title: "Limits", metrics: LIMITS.to_vec() },
        Group { title: "Map cache and image", metrics: maps },
        Group { title: "Remote disks", metrics: REMOTES.into_iter().chain(caches).collect() },
    ]
});

/// All figures.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    GROUPS.iter().flat_map(|group| &group.metrics)
}

const INTRODUCTION: &str = "\
# Metrics

**Question it answers:** which figures does `/metrics` have, with which labels, and what does each count?

Made from the program's own table by `cowhand manual --markdown=metrics`.

`cowhand serve --metrics ADDR:PORT` answers `GET /metrics` with OpenMetrics text; `?histograms=none` leaves histograms
out. A port alone is on 127.0.0.1. `?disk=NAME`, as often as there are such (`params: { disk: [a, b] }` of a scrape),
has the figures of these disks and of the process alone; one that is gone has none. Every client that can connect can
read them: names of disks, and their load. Counters only grow, and end with `_total`. Figures of limits, remote disks
and caches are there where a disk has such. A histogram has the kinds of requests that there were; that of limits also
where a limit is set. `map` is `own` (the image's map) or `below` (those of its backing files).
[monitoring.md](../guide/monitoring.md) says what to alert on.
";

/// docs/reference/metrics.md.
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in GROUPS.iter() {
        text += &format!("\n## {}\n\n| metric | labels | kind | says |\n|---|---|---|---|\n", group.title);
        group.metrics.iter().for_each(|metric| text += &metric.row());
    }
    text
}

impl Metric {
    /// As a scrape has it.
    pub fn full_name(&self) -> String {
        let unit = match self.unit {
            In::Things => "",
            In::Bytes => "_bytes",
            In::Seconds => "_seconds",
        };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name)
    }

    fn row(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        format!("| `{}` | {} | {kind} | {} |\n", self.full_name(), labels.join(", "), self.help)
    }
}

fn listed<T>(figure: &Figure<T>, labels: &'static [&'static str]) -> Metric {
    let kind = if figure.grows { Kind::Counter } else { Kind::Gauge };
    let unit = match figure.counts_in {
        CountsIn::Things => In::Things,
        CountsIn::Bytes => In::Bytes,
    };
    Metric { name: figure.metric, kind, unit, labels, help: figure.help }
}

const fn counter(
    name: &'static str,
    unit: In,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, labels, help }
}

const fn gauge(name: &'static str, unit: In, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, labels, help }
}

const fn times(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, unit: In::Seconds, labels, help }
}

#[rustfmt::skip]
const DISKS: [Metric; 8] = [
    gauge("cowhand_disk_size", In::Bytes, &["disk"], "Size of the disk"),
    counter("cowhand_disk_pauses", In::Things, &["disk"],
        "Snapshots and ends of jobs that kept requests of the disk out"),
    counter("cowhand_disk_paused", In::Seconds, &["disk"], "Time of these pauses, all together"),
    counter("cowhand_disk_requests", In::Things, &["disk", "kind"], "Requests that ended with success"),
    counter("cowhand_disk_failed_requests", In::Things, &["disk", "kind"], "Requests that ended with an error"),
    counter("cowhand_disk_transferred", In::Bytes, &["disk", "kind"], "Bytes that successful requests covered"),
    times("cowhand_disk_request_time", &["disk", "kind"],
        "Time from arrival to end of requests, waiting for limits included; of reads that are answered at once every sixteenth stands for sixteen"),
    gauge("cowhand_disk_requests_in_flight", In::Things, &["disk", "kind"], "Requests that have not ended"),
];

#[rustfmt::skip]
const EXPORTS: [Metric; 10] = [
    gauge("cowhand_connections", In::Things, &[], "NBD clients that are connected"),
    gauge("cowhand_client_memory", In::Bytes, &[], "Memory that requests in flight and replies not yet read hold"),
    gauge("cowhand_client_memory_peak", In::Bytes, &[], "The most that cowhand_client_memory_bytes ever was"),
    gauge("cowhand_client_memory_limit", In::Bytes, &[], "What cowhand_client_memory_bytes may be"),
    counter("cowhand_clients_stalled", In::Things, &[],
        "Clients sent away because they read no reply, or sent nothing of a payload, for too long"),
    counter("cowhand_connections_refused", In::Things, &[], "Connections closed because there were too many"),
    gauge("cowhand_export_connections", In::Things, &["export", "disk"],
        "Clients of an export: NBD connections, virtual machines"),
    counter("cowhand_export_invalid_requests", In::Things, &["export", "disk"],
        "Requests refused before they reached the disk"),
    counter("cowhand_export_dropped_requests", In::Things, &["export", "disk"],
        "Requests given up because their client was gone"),
    counter("cowhand_export_merged_requests", In::Things, &["export", "disk", "direction"],
        "Requests that went to the disk as part of another one"),
];

#[rustfmt::skip]
const LIMITS: [Metric; 10] = [
    counter("cowhand_throttle_passed_requests", In::Things, &["disk", "direction"],
        "Requests that passed while something was limited"),
    counter("cowhand_throttle_passed", In::Bytes, &["disk", "direction"],
        "Bytes that passed while something was limited"),
    counter("cowhand_throttle_delayed_requests", In::Things, &["disk", "direction"],
        "Requests that waited for a limit"),
    counter("cowhand_throttle_delayed", In::Bytes, &["disk", "direction"], "Bytes of requests that waited for a limit"),
    gauge("cowhand_throttle_queued_requests", In::Things, &["disk", "direction"], "Requests that wait for a limit now"),
    times("cowhand_throttle_delay", &["disk", "direction"], "Time that requests waited for a limit"),
    counter("cowhand_throttle_at_limit", In::Seconds, &["disk"], "Time during which some request waited for a limit"),
    gauge("cowhand_throttle_limit_per_second", In::Things, &["disk", "limit"],
        "Average that a limit allows, in operations or bytes a second"),
    gauge("cowhand_throttle_bucket_level", In::Things, &["disk", "limit"],
        "What a limit's bucket holds, in operations or bytes: requests wait above its capacity"),
    gauge("cowhand_throttle_bucket_capacity", In::Things, &["disk", "limit"], "What a limit's bucket can hold"),
];

/// Beside [`MAP_FIGURES`].
#[rustfmt::skip]
const MAPS: [Metric; 7] = [
    gauge("cowhand_map_cache_form", In::Bytes, &["disk", "map", "form"],
        "Memory that slices take, by how they lie there"),
    gauge("cowhand_map_cache_wanted", In::Bytes, &["disk", "map"],
        "How much more memory would have avoided most of the misses that memory can avoid"),
    gauge("cowhand_map_cache_avoidable_misses", In::Things, &["disk", "map"],
        "Misses that the additional memory of the label would have avoided"),
    gauge("cowhand_map_cache_covered", In::Bytes, &["disk"], "Bytes of disk that the map in memory covers"),
    gauge("cowhand_refcount_cache", In::Bytes, &["disk"], "Memory in the refcount cache"),
    gauge("cowhand_free_space", In::Bytes, &["disk"], "Memory in what is known of free clusters"),
    gauge("cowhand_image_corrupt", In::Things, &["disk"], "1 if the image was found corrupt"),
];

/// Beside [`CACHE_FIGURES`].
#[rustfmt::skip]
const REMOTES: [Metric; 3] = [
    gauge("cowhand_remote_reachable", In::Things, &["server"], "1 if the server of a remote disk answers"),
    counter("cowhand_remote_losses", In::Things, &["server"], "How often the server of a remote disk was lost"),
    counter("cowhand_remote_failures", In::Things, &["server"],
        "Attempts to reach the server of a remote disk that failed"),
];

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// What the series of a histogram are called behind its name.
    const SERIES: [&str; 3] = ["_bucket", "_count", "_sum"];

    fn workspace(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
    }

    #[test]
    fn the_page_of_metrics_is_the_table() {
        let found = std::fs::read_to_string(workspace("docs/reference/metrics.md")).unwrap();
        assert!(found == markdown(), "cowhand manual --markdown=metrics > docs/reference/metrics.md");
    }

    #[test]
    fn each_figure_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = all().map(|metric| metric.name).collect();
        assert_eq!(names.len(), all().count());
    }

    /// A rule that asks for a figure that no server exports never fires.
    #[test]
    fn alert_rules_and_dashboard_ask_for_figures_that_are_exported() {
        let exported: Vec<String> = all().map(Metric::full_name).collect();
        let is_exported = |word: &str| {
            let series = SERIES.iter().filter_map(|series| word.strip_suffix(series));
            series.chain([word]).any(|name| exported.iter().any(|exported| exported == name))
        };
        for user in ["cowhand.rules.yml", "cowhand-dashboard.json"] {
            let text = std::fs::read_to_string(workspace("packaging/monitoring").join(user)).unwrap();
            let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
            let used: Vec<&str> = words.filter(|word| word.starts_with("cowhand_")).collect();
            assert!(!used.is_empty(), "{user}");
            used.iter().for_each(|word| assert!(is_exported(word), "{user}: no figure is called {word}"));
        }
    }
}
