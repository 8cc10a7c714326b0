//! Servers of remote disks and caches of them: x-query-remotes, and X_REMOTE_LOST and X_REMOTE_BACK.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use catalog::OpenCache;
use control::events;
use serde_json::{Value, json};

use crate::inventory::nodes::Nodes;
use crate::remote_figures::CACHE_FIGURES;

events! {
    /// A server does not answer; it is asked again and again.
    pub LOST = "X_REMOTE_LOST" { "name": String, "error": String }

    /// It answers again.
    pub BACK = "X_REMOTE_BACK" { "name": String, "lost-seconds": u64 }
}

/// The servers that were reported lost, and since when each was.
#[derive(Debug, Default)]
pub struct Reported(RefCell<BTreeMap<String, Instant>>);

impl Reported {
    /// Emits events for servers that were lost or came back since the last call. One that did both meanwhile
    /// has none.
    pub fn tell(&self, nodes: &Nodes) {
        let mut before = self.0.borrow_mut();
        let servers = net::dial::servers();
        for server in &servers {
            match (before.get(&server.name), &server.lost) {
                (None, Some(lost)) => {
                    let data = json!({ "name": server.name, "error": lost.error });
                    nodes.events.emit(LOST.name, &data);
                }
                (Some(since), None) => {
                    let data = json!({ "name": server.name, "lost-seconds": since.elapsed().as_secs() });
                    nodes.events.emit(BACK.name, &data);
                }
                _ => {}
            }
        }
        let lost = servers.into_iter().filter_map(|server| Some((server.name, server.lost?.since)));
        *before = lost.collect();
    }
}

/// What [`query`] gives.
pub const JSON: &str = "\
Of remotes:
  servers                 list of objects: servers of remote disks
  caches                  list of objects: caches of remote files
Of each server:
  name                    text
  reachable               bool
  losses, failures        how often it was lost; how many attempts to reach it failed
  lost-seconds?, error?   since when, and why (text), it is lost
Of each cache:
  filename, of            text: the cache, and the remote file
  hits, misses            number of reads that needed nothing of the server, and that needed it
  served-bytes, fetched-bytes  bytes that were read, and that came from the server
  prefetched-bytes, prefetched-used-bytes
                          bytes fetched before a read asked for them; of these, read since
  cached-bytes            bytes of the remote file in the cache
  evictions, not-kept, failures
                          numbers of clusters evicted and not kept, and of failures of its file";

/// All servers of remote disks, and all caches of them, of this process.
pub fn query() -> Value {
    let servers: Vec<Value> = net::dial::servers().into_iter().map(|server| server_value(&server)).collect();
    let caches: Vec<Value> = catalog::caches().iter().map(cache_value).collect();
    json!({ "servers": servers, "caches": caches })
}

fn server_value(server: &net::dial::Server) -> Value {
    let mut value = json!({
        "name": server.name,
        "reachable": server.lost.is_none(),
        "losses": server.losses,
        "failures": server.failures,
    });
    if let Some(lost) = &server.lost {
        value["lost-seconds"] = json!(lost.since.elapsed().as_secs());
        value["error"] = json!(lost.error);
    }
    value
}

fn cache_value(cache: &OpenCache) -> Value {
    let figures =
        CACHE_FIGURES.iter().map(|figure| (figure.name.to_owned(), json!((figure.of)(&cache.figures))));
    let names = [("filename".to_owned(), json!(cache.path)), ("of".to_owned(), json!(cache.of))];
    names.into_iter().chain(figures).collect()
}
