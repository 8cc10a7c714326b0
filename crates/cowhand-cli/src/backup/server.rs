//! A backup of a disk that a running server has open: a job of the server, over its control socket.
//!
//! One transaction makes the bitmap of the next point and begins the job, so that they share one moment. The bitmap of the last point is
//! removed when the list of points has the next.

use std::path::Path;

use monitor::inventory::export_view::BACKUPS_BITMAPS;
use reactor::Reactor;
use serde_json::{Value, json};
use tool::failure::{Failure, warn};

use super::full::{FullBecause, why_full};
use super::manifest::{Kind, Point, Store};
use super::new_point::NewPoint;
use crate::copying;
use crate::copying::watch::Watch;
use crate::remote::Remote;
use crate::remote::jobs::Until;

/// A disk of a server.
struct Source<'a> {
    remote: &'a mut Remote,
    /// What is exported: the disk, or filters over it.
    node: String,
    /// The disk itself, which has the bitmaps.
    disk: String,
    /// A job can copy the disk itself, below its filters, and use its bitmaps.
    is_copied_below: bool,
    disk_bytes: u64,
    /// The disk's bitmaps, by name: whether each records changes and can be trusted.
    bitmaps: Vec<(String, bool)>,
    tracks: bool,
}

/// Filters that hand every write on to the disk below and read as that does. A disk below others (quorum, snapshot-access) has another content.
const TRANSPARENT: [&str; 4] = ["copy-on-read", "compress", "throttle", COPY_BEFORE_WRITE];

/// A filter that no job gets below: it would miss what the job's filter does.
const COPY_BEFORE_WRITE: &str = "copy-before-write";

/// Takes the next point of a disk of the server at `socket`.
///
/// # Errors
/// When the server refuses or fails, or a signal ends it: then no point is added.
pub fn take(
    store: &mut Store,
    socket: &Path,
    disk: Option<&str>,
    full: bool,
    watch: &Watch,
) -> Result<(Point, Option<FullBecause>), Failure> {
    let reactor = copying::reactor()?;
    let mut remote = Remote::connect(socket)?;
    let node = remote.disk_of_job(disk)?;
    let job = format!("{}job", store.bitmaps());
    let mut tries = TRIES_MAX;
    loop {
        end_left_job(&mut remote, &job, watch)?;
        let taken = take_one(store, &mut remote, (&node, &job), full, &reactor, watch);
        tries -= 1;
        // Other than ours: that one is gone when it fails.
        if taken.is_ok() || tries == 0 || !is_at_work(&mut remote, &job) {
            return taken;
        }
    }
}

/// A command that a killed run had sent may reach the server after those of the next run, and gets in its way once.
const TRIES_MAX: u32 = 5;

fn take_one(
    store: &mut Store,
    remote: &mut Remote,
    (node, job): (&str, &str),
    full: bool,
    reactor: &Reactor,
    watch: &Watch,
) -> Result<(Point, Option<FullBecause>), Failure> {
    let mut source = Source::find(remote, node)?;
    let last = store.points().last().map(|last| store.bitmap(last.point));
    let recording = source.bitmaps.iter().find(|(name, _)| Some(name) == last.as_ref()).map(|(_, is)| *is);
    let recording = recording.filter(|_| source.is_copied_below);
    let full_because = why_full(store, full, recording);
    let kind = if full_because.is_some() { Kind::Full } else { Kind::Incremental };
    let next = store.bitmap(store.next());
    source.remove_bitmaps(|name| name == next);
    let new = NewPoint::make(store, kind, source.disk_bytes, reactor)?;
    let bitmap = last.clone().filter(|_| kind == Kind::Incremental);
    let taken = source.copy(&new, job, bitmap.as_deref(), &next, watch);
    let point = taken.and_then(|()| new.keep(store, reactor, watch));
    let kept = if point.is_ok() { Some(next) } else { last };
    let prefix = store.bitmaps();
    source.bitmaps = Source::find(source.remote, node).map(|now| now.bitmaps).unwrap_or_default();
    source.remove_bitmaps(|name| name.starts_with(&prefix) && Some(name) != kept.as_deref());
    point.map(|point| (point, full_because))
}

/// Whether the server has a job of these backups, or its target.
fn is_at_work(remote: &mut Remote, job: &str) -> bool {
    let nodes = |remote: &mut Remote| remote.ask("query-named-block-nodes", json!({ "flat": true }));
    remote.has_job(job).unwrap_or(false)
        || nodes(remote).is_ok_and(|nodes| {
            let mut nodes = nodes.as_array().into_iter().flatten();
            nodes.any(|node| node["node-name"] == target_of(job).as_str())
        })
}

