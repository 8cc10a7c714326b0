//! What the platform knows of the disk, on a disk of its own: which image it is backed by, and whether a copy is whole.

use std::hash::{DefaultHasher, Hash, Hasher};

use sim::World;
use storage::{Hints, IoBytes, Storage};

/// Its bytes: a sector is never torn.
pub const BYTES: usize = 512;

/// The note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The number of the image that guests write to.
    pub root: usize,
    /// A job was begun.
    pub is_begun: bool,
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
    /// The one of a world, on disk `disk`.
    pub fn of(world: &World, disk: usize) -> Self {
        let mut bytes = [0; BYTES];
        world.current(disk).read(0, &mut bytes);
        let hash = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        Self { root: usize::from(bytes[0]), is_begun: bytes[2] == 1, whole: (bytes[1] == 1).then_some(hash) }
    }

    /// Writes it, durably.
    pub async fn write(self, world: &World, disk: usize) -> Result<(), String> {
        let file = world.open(disk);
        let mut bytes = vec![0; BYTES];
        bytes[0] = u8::try_from(self.root).expect("few images");
        bytes[1] = u8::from(self.whole.is_some());
        bytes[2] = u8::from(self.is_begun);
        bytes[8..16].copy_from_slice(&self.whole.unwrap_or(0).to_le_bytes());
        let written = file.write(0, IoBytes::copy_from(&bytes).into(), Hints::NONE).await;
        written.map_err(|error| error.to_string())?;
        file.flush().await.map_err(|error| error.to_string())
    }
}
