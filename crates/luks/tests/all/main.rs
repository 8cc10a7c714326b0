//! Key slots, volumes and new files on a medium that loses what was not flushed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod key_slots;
mod layout;
mod new_file;
mod parts_of_sectors;
mod volumes;

use luks::{Around, Calculation, Work};

/// A program whose tasks run in the simulation, and which calculates at once.
#[derive(Debug)]
struct Machine;

impl Around for Machine {
    fn spawn(&self, work: Work) {
        sim::spawn(work);
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(async move { calculation() })
    }
}
