//! query-blockstats: figures of requests, of the map cache and of limits; block-latency-histogram-set.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use control::{Answer, List, QmpError, arguments, events};
use export::Snapshot;
use graph::front::{Kind, KindStatistics, Pauses};
use graph::{DiskNode, Node};
use qcow2::{ChainStatus, Status};
use serde_json::{Map, Value, json};
use tool::medium::medium_value;

use super::chosen::{self, Names, Nodes, object};
use super::limits::{nanos, report_value};
use crate::inventory::Inventory;
use crate::map_figures::map_value;
use crate::turns::Turn;

arguments! {
    /// By node, and of which.
    pub struct OfNodes { query_nodes: Option<bool>, ..chosen: Names }

    /// Where an event is emitted.
    pub struct Threshold { node_name: String, write_threshold: u64 }

    /// Bounds of histograms.
    pub struct Histograms {
        id: String, boundaries: Option<Vec<u64>>, boundaries_read: Option<Vec<u64>>,
        boundaries_write: Option<Vec<u64>>, boundaries_flush: Option<Vec<u64>>,
    }
}

events! {
    /// A write went beyond a threshold.
    pub WRITE_THRESHOLD = "BLOCK_WRITE_THRESHOLD" {
        "node-name": String, "amount-exceeded": u64, "write-threshold": u64,
    }
}

/// QEMU's word for each kind of request; zero writes have none there, and get one of ours.
const KINDS: [(Kind, &str); 5] = [
    (Kind::Read, "rd"),
    (Kind::Write, "wr"),
    (Kind::Zero, "zero"),
    (Kind::Discard, "unmap"),
    (Kind::Flush, "flush"),
];

/// What [`all`] gives without [`REPORT_JSON`](super::limits::REPORT_JSON), `MEDIUM_JSON` and the figures of maps.
pub const JSON: &str = "\
Of each disk:
  node-name, device, qdev  text
  stats                   object: requests of clients
  driver-specific         object: what is ours
  parent?                 object: stats of its file, of which only wr_highest_offset is there
Of stats:
  {rd,wr,zero,unmap,flush}_operations  number of requests that succeeded
  failed_{rd,wr,zero,unmap,flush}_operations  number of those that failed
  {rd,wr,zero,unmap}_bytes  bytes of those that succeeded
  {rd,wr,zero,unmap,flush}_total_time_ns  nanoseconds that all of them took
  {rd,wr,zero,unmap,flush}_latency_{p50,p99}_ns?
                          nanoseconds within which half, and 99 of 100, ended
  {rd,wr,zero,unmap,flush}_latency_histogram?
                          object: boundaries and bins (block-latency-histogram-set)
  {rd,wr,unmap}_merged    number of requests that went to the disk as part of another one
  in_flight               number of requests that have not ended
  invalid_operations      number of requests that were refused before the disk
  wr_highest_offset?      end of the highest write since it was opened; of a file in its bytes
  idle_time_ns?           nanoseconds since the last request
  account_invalid, account_failed  bool: true
  timed_stats             list: empty
Of driver-specific:
  driver                  text
  size                    size of the disk
  throttle, medium        objects
  pauses                  object: times in which snapshots and jobs kept requests out
  count, total-ns, longest-ns, last-ns  of pauses, their number and nanoseconds
  map-cache?              object: the map of the image; absent of a raw disk, as is the rest
  chain-map?              object: the map of its backing files
  refcount-cache-bytes?, free-space-bytes?
                          memory for refcounts, and for what is known of free clusters
  leaked-clusters?        number of clusters that this process has leaked
  corrupt?                bool: the image was found corrupt
Of map-cache alone:
  budget-used-bytes, budget-bytes  memory of the maps of all images, and its ceiling
  l2-cache-size, l2-cache-entry-size, refcount-cache-size  bytes, as options of a drive
  covers-disk             bool: the whole map fits
Of chain-map alone:
  layers                  number of backing files";

/// What the clients of a disk's exports did, by the address of the disk.
type Counted = HashMap<*const DiskNode, [u64; 3]>;

/// Requests that were refused, and reads and writes that went to the disk as part of another one.
fn counted(inventory: &Inventory) -> Counted {
    let mut counted = Counted::new();
    for export in inventory.exports() {
        let Snapshot { invalid, merged_reads, merged_writes, .. } = export.entry.counters().snapshot();
        let of_disk = counted.entry(Arc::as_ptr(&export.disk)).or_default();
        for (sum, count) in of_disk.iter_mut().zip([invalid, merged_reads, merged_writes]) {
            *sum += count;
        }
    }
    counted
}

