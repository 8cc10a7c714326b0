//! Comparing bytes with what is legal, and saying what is wrong.

use std::fmt;

use super::Model;
use super::history::{FIRST, Frozen, Op, OpState, Reader, Sectors, Touch, Value, touches};
use crate::content::SECTOR_BYTES;
use crate::stamp::SectorContent;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Whether the bytes of a sector, or of a part of one, are zeroes.
fn is_zero(bytes: &[u8]) -> bool {
    const ZEROES: [u8; SECTOR] = [0; SECTOR];
    ZEROES.get(..bytes.len()) == Some(bytes)
}

/// Bytes that no client may see there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset on the disk of the first wrong byte range.
    pub offset: u64,
    /// Length of that range.
    pub len: u64,
    /// What the whole sector is.
    pub found: SectorContent,
    /// What would have been right.
    pub legal: Vec<String>,
    /// All that ever happened to the sector.
    pub history: Vec<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at byte {:#x}, {} bytes: found {}", self.offset, self.len, self.found)?;
        writeln!(f, "  allowed: {}", self.legal.join(", or "))?;
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mismatch {}

impl Model {
    pub(super) fn check(&self, offset: u64, bytes: &[u8], reader: &Reader) -> Result<(), Mismatch> {
        self.check_among(self.sectors(), offset, bytes, reader)
    }

    /// The same of a disk to which only `sectors` has happened.
    pub(super) fn check_among(
        &self,
        sectors: &Sectors,
        offset: u64,
        bytes: &[u8],
        reader: &Reader,
    ) -> Result<(), Mismatch> {
        let mut at = offset;
        let mut rest = bytes;
        let mut touched = sectors.range(offset / SECTOR_BYTES..).peekable();
        while !rest.is_empty() {
            let from = (at % SECTOR_BYTES) as usize;
            let (part, next) = rest.split_at(rest.len().min(SECTOR - from));
            let sector = at / SECTOR_BYTES;
            let touches = match touched.next_if(|(touched, _)| **touched == sector) {
                Some((_, touches)) => touches.as_slice(),
                None => &[],
            };
            // Most of what is read around the clients' ranges was never touched.
            if !(touches.is_empty() && is_zero(part)) {
                self.check_sector(sector, touches, from, part, reader)?;
            }
            at += part.len() as u64;
            rest = next;
        }
        Ok(())
    }

    /// Checks `part`, which starts `from` bytes into the sector, piece by piece: pieces end where any
    /// operation that reached only some of the sector began or ended.
    fn check_sector(
        &self,
        sector: u64,
        touches: &[Touch],
        from: usize,
        part: &[u8],
        reader: &Reader,
    ) -> Result<(), Mismatch> {
        let to = from + part.len();
        let mut cuts = vec![from, to];
        let edges = touches.iter().flat_map(|touch| [touch.from as usize, touch.to as usize]);
        cuts.extend(edges.filter(|&edge| from < edge && edge < to));
        cuts.sort_unstable();
        cuts.dedup();
        for piece in cuts.windows(2) {
            let (start, end) = (piece[0], piece[1]);
            let bytes = &part[start - from..end - from];
            if !self.piece_is_legal(sector, touches, (start, end), bytes, reader) {
                return Err(self.mismatch(sector, touches, (start, end), (from, part), reader));
            }
        }
        Ok(())
    }

    fn legal_ops(&self, touches: &[Touch], piece: (usize, usize), reader: &Reader) -> Vec<usize> {
        let covering = touches.iter().filter(|touch| touch.covers(piece.0 as u16, piece.1 as u16));
        let ops = std::iter::once(FIRST.op).chain(covering.map(|touch| touch.op));
        self.history.legal(ops, reader)
    }

    fn piece_is_legal(
        &self,
        sector: u64,
        touches: &[Touch],
        piece: (usize, usize),
        bytes: &[u8],
        reader: &Reader,
    ) -> bool {
        let legal = self.legal_ops(touches, piece, reader);
        legal.into_iter().any(|op| self.is_value(&self.history.op(op).value, sector, piece, bytes))
    }

    fn is_value(&self, value: &Value, sector: u64, piece: (usize, usize), bytes: &[u8]) -> bool {
        let zero = || is_zero(bytes);
        match value {
            Value::Zero => zero(),
            Value::Version(version) => self.stamp(*version, sector).bytes()[piece.0..piece.1] == *bytes,
            Value::Image(image) => match image.get(&sector) {
                Some(seen) => seen[piece.0..piece.1] == *bytes,
                None => zero(),
            },
            Value::Frozen(frozen) => self.was_legal(frozen, sector, piece, bytes),
            Value::Size(_) => false,
        }
    }

    fn was_legal(&self, frozen: &Frozen, sector: u64, piece: (usize, usize), bytes: &[u8]) -> bool {
        let touches = touches(&frozen.sectors, sector);
        let reader = Reader::Live { started: frozen.at, now: frozen.at };
        self.piece_is_legal(sector, touches, piece, bytes, &reader)
    }

    fn mismatch(
        &self,
        sector: u64,
        touches: &[Touch],
        piece: (usize, usize),
        (from, part): (usize, &[u8]),
        reader: &Reader,
    ) -> Mismatch {
        let mut whole = [0; SECTOR];
        whole[from..from + part.len()].copy_from_slice(part);
        let legal = self.legal_ops(touches, piece, reader);
        Mismatch {
            offset: sector * SECTOR_BYTES + piece.0 as u64,
            len: (piece.1 - piece.0) as u64,
            found: SectorContent::in_sector(&whole),
            legal: legal.iter().map(|&op| self.name_of(&self.history.op(op).value, sector)).collect(),
            history: touches.iter().map(|touch| self.story(touch, sector)).collect(),
        }
    }

    fn name_of(&self, value: &Value, sector: u64) -> String {
        match value {
            Value::Zero => "zeroes".into(),
            Value::Version(version) => format!("version {version}"),
            Value::Image(image) => match image.get(&sector) {
                Some(bytes) => SectorContent::in_sector(bytes).to_string(),
                None => "zeroes, as read after the restart".into(),
            },
            Value::Frozen(frozen) => format!("as in the snapshot taken at {}", frozen.at),
            Value::Size(size) => format!("size {size}"),
        }
    }

    fn story(&self, touch: &Touch, sector: u64) -> String {
        let Op { value, issued, ended, state, durable, .. } = self.history.op(touch.op);
        let name = self.name_of(value, sector);
        let ended = match (ended, state) {
            (Some(at), OpState::Uncertain) => format!("failed or was dropped, settled {at}"),
            (Some(at), OpState::Done | OpState::Running) => format!("ended {at}"),
            (None, _) => "in flight".into(),
        };
        let durable =
            durable.map_or_else(|| "never acknowledged as durable".into(), |at| format!("durable {at}"));
        format!("{name}, bytes {}..{}: issued {issued}, {ended}, {durable}", touch.from, touch.to)
    }
}
