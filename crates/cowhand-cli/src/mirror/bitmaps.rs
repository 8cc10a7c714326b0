//! The bitmaps of a disk that moves: its copy gets them while the mirror runs, on another machine too.
//!
//! A bitmap of the copy is made first and records from then on; then what the disk's has as dirty is set in it. A change before the copy has its bitmap
//! is in the disk's when that is read; a later one is written to the copy, too, and recorded there. So none is missed, and the mirror
//! need not wait.

use serde_json::{Value, json};
use tool::failure::{Failure, warn};

use crate::copying::watch::Watch;
use crate::remote::Remote;

/// Bitmaps that are on their way.
pub struct Bitmaps {
    /// The server that has the copy.
    far: Remote,
    /// The copy's node there.
    node: String,
    /// The copy has bitmaps of an earlier command, which was killed.
    goes_on: bool,
    /// Names of those that were made here.
    made: Vec<String>,
}

/// Where the copy is open.
pub enum Place<'a> {
    /// In a node of the far server.
    Node(&'a str),
    /// Behind an NBD export of it.
    Export(&'a str),
}

impl Bitmaps {
    /// Looks whether the copy can have the bitmaps of `disk`. `goes_on`: it may have some already.
    ///
    /// # Errors
    /// When the far server has no such copy, or it has a bitmap of one of the names.
    pub fn find(
        remote: &mut Remote,
        disk: &str,
        mut far: Remote,
        place: &Place<'_>,
        goes_on: bool,
    ) -> Result<Self, Failure> {
        let node = place.node(&mut far)?;
        let mut bitmaps = Self { far, node, goes_on, made: Vec::new() };
        let there = bitmaps.there()?;
        let both = of_node(remote, disk)?
            .into_iter()
            .find(|bitmap| there.iter().any(|name| bitmap["name"] == **name));
        match both {
            Some(both) if !goes_on => Err(Failure::new(format!(
                "the copy has a bitmap {} already: remove it there, or remove the disk's",
                both["name"]
            ))),
            _ => Ok(bitmaps),
        }
    }

    /// Names of those that the copy has.
    fn there(&mut self) -> Result<Vec<String>, Failure> {
        let bitmaps = of_node(&mut self.far, &self.node)?;
        Ok(bitmaps.iter().filter_map(|bitmap| bitmap["name"].as_str().map(str::to_owned)).collect())
    }

    /// Adds to the copy the bitmaps that `disk` has now; returns how many. The copy is in step with the disk,
    /// and a mirror keeps it so. Inconsistent bitmaps are left out, with a warning.
    ///
    /// # Errors
    /// When one of the servers refuses or does not answer, or a signal ends it: then the copy may have some, which [`Bitmaps::take_back`] removes.
    pub fn give(&mut self, remote: &mut Remote, disk: &str, watch: &Watch) -> Result<usize, Failure> {
        let there = if self.goes_on { self.there()? } else { Vec::new() };
        let (whole, inconsistent): (Vec<Value>, Vec<Value>) =
            of_node(remote, disk)?.into_iter().partition(|bitmap| bitmap["inconsistent"] != true);
        for bitmap in inconsistent {
            warn(&format!("bitmap {} missed changes and is left behind", bitmap["name"]));
        }
        for bitmap in &whole {
            let name = bitmap["name"].as_str().unwrap_or_default();
            if !there.iter().any(|has| has == name) {
                let add = json!({ "node": self.node, "name": name, "granularity": bitmap["granularity"],
                    "persistent": bitmap["persistent"], "disabled": bitmap["recording"] != true });
                self.far.ask("block-dirty-bitmap-add", add)?;
                self.made.push(name.to_owned());
            }
            let mut next = Some(0);
            while let Some(offset) = next {
                watch.check()?;
                let from = json!({ "node": disk, "name": name, "offset": offset });
                let answer = remote.ask("x-block-dirty-bitmap-ranges", from)?;
                let mark = json!({ "node": self.node, "name": name, "ranges": answer["ranges"] });
                self.far.ask("x-block-dirty-bitmap-mark", mark)?;
                next = answer["next"].as_u64();
            }
        }
        Ok(whole.len())
    }

    /// Removes what was made: the disk does not move.
    pub fn take_back(mut self) {
        for name in std::mem::take(&mut self.made) {
            let which = json!({ "node": self.node, "name": name });
            if let Err(failure) = self.far.ask("block-dirty-bitmap-remove", which) {
                warn(&format!("bitmap {name} of the copy stays: {failure}"));
            }
        }
    }
}

impl Place<'_> {
    fn node(&self, far: &mut Remote) -> Result<String, Failure> {
        let export = match self {
            Self::Node(name) => return Ok((*name).to_owned()),
            Self::Export(name) => name,
        };
        let exports = far.ask("query-block-exports", json!({}))?;
        let exports = exports.as_array().into_iter().flatten();
        let is_it = |found: &&Value| found["type"] == "nbd" && found["name"] == *export;
        let found = exports.clone().find(is_it).and_then(|found| found["node-name"].as_str());
        found.map(str::to_owned).ok_or_else(|| {
            Failure::new(format!("the server that --bitmaps-to names has no export {export:?}"))
                .with_hint("it is the control socket of the server that TARGET leads to")
        })
    }
}

/// A node's bitmaps, as a server reports them.
fn of_node(remote: &mut Remote, node: &str) -> Result<Vec<Value>, Failure> {
    let nodes = remote.ask("query-named-block-nodes", json!({}))?;
    let found = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == node);
    let found = found.ok_or_else(|| Failure::new(format!("the server has no disk {node:?}")))?;
    Ok(found["dirty-bitmaps"].as_array().cloned().unwrap_or_default())
}
