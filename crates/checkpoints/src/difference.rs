//! Which ranges of two disks may differ, from their maps alone.

use std::path::PathBuf;
use std::sync::Arc;

use block::Block;
use job::Above;

use crate::error::Error;

/// What a disk says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Data, in a layer that is not the other one's.
    Data,
    /// Zeroes, likewise.
    Zero,
    /// What the layers say that both are backed by.
    Shared,
    /// It is behind the end.
    Nothing,
}

/// What is said of a range by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// What each of the two says.
    pub says: [Says; 2],
}

/// A disk, and which of its layers are not the other one's.
struct Side {
    top: Arc<dyn Block>,
    own: Above,
}

/// The ranges in order.
pub struct Differences {
    sides: [Side; 2],
    /// Files of both chains, as they were when this began.
    files: [Vec<PathBuf>; 2],
    at: u64,
    end: u64,
    last: Option<Part>,
}

impl Says {
    /// In listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Zero => "zero",
            Self::Shared => "shared",
            Self::Nothing => "nothing",
        }
    }
}

impl Differences {
    /// Those of two images with all that is below them, from an offset on.
    pub fn of(one: Arc<dyn Block>, other: Arc<dyn Block>, from: u64) -> Self {
        let files = [files(&one), files(&other)];
        let [ours, others] = &files;
        let shared =
            ours.iter().rev().zip(others.iter().rev()).take_while(|(one, other)| one == other).count();
        let layers = |files: &Vec<PathBuf>| u32::try_from(files.len() - shared).unwrap_or(u32::MAX);
        let own = Above { layers: layers(ours), end: other.size() };
        let others = Above { layers: layers(others), end: one.size() };
        let end = one.size().max(other.size());
        let sides = [Side { top: one, own }, Side { top: other, own: others }];
        Self { sides, files, at: from, end, last: None }
    }

    /// The next range, neighbours that are alike as one: a map of any length takes no memory.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub async fn next(&mut self) -> Result<Option<Part>, block::Error> {
        while self.at < self.end {
            let part = self.look().await?;
            self.at += part.length;
            match &mut self.last {
                Some(last) if last.says == part.says => last.length += part.length,
                last => {
                    if let Some(ended) = last.replace(part).filter(Part::differs) {
                        return Ok(Some(ended));
                    }
                }
            }
        }
        Ok(self.last.take().filter(Part::differs))
    }

    /// Whether both still have the layers that they had: where they stand in the chain is what counts.
    fn are_of_one_chain(&self) -> bool {
        self.sides.iter().zip(&self.files).all(|(side, before)| files(&side.top) == *before)
    }

    async fn look(&self) -> Result<Part, block::Error> {
        let mut part = Part { start: self.at, length: self.end - self.at, says: [Says::Nothing; 2] };
        for (side, says) in self.sides.iter().zip(&mut part.says) {
            (*says, part.length) = side.look(part.start, part.length).await?;
        }
        Ok(part)
    }
}

impl Part {
    fn differs(&self) -> bool {
        self.says != [Says::Shared; 2]
    }
}

/// The ranges from an offset on, `max` at most, and where the next ones begin.
///
/// # Errors
/// When a map cannot be read, or the layers have changed meanwhile.
pub async fn differences(
    one: Arc<dyn Block>,
    other: Arc<dyn Block>,
    from: u64,
    max: usize,
) -> Result<(Vec<Part>, Option<u64>), Error> {
    let path = PathBuf::from(other.name());
    let mut differences = Differences::of(one, other, from);
    let (mut parts, mut next) = (Vec::new(), None);
    let failed = |error: block::Error| Error::image("read the map of", &path)(error);
    while let Some(part) = differences.next().await.map_err(failed)? {
        if parts.len() == max {
            next = Some(part.start);
            break;
        }
        parts.push(part);
    }
    match differences.are_of_one_chain() {
        true => Ok((parts, next)),
        false => Err(Error::Moved),
    }
}

impl Side {
    /// What the disk says at an offset, and for how many of `length` bytes.
    async fn look(&self, at: u64, length: u64) -> Result<(Says, u64), block::Error> {
        let size = self.top.size();
        if at >= size {
            return Ok((Says::Nothing, length));
        }
        let (scope, length) = self.own.at(at, length.min(size - at));
        let status = self.top.block_status(at, length).await?;
        let says = match scope.says(&status) {
            job::Says::Nothing => Says::Shared,
            job::Says::Zero => Says::Zero,
            job::Says::Data => Says::Data,
        };
        Ok((says, status.len.min(length)))
    }
}

/// The files of a chain, links resolved.
fn files(top: &Arc<dyn Block>) -> Vec<PathBuf> {
    let path = |name: &str| {
        let path = PathBuf::from(name);
        path.canonicalize().unwrap_or(path)
    };
    block::layers(Arc::clone(top)).map(|layer| path(layer.name())).collect()
}