/// Figures of every disk, or of every node.
///
/// # Errors
/// When a disk, or a node, is named that is none.
pub async fn all(inventory: &Inventory, of: &OfNodes) -> Result<Answer, QmpError> {
    let by_node = of.query_nodes == Some(true);
    let (mut list, mut turn, counted) = (List::default(), Turn::begin(), counted(inventory));
    let nodes = by_node.then(|| Nodes::of(inventory, &of.chosen)).transpose()?;
    let disks = match &nodes {
        Some(nodes) => {
            let disk =
                |node: Arc<Node>| node.disk().ok().filter(|_| nodes.has(&node.name())).map(Arc::downgrade);
            nodes.all.iter().filter_map(|node| disk(node.upgrade()?)).collect()
        }
        None => chosen::disks(inventory, &of.chosen)?,
    };
    for node in disks {
        turn.pass().await;
        // It may be gone by now.
        let Some(node) = node.upgrade() else { continue };
        list.push(&one(&node, counted.get(&Arc::as_ptr(&node)).copied().unwrap_or_default(), by_node));
    }
    let reaches = if by_node { inventory.graph.write_reaches() } else { HashMap::new() };
    for node in nodes.iter().flat_map(|nodes| &nodes.all) {
        turn.pass().await;
        let Some(node) = node.upgrade() else { continue };
        let own = node.disk().is_err().then(|| node.name());
        let names = own.into_iter().chain(node.parts());
        for name in names.filter(|name| nodes.as_ref().is_some_and(|nodes| nodes.has(name))) {
            let highest = reaches.get(&name).map(|reach| reach.highest());
            list.push(&object([("node-name", json!(name)), ("stats", of_no_requests(highest))]));
        }
    }
    Ok(Answer::List(list))
}

/// What is counted are the requests of a disk's clients: a node below or over a disk has none, as in QEMU. Of a file it is known how far writes reached.
fn of_no_requests(highest: Option<u64>) -> Value {
    let mut stats = Map::new();
    for (_, word) in KINDS {
        for what in ["operations", "bytes", "total_time_ns"] {
            if (word, what) != ("flush", "bytes") {
                stats.insert(format!("{word}_{what}"), json!(0));
            }
        }
        stats.insert(format!("failed_{word}_operations"), json!(0));
        stats.insert(format!("invalid_{word}_operations"), json!(0));
    }
    for merged in ["rd_merged", "wr_merged", "unmap_merged"] {
        stats.insert(merged.to_owned(), json!(0));
    }
    stats.insert("account_invalid".to_owned(), json!(true));
    stats.insert("account_failed".to_owned(), json!(true));
    stats.insert("timed_stats".to_owned(), json!([]));
    if let Some(highest) = highest {
        stats.insert("wr_highest_offset".to_owned(), json!(highest));
    }
    Value::Object(stats)
}

fn one(node: &DiskNode, counted: [u64; 3], by_node: bool) -> Map<String, Value> {
    let mut value = object([
        ("node-name", json!(node.name())),
        ("stats", stats(node, counted)),
        ("driver-specific", driver_specific(node)),
    ]);
    if let Some(reach) = node.disk.reach() {
        value.insert("parent".to_owned(), json!({ "stats": { "wr_highest_offset": reach.highest() } }));
    }
    if !by_node {
        value.extend(object([("device", json!(node.name())), ("qdev", json!(node.name()))]));
    }
    value
}

fn stats(node: &DiskNode, [invalid, reads, writes]: [u64; 3]) -> Value {
    let statistics = node.disk.statistics();
    let mut stats = Map::new();
    for (kind, word) in KINDS {
        add_kind(&mut stats, word, statistics.of(kind));
    }
    let in_flight: u64 = Kind::ALL.into_iter().map(|kind| statistics.of(kind).in_flight).sum();
    stats.insert("in_flight".to_owned(), json!(in_flight));
    stats.insert("invalid_operations".to_owned(), json!(invalid));
    for (name, value) in [("rd_merged", reads), ("wr_merged", writes), ("unmap_merged", 0)] {
        stats.insert(name.to_owned(), json!(value));
    }
    stats.insert("wr_highest_offset".to_owned(), json!(node.disk.highest_write()));
    stats.insert("account_invalid".to_owned(), json!(true));
    stats.insert("account_failed".to_owned(), json!(true));
    stats.insert("timed_stats".to_owned(), json!([]));
    if let Some(idle) = statistics.idle {
        stats.insert("idle_time_ns".to_owned(), json!(nanos(idle)));
    }
    Value::Object(stats)
}

