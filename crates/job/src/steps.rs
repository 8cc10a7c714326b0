//! The steps of a copy: taken one by one, or only counted.

use futures_util::{TryStream, stream};

use crate::copy::{Copy, Zeroes};
use crate::counters::Counters;
use crate::error::Error;
use crate::plan::{Planner, Shape, Step};

impl Copy<'_> {
    /// How many bytes the map calls data of what is copied: what [`crate::Progress::data`] comes to. Asks the map for all of the range, and
    /// reads nothing.
    ///
    /// # Errors
    /// When a block is too small for the range, when the map cannot be read, or when it is cancelled.
    pub async fn data_bytes(&self, counters: &Counters) -> Result<u64, Error> {
        self.check_sizes()?;
        let (mut planner, mut data) = (self.planner(self.pieces().bytes, counters), 0);
        while let Some(step) = planner.next().await? {
            data += if step.zero { 0 } else { step.len };
            if counters.is_cancelled() {
                return Err(Error::Cancelled);
            }
        }
        Ok(data)
    }

    pub(crate) fn steps<'s>(
        &'s self,
        piece_bytes: u64,
        counters: &'s Counters,
    ) -> impl TryStream<Ok = Step, Error = Error> + 's {
        stream::try_unfold(self.planner(piece_bytes, counters), move |mut planner| async move {
            let step = planner.next().await?;
            counters.add_done(std::mem::take(&mut planner.passed));
            Ok(step.map(|step| (step, planner)))
        })
    }

    fn planner<'s>(&'s self, piece_bytes: u64, counters: &'s Counters) -> Planner<'s> {
        let shape = Shape {
            scope: self.scope,
            piece_bytes,
            align_bytes: self.unit_bytes(),
            zeroes_are_data: self.options.zeroes == Zeroes::Write,
            salvage: self.options.salvage,
        };
        Planner::new(self.source, self.from.clone(), self.to, shape, counters)
    }
}
