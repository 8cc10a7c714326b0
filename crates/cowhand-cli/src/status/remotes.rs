//! Servers of remote disks and their caches in lines.

use std::io::{self, Write};

use graph::size::human_size;
use serde_json::Value;

use super::printable;
use crate::output::counted;

/// Writes them. An older server reports none.
pub fn write(out: &mut dyn Write, remotes: &Value) -> io::Result<()> {
    let list = |name: &str| remotes[name].as_array().map_or(&[][..], Vec::as_slice);
    for server in list("servers") {
        writeln!(out, "server {}: {}", name(server, "name"), reachable(server))?;
    }
    for cache in list("caches") {
        let number = |name: &str| cache[name].as_u64().unwrap_or(0);
        let (hits, misses) = (number("hits"), number("misses"));
        let (held, fetched) = (human_size(number("cached-bytes")), human_size(number("fetched-bytes")));
        let (path, of) = (name(cache, "filename"), name(cache, "of"));
        writeln!(out, "cache {path} of {of}: {hits} hits, {misses} misses, {held} held, {fetched} fetched")?;
    }
    Ok(())
}

fn name(value: &Value, member: &str) -> String {
    printable(value[member].as_str().unwrap_or_default())
}

fn reachable(server: &Value) -> String {
    let number = |name: &str| server[name].as_u64().unwrap_or(0);
    if server["reachable"] == false {
        return format!("lost for {} s: {}", number("lost-seconds"), name(server, "error"));
    }
    match number("losses") {
        0 => "reachable".to_owned(),
        1 => "reachable, was lost once".to_owned(),
        losses => format!("reachable, was lost {}", counted(losses, "time")),
    }
}
