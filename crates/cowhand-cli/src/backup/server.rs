//! A backup of a disk that a running server has open: a job of the server, over its control socket.
//!
//! One transaction makes the bitmap of the next point and begins the job, so that they share one moment. The bitmap of the last point is
//! removed when the list of points has the next.

use std::path::Path;

use serde_json::{Value, json};

use super::manifest::{Kind, Point, Store};
use super::new_point::NewPoint;
use super::{BITMAP_PREFIX, FullBecause, why_full};
use crate::copying;
use crate::copying::watch::Watch;
use crate::failure::{Failure, warn};
use crate::remote::Remote;
use crate::remote::jobs::Until;

/// A disk of a server.
struct Source<'a> {
    remote: &'a mut Remote,
    node: String,
    disk_bytes: u64,
    /// Its bitmaps, by name: whether each records changes and can be trusted.
    bitmaps: Vec<(String, bool)>,
    tracks: bool,
}

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
    end_left_job(&mut remote, &job, watch)?;
    let mut source = Source::find(&mut remote, &node)?;
    let last = store.points().last().map(|last| store.bitmap(last.point));
    let recording = source.bitmaps.iter().find(|(name, _)| Some(name) == last.as_ref()).map(|(_, is)| *is);
    let full_because = why_full(store, full, recording);
    let kind = if full_because.is_some() { Kind::Full } else { Kind::Incremental };
    let next = store.bitmap(store.next());
    source.remove_bitmaps(|name| name == next);
    let new = NewPoint::make(store, kind, source.disk_bytes, &reactor)?;
    let bitmap = last.clone().filter(|_| kind == Kind::Incremental);
    let taken = source.copy(&new, &job, bitmap.as_deref(), &next, watch);
    let point = taken.and_then(|()| new.keep(store, &reactor, watch));
    let kept = if point.is_ok() { Some(next) } else { last };
    let prefix = store.bitmaps();
    source.bitmaps = Source::find(source.remote, &node).map(|now| now.bitmaps).unwrap_or_default();
    source.remove_bitmaps(|name| name.starts_with(&prefix) && Some(name) != kept.as_deref());
    point.map(|point| (point, full_because))
}

/// A job of a run that did not end is ended: what it wrote is nobody's.
fn end_left_job(remote: &mut Remote, job: &str, watch: &Watch) -> Result<(), Failure> {
    if remote.has_job(job)? {
        warn("a backup that did not end is still at work; it is cancelled");
        let _ = remote.ask("block-job-cancel", json!({ "device": job, "force": true }));
        // That it was cancelled is what it tells.
        let _ = remote.watch_job(job, watch, Until::Ended);
        watch.check()?;
    }
    // Its target, if there is one.
    let _ = remote.remove_node(&target_of(job));
    Ok(())
}

/// The node of the image that a job writes. Names of nodes have 31 characters at most.
fn target_of(job: &str) -> String {
    let id = job.trim_start_matches(BITMAP_PREFIX).trim_end_matches("-job");
    format!("backup-{id}")
}

impl<'a> Source<'a> {
    fn find(remote: &'a mut Remote, node: &str) -> Result<Self, Failure> {
        let nodes = remote.ask("query-named-block-nodes", json!({}))?;
        let found = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == node);
        let found = found.ok_or_else(|| Failure::new(format!("the server has no disk {node:?}")))?;
        let size = found["image"]["virtual-size"].as_u64();
        let disk_bytes = size.ok_or_else(|| Failure::new(format!("the server tells no size of {node:?}")))?;
        let bitmaps = found["dirty-bitmaps"].as_array().into_iter().flatten();
        let is_on = |value: &Value| value.as_bool().unwrap_or(false);
        let bitmaps = bitmaps.filter_map(|bitmap| {
            let name = bitmap["name"].as_str()?.to_owned();
            Some((name, is_on(&bitmap["recording"]) && !is_on(&bitmap["inconsistent"])))
        });
        let tracks = found["drv"] == "qcow2" || found["x-bitmaps-file"].is_string();
        let bitmaps = bitmaps.collect();
        Ok(Self { remote, node: node.to_owned(), disk_bytes, bitmaps, tracks })
    }

    fn remove_bitmaps(&mut self, goes: impl Fn(&str) -> bool) {
        for (name, _) in self.bitmaps.iter().filter(|(name, _)| goes(name)) {
            let which = json!({ "node": self.node, "name": name });
            if let Err(failure) = self.remote.ask("block-dirty-bitmap-remove", which) {
                warn(&format!("bitmap {name} stays: {failure}"));
            }
        }
    }

    /// Has the server fill `new`, by what `bitmap` has as dirty if there is one, and close it.
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
                backup["sync"] = json!("bitmap");
                backup["bitmap"] = json!(bitmap);
                backup["bitmap-mode"] = json!("never");
            }
        }
        let mut actions = vec![json!({ "type": "blockdev-backup", "data": backup })];
        if self.tracks {
            let add = json!({ "node": self.node, "name": next, "persistent": true });
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
