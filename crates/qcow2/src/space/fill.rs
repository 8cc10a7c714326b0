//! Filling the reserve, and giving it back.

use crate::Error;
use crate::header_update::FileHeader;
use crate::medium::Medium;
use crate::space::Space;

impl Space {
    /// Fills the reserve up, in memory. Only with clusters that are known to be free: a medium that has
    /// none left is no reason to fail, because a request that needs one will fail.
    pub(crate) async fn fill_reserve(&self, medium: &Medium, header: &FileHeader) -> Result<(), Error> {
        let mut missing = self.reserve.missing();
        if missing > 0 || self.reserve.holds_any() {
            header.mark_reserve(medium).await?;
        }
        while missing > 0 {
            let Some(run) = self.allocator.lock().take(missing) else { return Ok(()) };
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
