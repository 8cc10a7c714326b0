//! One change of an image: copied, counted, led to, let go. The only place that says in which order.

use std::future::ready;

use futures_util::stream::TryStreamExt;

use super::{CompactError, Compaction, require_sound};
use crate::check::CheckError;
use crate::check::change::{Change, Copy, copying, lower, raise};
use crate::check::pass::Pass;

impl Compaction<'_> {
    /// Makes a change; `lead` writes what leads to the new places. The steps are those of docs/internals/write-order.md, `compact`:
    ///
    /// copies, higher refcounts ->| what leads there ->| lower refcounts ->|
    ///
    /// A failure before the first barrier leaves bytes in free clusters, one after it clusters that are counted too often.
    pub(super) async fn make<'p>(
        &mut self,
        pass: &mut Pass<'p>,
        change: &Change,
        lead: impl AsyncFnOnce(&mut Pass<'p>) -> Result<(), CheckError>,
    ) -> Result<(), CompactError> {
        self.copy_all(pass, &change.copies).await?;
        raise(pass, change).await?;
        pass.forget_extent();
        lead(pass).await?;
        // What could not be read may still lead to an old place.
        require_sound(pass)?;
        pass.flush().await?;
        lower(pass, change).await?;
        self.report.moved_bytes += change.copies.iter().map(|copy| copy.len).sum::<u64>();
        Ok(())
    }

    /// Copies everything; not durable yet.
    pub(super) async fn copy_all(&mut self, pass: &Pass<'_>, copies: &[Copy]) -> Result<(), CompactError> {
        let (plain, meter) = (self.plain, &mut self.meter);
        let copied = copying(pass, plain, copies).map_err(CompactError::from);
        copied.try_for_each(|bytes| ready(meter.add(bytes))).await
    }
}
