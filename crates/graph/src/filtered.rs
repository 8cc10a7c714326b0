//! Disks that a filter is put over.

use std::ops::Range;
use std::sync::Arc;

use block::{Blame, Block, Error};

use crate::child::Child;
use crate::drivers::Below;

/// The disks below a filter, by role.
#[derive(Debug)]
pub(crate) struct Filtered {
    pub(crate) list: Vec<(&'static str, Arc<Child>)>,
    /// What the bitmap has as dirty that the filter asks for.
    pub(crate) marked: Option<Vec<Range<u64>>>,
    /// What the uppermost image of the first disk is called: it has its node's name.
    pub(crate) top_name: Option<String>,
}

impl Below for Filtered {
    fn get(&self, role: &str) -> Result<Arc<dyn Block>, Error> {
        let found = self.list.iter().find(|(name, _)| *name == role);
        let found = found.map(|(_, child)| Arc::clone(child) as Arc<dyn Block>);
        found.ok_or_else(|| Blame::new("a filter").invalid(format!("option {role} is missing")))
    }

    fn all(&self) -> Vec<Arc<dyn Block>> {
        self.list.iter().map(|(_, child)| Arc::clone(child) as Arc<dyn Block>).collect()
    }

    fn compresses(&self) -> bool {
        self.list.first().is_some_and(|(_, child)| {
            let layers = child.disk().layers();
            layers.compressing().is_some() || layers.first().is_some_and(|layer| layer.files.is_none())
        })
    }

    fn images_down_to(&self, name: &str) -> Option<u32> {
        let (_, child) = self.list.first()?;
        if self.top_name.as_deref() == Some(name) {
            return Some(1);
        }
        let layers = child.disk().layers();
        let images = layers.list.iter().filter(|layer| layer.files.is_some());
        let place = images.skip(1).position(|layer| layer.own_name().as_deref() == Some(name))?;
        u32::try_from(place + 2).ok()
    }

    fn marked(&self) -> Option<&[Range<u64>]> {
        self.marked.as_deref()
    }
}
