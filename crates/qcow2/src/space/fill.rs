//! Filling the reserve, and giving it back.

use crate::Error;
use crate::allocator::Run;
use crate::header_update::FileHeader;
use crate::medium::Medium;
use crate::space::Space;

impl Space {
    /// Fills the reserve up, in memory. Only with clusters that are known to be free and that a refcount block counts: the block would
    /// stay in the file when the reserve is given back. A medium that has none left is no reason to fail, because a request that needs one will fail.
    pub(crate) async fn fill_reserve(&self, medium: &Medium, header: &FileHeader) -> Result<(), Error> {
        let mut missing = self.reserve.missing();
        if missing > 0 || self.reserve.holds_any() {
            header.mark_reserve(medium).await?;
        }
        while missing > 0 {
            let Some(run) = self.take_counted(medium, missing)? else { return Ok(()) };
            let claimed = match self.claim(medium, run).await {
                Ok(claimed) => claimed,
                // One that has no room for a refcount block, likewise.
                Err(error) if error.is_no_space() => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some(run) = claimed else { continue };
            self.make_room(medium, run.end()).await;
            missing -= run.len;
            if !self.reserve.put(run) {
                self.give_back(medium, run).await;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Free clusters that were in use before, otherwise fresh ones that a refcount block counts.
    fn take_counted(&self, medium: &Medium, wanted: u64) -> Result<Option<Run>, Error> {
        let entries = medium.geometry.refcount_block_entries();
        let from = self.allocator.lock().frontier();
        let (first, last) = (self.refcounts.block_of(from), self.refcounts.block_of(from + wanted));
        let mut counted_end = from;
        for index in first..=last {
            if self.refcounts.table_entry(index)?.is_none() {
                break;
            }
            counted_end = (index + 1) * entries;
        }
        Ok(self.allocator.lock().take_before(wanted, counted_end))
    }

    /// Gives the reserve back: `for_good` when the image is closed, otherwise because a request needs more
    /// clusters in a row than are left. Says whether there was anything.
    pub(crate) async fn empty_reserve(&self, medium: &Medium, for_good: bool) -> bool {
        let runs = self.reserve.take_all(for_good);
        for run in &runs {
            self.give_back(medium, *run).await;
        }
        !runs.is_empty()
    }
}
