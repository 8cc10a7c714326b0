//! A map in cells: how much of each kind every part of a disk or file holds, in memory that does not grow with either.

use serde::Serialize;

use super::kind::Kind;

/// Cells of a map. More than a terminal has room for, and as many as a drawing shows well.
pub const CELLS_MAX: u64 = 1024;

/// Kinds that a cell can count.
const KINDS: usize = 10;

/// Bytes of each kind, cell by cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// Bytes that the map is of.
    pub size: u64,
    /// Bytes of a cell; the last one may be shorter.
    pub cell_bytes: u64,
    /// The cells, in order.
    pub cells: Vec<Cell>,
}

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell([u64; KINDS]);

/// What JSON has of a map.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CellsOut {
    /// Bytes of a cell.
    cell_bytes: u64,
    /// What the numbers of a cell are bytes of.
    kinds: Vec<&'static str>,
    /// Bytes of each kind, cell by cell.
    cells: Vec<Vec<u64>>,
}

impl Cell {
    /// Bytes of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0.get(kind as usize).copied().unwrap_or(0)
    }

    /// More bytes of a kind.
    pub fn add(&mut self, kind: Kind, bytes: u64) {
        if let Some(count) = self.0.get_mut(kind as usize) {
            *count = count.saturating_add(bytes);
        }
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The kind that most of what is stored is, and the part of the cell that is stored, of 1. Zeroes count only where nothing else
    /// is: they never hide data. `None` where there is only ground.
    pub fn most(&self, kinds: &[Kind]) -> Option<(Kind, f64)> {
        let all = || kinds.iter().copied().filter(|kind| self.of(*kind) > 0);
        let stored = || all().filter(|kind| !kind.is_ground() && *kind != Kind::Zeroes);
        let most = stored().max_by_key(|kind| self.of(*kind));
        let (kind, bytes) = match most {
            Some(kind) => (kind, stored().map(|kind| self.of(kind)).sum()),
            None => all().find(|kind| *kind == Kind::Zeroes).map(|kind| (kind, self.of(kind)))?,
        };
        #[expect(clippy::cast_precision_loss, reason = "a part of a cell")]
        let part = bytes as f64 / self.total().max(1) as f64;
        Some((kind, part))
    }
}

impl Cells {
    /// A map of `size` bytes, of which `unit` bytes are never divided.
    pub fn new(size: u64, unit: u64) -> Self {
        let units = size.div_ceil(unit).max(1);
        let cell_bytes = units.div_ceil(CELLS_MAX).saturating_mul(unit);
        let cells = size.div_ceil(cell_bytes);
        Self { size, cell_bytes, cells: vec![Cell::default(); cells as usize] }
    }

    /// `bytes` at `offset` are of this kind. What lies outside is left out.
    pub fn add(&mut self, offset: u64, bytes: u64, kind: Kind) {
        let end = offset.saturating_add(bytes).min(self.size);
        let mut at = offset;
        while at < end {
            let index = at / self.cell_bytes;
            let next = (index + 1).saturating_mul(self.cell_bytes).min(end);
            if let Some(cell) = self.cells.get_mut(index as usize) {
                cell.add(kind, next - at);
            }
            at = next;
        }
    }

    /// Bytes that the cell `index` is of.
    pub fn bytes_of(&self, index: usize) -> u64 {
        let start = (index as u64).saturating_mul(self.cell_bytes);
        self.cell_bytes.min(self.size.saturating_sub(start))
    }

    /// All cells together.
    pub fn sum(&self) -> Cell {
        let mut sum = Cell::default();
        self.cells.iter().for_each(|cell| sum.merge(cell));
        sum
    }

    /// The same map in `count` cells at most.
    pub fn merged(&self, count: usize) -> Vec<Cell> {
        let count = count.clamp(1, self.cells.len().max(1));
        let mut merged = vec![Cell::default(); count.min(self.cells.len())];
        for (index, cell) in self.cells.iter().enumerate() {
            if let Some(into) = merged.get_mut(index * count / self.cells.len()) {
                into.merge(cell);
            }
        }
        merged
    }

    /// What JSON has of it.
    pub fn to_json(&self, kinds: &[Kind]) -> CellsOut {
        let numbers = |cell: &Cell| kinds.iter().map(|kind| cell.of(*kind)).collect();
        CellsOut {
            cell_bytes: self.cell_bytes,
            kinds: kinds.iter().map(|kind| kind.look().name).collect(),
            cells: self.cells.iter().map(numbers).collect(),
        }
    }
}

impl Cell {
    fn merge(&mut self, other: &Cell) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_any_size_has_so_many_cells_and_every_byte_is_in_one() {
        for (size, unit) in [(1, 512), (65536, 65536), (10 << 20, 65536), (64 << 40, 65536), (u64::MAX, 512)]
        {
            let mut cells = Cells::new(size, unit);
            assert!((1..=CELLS_MAX as usize).contains(&cells.cells.len()), "{size}");
            cells.add(0, u64::MAX, Kind::Data);
            assert_eq!(cells.sum().of(Kind::Data), size);
            assert_eq!((0..cells.cells.len()).map(|index| cells.bytes_of(index)).sum::<u64>(), size);
        }
    }

    #[test]
    fn what_spans_cells_is_shared_out_and_what_lies_outside_is_left_out() {
        let mut cells = Cells::new(CELLS_MAX * 100, 50);
        assert_eq!(cells.cell_bytes, 100);
        cells.add(150, 100, Kind::Zeroes);
        cells.add(CELLS_MAX * 100 - 10, 1000, Kind::Leaked);
        cells.add(u64::MAX - 5, 100, Kind::Data);
        assert_eq!((cells.cells[1].of(Kind::Zeroes), cells.cells[2].of(Kind::Zeroes)), (50, 50));
        assert_eq!((cells.sum().of(Kind::Leaked), cells.sum().of(Kind::Data)), (10, 0));
    }

    #[test]
    fn merging_loses_nothing() {
        let mut cells = Cells::new(1000, 1);
        cells.add(3, 500, Kind::Data);
        for count in [1, 7, 68, 999, 5000] {
            let merged = cells.merged(count);
            assert_eq!(merged.len(), count.min(1000));
            assert_eq!(merged.iter().map(|cell| cell.of(Kind::Data)).sum::<u64>(), 500);
        }
        assert!(Cells::new(0, 512).merged(10).is_empty());
    }

    #[test]
    fn neither_ground_nor_zeroes_hide_what_is_stored() {
        let mut cell = Cell::default();
        cell.add(Kind::Nothing, 990);
        assert_eq!(cell.most(&Kind::OF_DISK), None);
        let most = |cell: &Cell| {
            let (kind, part) = cell.most(&Kind::OF_DISK).unwrap();
            (kind, (part * 1000.0).round() as u32)
        };
        cell.add(Kind::Zeroes, 8);
        assert_eq!(most(&cell), (Kind::Zeroes, 8));
        cell.add(Kind::Data, 2);
        assert_eq!(most(&cell), (Kind::Data, 2), "zeroes neither");
    }
}
