//! After a crash the oracle continues with what was found.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::history::{History, Image, Op, Value};
use super::{DiscardedReads, Model};
use crate::content::SECTOR_BYTES;

impl Model {
    /// A model of the disk as it was found after a crash: `size` bytes, with what was read from
    /// [`Model::ranges`] (offset and bytes, whole sectors). Later versions differ from all earlier ones.
    pub fn restarted(&self, size: u64, found: &[(u64, Vec<u8>)]) -> Model {
        let mut image = Image::new();
        for (offset, bytes) in found {
            for (index, sector) in bytes.as_chunks::<512>().0.iter().enumerate() {
                if sector.iter().any(|&byte| byte != 0) {
                    image.insert(offset / SECTOR_BYTES + index as u64, Box::new(*sector));
                }
            }
        }
        let mut history = History::default();
        history.add(Op::settled(Value::Zero));
        let resize = history.add(Op::settled(Value::Size(size)));
        // Zeroes that were read are looked at again, too.
        let sectors = |(offset, bytes): &(u64, Vec<u8>)| {
            let first = offset / SECTOR_BYTES;
            first..first + bytes.len() as u64 / SECTOR_BYTES
        };
        let known: Vec<u64> = found.iter().flat_map(sectors).collect();
        let seen = history.add(Op::settled(Value::Image(Arc::new(image))));
        for sector in known {
            history.touch(seen, sector * SECTOR_BYTES, SECTOR_BYTES);
        }
        Model {
            disk: self.disk,
            discarded: self.discarded,
            history,
            sizes: vec![resize],
            version: self.version,
            acknowledgements: Vec::new(),
            snapshots: BTreeMap::new(),
        }
    }

    /// What this model says of discards.
    pub fn discarded_reads(&self) -> DiscardedReads {
        self.discarded
    }
}
