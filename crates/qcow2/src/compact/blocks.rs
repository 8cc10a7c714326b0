//! Refcount blocks that count nothing but themselves.

use qcow2_layout::RefcountTableEntry;

use super::layout::Layout;
use super::{CompactError, Compaction};
use crate::check::change::{Change, lower};
use crate::check::pass::Pass;
use crate::table_io::write_bytes;

impl Compaction<'_> {
    /// Drops the blocks behind the end that count nothing but their own place; false if there are none. Those before it count the
    /// free clusters that others move to. What only dropped blocks keep in use goes in the next round.
    ///
    /// Refcount table ->| lower refcounts of the places that other blocks count ->|
    pub(super) async fn drop_needless_blocks(
        &mut self,
        pass: &mut Pass<'_>,
        layout: &Layout,
    ) -> Result<bool, CompactError> {
        let entries = pass.geometry.refcount_block_entries();
        let mut needless = Vec::new();
        for &(index, at) in pass.comparison.blocks.iter().filter(|(index, _)| index * entries >= layout.end) {
            let own = pass.cluster_of(at.0);
            let mut counted = pass.claims.next(index * entries);
            if counted == Some(own) {
                counted = pass.claims.next(own + 1);
            }
            if counted.is_none_or(|cluster| cluster >= (index + 1) * entries) {
                needless.push((index, own));
            }
        }
        if needless.is_empty() {
            return Ok(false);
        }
        let mut change = Change::default();
        for &(index, own) in &needless {
            let at = pass.header.refcount_table_offset.0 + index * 8;
            let none = RefcountTableEntry { block: None }.encode().to_be_bytes();
            write_bytes(pass.file, at, &none).await.map_err(pass.io("write the refcount table", at))?;
            change.lose(own, 1);
        }
        pass.flush().await?;
        pass.comparison.blocks.retain(|(index, _)| !needless.iter().any(|(other, _)| index == other));
        lower(pass, &change).await?;
        Ok(true)
    }
}
