//! The way through two disks at once: what of them must be read, by their maps.

use block::{Block, BlockStatus};
use tool::failure::Failure;

use super::{PIECE_BYTES, code};

/// A part that one disk at least has data in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub offset: u64,
    /// Bytes, [`PIECE_BYTES`] at most.
    pub len: usize,
    /// Which disks have data there. The others have zeroes, or have ended.
    pub data: [bool; 2],
}

/// What comes next on the way.
#[derive(Debug)]
pub enum Step {
    /// A part to be read.
    Piece(Piece),
    /// The disks differ in what is allocated at this offset, and must not.
    Allocation(u64),
    /// The map of one disk cannot be read at this offset.
    Failed(u64, Failure),
}

/// The walk. What both disks call zeroes is left out.
#[derive(Debug)]
pub struct Walk<'a> {
    sides: [Side<'a>; 2],
    strict: bool,
    at: u64,
    /// The end of the longer disk, or the place where the walk ended early.
    end: u64,
}

/// One disk, and what its map says from `Walk::at` on.
#[derive(Debug)]
struct Side<'a> {
    disk: &'a dyn Block,
    size: u64,
    /// The latest answer of the map, and where it ends.
    known: Option<(Kind, u64)>,
}

/// What must agree in strict mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    data: bool,
    zero: bool,
    present: bool,
    /// It has a place of its own in a file: not so zeroes without space, and compressed data.
    placed: bool,
}

impl Kind {
    /// What lies behind the end of a disk.
    const ENDED: Self = Self { data: false, zero: true, present: false, placed: false };

    fn of(status: &BlockStatus) -> Self {
        let BlockStatus { data, zero, present, offset, .. } = *status;
        Self { data, zero, present, placed: offset.is_some() }
    }
}

impl<'a> Walk<'a> {
    /// From the start. `strict`: what is allocated must agree.
    pub fn new(disks: [&'a dyn Block; 2], strict: bool) -> Self {
        let sides = disks.map(|disk| Side { disk, size: disk.size(), known: None });
        let end = disks[0].size().max(disks[1].size());
        Self { sides, strict, at: 0, end }
    }

    /// The next step; `None` at the end. Neighbouring parts of one kind make one piece: a file in fragments is read in
    /// large requests all the same.
    pub async fn next(&mut self) -> Option<Step> {
        let mut piece: Option<Piece> = None;
        while self.at < self.end {
            let (data, end) = match self.look().await {
                Ok(found) => found,
                // What was found before it comes first; the next look has the same result.
                Err(_) if piece.is_some() => break,
                Err(step) => {
                    self.end = self.at;
                    return Some(step);
                }
            };
            let (start, so_far) = match &piece {
                Some(piece) if piece.data != data => break,
                Some(piece) => (piece.offset, self.at - piece.offset),
                None => (self.at, 0),
            };
            if data == [false; 2] {
                self.at = end;
                continue;
            }
            self.at = end.min(start + PIECE_BYTES);
            debug_assert!(self.at - start > so_far);
            // Below PIECE_BYTES.
            piece = Some(Piece { offset: start, len: (self.at - start) as usize, data });
            if self.at - start == PIECE_BYTES {
                break;
            }
        }
        piece.map(Step::Piece)
    }

    /// Which disks have data at `at`, and up to where that holds for both.
    async fn look(&mut self) -> Result<([bool; 2], u64), Step> {
        let [first, second] = &mut self.sides;
        let (first, first_end) = first.look(self.at, self.end).await?;
        let (second, second_end) = second.look(self.at, self.end).await?;
        if self.strict && first != second {
            return Err(Step::Allocation(self.at));
        }
        Ok(([!first.zero, !second.zero], first_end.min(second_end)))
    }
}

impl Side<'_> {
    async fn look(&mut self, at: u64, end: u64) -> Result<(Kind, u64), Step> {
        if let Some(known) = self.known.filter(|(_, known_to)| at < *known_to) {
            return Ok(known);
        }
        let known = if at >= self.size { (Kind::ENDED, end) } else { self.ask(at).await? };
        self.known = Some(known);
        Ok(known)
    }

    async fn ask(&self, at: u64) -> Result<(Kind, u64), Step> {
        let status = self.disk.block_status(at, self.size - at).await.map_err(|error| {
            let what = format!("cannot read the map of {} at offset {at}", self.disk.name());
            Step::Failed(at, Failure::because(what, &error).with_code(code::CANNOT_MAP))
        })?;
        Ok((Kind::of(&status), at + status.len))
    }
}
