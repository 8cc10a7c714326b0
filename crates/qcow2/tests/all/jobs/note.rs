//! What the platform knows of the disk, on a disk of its own: which image it is backed by, and whether a copy is whole.

use std::hash::{DefaultHasher, Hash, Hasher};

use sim::World;
use storage::{Hints, IoBytes, Storage};

/// The number of the disk with the note, behind the images.
pub const NOTE: usize = super::images::FILES.len();
/// Its bytes: a sector is never torn.
pub const BYTES: usize = 512;
/// How often a note is written that fails.
const TRIES: usize = 3;

/// The note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The number of the image that guests write to.
    pub stands_on: usize,
    /// The copy is whole, and its bytes have this hash.
    pub whole: Option<u64>,
}

/// The hash of what a disk holds.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Note {
    /// The one of a world.
    pub fn of(world: &World) -> Self {
        let mut bytes = [0; BYTES];
        world.current(NOTE).read(0, &mut bytes);
        let hash = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        Self { stands_on: usize::from(bytes[0]), whole: (bytes[1] == 1).then_some(hash) }
    }

    /// Writes it, durably; tells how often that failed. It is tried again: a platform that cannot note what it does must not go on.
    pub async fn write(self, world: &World) -> Result<usize, String> {
        let file = world.open(NOTE);
        let mut bytes = vec![0; BYTES];
        bytes[0] = u8::try_from(self.stands_on).expect("few images");
        bytes[1] = u8::from(self.whole.is_some());
        bytes[8..16].copy_from_slice(&self.whole.unwrap_or(0).to_le_bytes());
        let mut failed = String::new();
        for failures in 0..TRIES {
            let written = file.write(0, IoBytes::copy_from(&bytes).into(), Hints::NONE).await;
            match if written.is_ok() { file.flush().await } else { written } {
                Ok(()) => return Ok(failures),
                Err(error) => failed = error.to_string(),
            }
        }
        Err(failed)
    }
}