fn add_kind(stats: &mut Map<String, Value>, word: &str, kind: &KindStatistics) {
    let mut put = |name: String, value: Value| stats.insert(name, value);
    put(format!("{word}_operations"), json!(kind.requests));
    put(format!("failed_{word}_operations"), json!(kind.failed));
    put(format!("{word}_total_time_ns"), json!(kind.total_ns));
    if word != "flush" {
        put(format!("{word}_bytes"), json!(kind.bytes));
    }
    for (name, per_mille) in [("p50", 500), ("p99", 990)] {
        if let Some(latency) = kind.latencies.quantile(per_mille) {
            put(format!("{word}_latency_{name}_ns"), json!(nanos(latency)));
        }
    }
    if let Some(histogram) = &kind.histogram {
        let value = json!({ "boundaries": histogram.bounds_ns, "bins": histogram.counts });
        put(format!("{word}_latency_histogram"), value);
    }
}

fn driver_specific(node: &DiskNode) -> Value {
    let mut value = object([
        ("driver", json!(node.driver())),
        ("size", json!(node.disk.size())),
        ("throttle", report_value(&node.disk.throttle_report())),
        ("medium", medium_value(&node.disk.medium())),
        ("pauses", pauses(&node.disk.pauses())),
    ]);
    if let Some(status) = node.disk.status() {
        value.insert("map-cache".to_owned(), map_cache(&status));
        if let Some(chain) = &status.chain {
            value.insert("chain-map".to_owned(), chain_map(chain));
        }
        value.extend(object([
            ("refcount-cache-bytes", json!(status.refcount_bytes)),
            ("free-space-bytes", json!(status.free_space_bytes)),
            ("leaked-clusters", json!(status.leaked_clusters)),
            ("corrupt", json!(status.corrupt)),
        ]));
    }
    Value::Object(value)
}

/// How long snapshots and jobs kept requests out.
fn pauses(pauses: &Pauses) -> Value {
    json!({
        "count": pauses.count,
        "total-ns": nanos(pauses.total),
        "longest-ns": nanos(pauses.longest),
        "last-ns": nanos(pauses.last),
    })
}

/// The map cache's counters and sizes.
fn map_cache(status: &Status) -> Value {
    let mut value = map_value(&status.map);
    let sizes = &status.cache_sizes;
    for (name, figure) in [
        ("budget-used-bytes", json!(status.budget_used_bytes)),
        ("budget-bytes", json!(status.budget_bytes_max)),
        ("covered-bytes", json!(status.covered_bytes)),
        ("l2-cache-size", json!(sizes.l2_bytes)),
        ("l2-cache-entry-size", json!(sizes.l2_entry_bytes)),
        ("refcount-cache-size", json!(sizes.refcount_bytes)),
        ("covers-disk", json!(sizes.covers_disk)),
    ] {
        value.insert(name.to_owned(), figure);
    }
    Value::Object(value)
}

/// The map of the layers below.
fn chain_map(chain: &ChainStatus) -> Value {
    let mut value = map_value(&chain.map);
    value.insert("layers".to_owned(), json!(chain.layers));
    value.insert("covered-bytes".to_owned(), json!(chain.covered_bytes));
    Value::Object(value)
}

/// Starts, changes or (without bounds) ends latency histograms. Earlier counts are dropped.
pub fn set_histogram(inventory: &Inventory, given: &Histograms) -> Result<(), QmpError> {
    let disk = &inventory.disk(&given.id)?.disk;
    let kinds = [
        (Kind::Read, &given.boundaries_read),
        (Kind::Write, &given.boundaries_write),
        (Kind::Flush, &given.boundaries_flush),
    ];
    let are_ended = given.boundaries.is_none() && kinds.iter().all(|(_, own)| own.is_none());
    for (kind, own) in kinds {
        let bounds = own.as_ref().or(given.boundaries.as_ref());
        if bounds.is_some() || are_ended {
            set_bounds(disk, kind, bounds.map(Vec::as_slice))?;
        }
    }
    Ok(())
}

fn set_bounds(disk: &graph::Disk, kind: Kind, bounds: Option<&[u64]>) -> Result<(), QmpError> {
    disk.set_latency_bounds(kind, bounds).map_err(|error| QmpError::generic(error.to_string()))
}

/// block-set-write-threshold: the first write beyond it emits an event, once.
pub fn set_threshold(inventory: &Rc<Inventory>, given: &Threshold) -> Result<(), QmpError> {
    let (name, threshold) = (given.node_name.clone(), given.write_threshold);
    let reach = inventory.graph.reach_of(&name).map_err(|error| inventory.refused(&error))?;
    let number = reach.set_threshold(threshold);
    if threshold > 0 {
        // The task that waits holds no reference to the file.
        let events = Rc::clone(&inventory.events);
        reactor::spawn(async move {
            if let Some(end) = reach.passed(number).await {
                let data = json!({
                    "node-name": name,
                    "amount-exceeded": end - threshold,
                    "write-threshold": threshold,
                });
                events.emit(WRITE_THRESHOLD.name, &data);
            }
        })
        .detach();
    }
    Ok(())
}