/// Cancels the job of an interrupted run: no point refers to what it wrote.
fn end_left_job(remote: &mut Remote, job: &str, watch: &Watch) -> Result<(), Failure> {
    remote.end_left_job(job, "backup", watch)?;
    // Its target, if there is one.
    let _ = remote.remove_node(&target_of(job));
    Ok(())
}

/// The node of the image that a job writes. Names of nodes have 31 characters at most.
fn target_of(job: &str) -> String {
    let id = job.trim_start_matches(BACKUPS_BITMAPS).trim_end_matches("-job");
    format!("backup-{id}")
}

/// The node below a filter whose content is that of the filter. QEMU lists children as objects, we name them by role.
fn below(filter: &Value) -> Option<&str> {
    if !TRANSPARENT.iter().any(|driver| filter["drv"] == *driver) {
        return None;
    }
    let listed = || filter["children"].as_array()?.iter().find(|child| child["child"] == "file");
    let ours = filter["children"]["file"].as_str().or_else(|| filter["child"].as_str());
    ours.or_else(|| listed()?["node-name"].as_str())
}

impl<'a> Source<'a> {
    fn find(remote: &'a mut Remote, node: &str) -> Result<Self, Failure> {
        let nodes = remote.ask("query-named-block-nodes", json!({}))?;
        let nodes: Vec<&Value> = nodes.as_array().into_iter().flatten().collect();
        let named = |name: &str| nodes.iter().copied().find(|found| found["node-name"] == name);
        let mut found =
            named(node).ok_or_else(|| Failure::new(format!("the server has no disk {node:?}")))?;
        let mut is_copied_below = true;
        while let Some(below) = below(found).and_then(named) {
            is_copied_below &= found["drv"] != COPY_BEFORE_WRITE;
            found = below;
        }
        let size = found["image"]["virtual-size"].as_u64();
        let disk_bytes =
            size.ok_or_else(|| Failure::new(format!("the server reports no size of {node:?}")))?;
        let bitmaps = found["dirty-bitmaps"].as_array().into_iter().flatten();
        let is_on = |value: &Value| value.as_bool().unwrap_or(false);
        let bitmaps = bitmaps.filter_map(|bitmap| {
            let name = bitmap["name"].as_str()?.to_owned();
            Some((name, is_on(&bitmap["recording"]) && !is_on(&bitmap["inconsistent"])))
        });
        let tracks = found["drv"] == "qcow2" || found["x-bitmaps-file"].is_string();
        let bitmaps = bitmaps.collect();
        let disk = found["node-name"].as_str().unwrap_or(node).to_owned();
        Ok(Self { remote, node: node.to_owned(), disk, is_copied_below, disk_bytes, bitmaps, tracks })
    }

    fn remove_bitmaps(&mut self, goes: impl Fn(&str) -> bool) {
        for (name, _) in self.bitmaps.iter().filter(|(name, _)| goes(name)) {
            let which = json!({ "node": self.disk, "name": name });
            if let Err(failure) = self.remote.ask("block-dirty-bitmap-remove", which) {
                warn(&format!("bitmap {name} stays: {failure}"));
            }
        }
    }

    /// Makes the server fill `new`, with what `bitmap` has as dirty if there is one, and close it.
    fn copy(
        &mut self,
        new: &NewPoint,
        job: &str,
        bitmap: Option<&str>,
        next: &str,
        watch: &Watch,
    ) -> Result<(), Failure> {
        let target = target_of(job);
        let file = json!({ "driver": "file", "filename": new.path() });
        let node = json!({ "driver": "qcow2", "node-name": target, "file": file, "backing": null });
        self.remote.ask("blockdev-add", node).map_err(|failure| {
            failure.with_hint(
                "the server writes the image: start it with --allow-path DIR, the directory of the backups",
            )
        })?;
        let mut backup =
            json!({ "job-id": job, "device": self.node, "target": target, "auto-dismiss": false });
        match bitmap {
            None => backup["sync"] = json!("full"),
            Some(bitmap) => {
                // Where the bitmap is; what clients see above it is the same.
                backup["device"] = json!(self.disk);
                backup["sync"] = json!("bitmap");
                backup["bitmap"] = json!(bitmap);
                backup["bitmap-mode"] = json!("never");
            }
        }
        let mut actions = vec![json!({ "type": "blockdev-backup", "data": backup })];
        if self.tracks {
            let add = json!({ "node": self.disk, "name": next, "persistent": true });
            actions.insert(0, json!({ "type": "block-dirty-bitmap-add", "data": add }));
        }
        let copied = self
            .remote
            .ask("transaction", json!({ "actions": actions }))
            .and_then(|_| self.remote.watch_job(job, watch, Until::Ended).map(drop));
        let closed = self.remote.remove_node(&target);
        copied.and(closed)
    }
}
