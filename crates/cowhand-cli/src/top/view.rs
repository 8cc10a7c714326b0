//! What of the disks is on the screen: which rows and columns, in which order.

use std::cmp::Reverse;
use std::ops::Range;

use ratatui::crossterm::event::KeyCode;

use super::rates::Rates;

/// Cells at most: a name or a limit that is longer is cut in the middle.
const CELL_CHARS_MAX: usize = 32;

/// In which order the disks stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those that do most are first.
    #[default]
    Load,
    /// As the server reports them.
    Served,
}

/// The scroll position and the layout of the table.
#[derive(Debug, Default)]
pub struct View {
    /// The order of the rows.
    pub order: Order,
    first_row: usize,
    first_column: usize,
    /// The widest that each column was: columns do not jump with every number.
    widths: [usize; Rates::COLUMNS.len()],
}

/// What fits on the screen.
#[derive(Debug)]
pub struct Visible {
    /// The columns, by their numbers: that of the names is always there.
    pub columns: Vec<usize>,
    /// How wide each of them is.
    pub widths: Vec<usize>,
    /// The rows, in order.
    pub rows: Range<usize>,
}

impl View {
    /// Does what a key says; `rows` are on the screen, of `disks`. `false` if it means nothing.
    pub fn press(&mut self, key: KeyCode, rows: usize, disks: usize) -> bool {
        let page = rows.max(1);
        let last = disks.saturating_sub(page);
        match key {
            KeyCode::Up | KeyCode::Char('k') => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first_row += 1,
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.first_row += page,
            KeyCode::Home | KeyCode::Char('g') => self.first_row = 0,
            KeyCode::End | KeyCode::Char('G') => self.first_row = last,
            KeyCode::Left => self.first_column = self.first_column.saturating_sub(1),
            KeyCode::Right => self.first_column += 1,
            KeyCode::Char('s') => {
                self.order = if self.order == Order::Load { Order::Served } else { Order::Load };
                self.first_row = 0;
            }
            _ => return false,
        }
        self.first_row = self.first_row.min(last);
        true
    }

    /// The disks in order.
    pub fn sorted<'a>(&self, rates: &'a [Rates]) -> Vec<&'a Rates> {
        let mut sorted: Vec<&Rates> = rates.iter().collect();
        if self.order == Order::Load {
            // Disks of equal load stay where they are.
            sorted.sort_by_key(|disk| Reverse(disk.load()));
        }
        sorted
    }

    /// What fits on a screen with room for so many characters and rows, one blank between columns.
    pub fn visible(
        &mut self,
        cells: &[[String; Rates::COLUMNS.len()]],
        chars: usize,
        rows: usize,
    ) -> Visible {
        self.first_row = self.first_row.min(cells.len().saturating_sub(rows));
        for (column, width) in self.widths.iter_mut().enumerate() {
            let widest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            *width = widest.min(CELL_CHARS_MAX).max(Rates::COLUMNS[column].len()).max(*width);
        }
        // Scrolling ends where the last column is visible.
        let others = Rates::COLUMNS.len() - 1;
        let fits = |first: usize| -> Vec<usize> {
            let mut left = chars.saturating_sub(self.widths[0]);
            let has_room = |&column: &usize| {
                let has_room = left > self.widths[column];
                left = left.saturating_sub(self.widths[column] + 1);
                has_room
            };
            (first + 1..=others).take_while(has_room).collect()
        };
        let first_that_ends =
            (0..others).find(|&first| fits(first).last() == Some(&others)).unwrap_or(others - 1);
        self.first_column = self.first_column.min(first_that_ends);
        let columns: Vec<usize> = std::iter::once(0).chain(fits(self.first_column)).collect();
        let widths = columns.iter().map(|&column| self.widths[column]).collect();
        Visible { columns, widths, rows: self.first_row..(self.first_row + rows).min(cells.len()) }
    }
}

/// A text of at most so many characters, with its beginning and its end.
pub fn cut(text: &str) -> String {
    let count = text.chars().count();
    if count <= CELL_CHARS_MAX {
        return text.to_owned();
    }
    let end = CELL_CHARS_MAX / 2;
    let head = text.chars().take(CELL_CHARS_MAX - end - 1);
    head.chain(['…']).chain(text.chars().skip(count - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrolling_ends_where_the_disks_end() {
        let mut view = View::default();
        let mut press = |key| {
            assert!(view.press(key, 20, 50));
            view.first_row
        };
        let keys = [
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::PageDown,
            KeyCode::PageDown,
            KeyCode::Down,
            KeyCode::PageUp,
            KeyCode::Home,
            KeyCode::End,
        ];
        assert_eq!(keys.map(&mut press), [0, 1, 21, 30, 30, 10, 0, 30]);
        assert!(!view.press(KeyCode::Char('x'), 20, 50));
    }

    #[test]
    fn a_long_name_keeps_the_end_that_tells_it_from_others() {
        let names = [1, 2].map(|number| cut(&format!("a-name-that-goes-on-and-on-and-on-number-{number}")));
        assert!(
            names[0] != names[1] && names.iter().all(|name| name.chars().count() == CELL_CHARS_MAX),
            "{names:?}"
        );
        assert_eq!(cut("disk"), "disk");
    }
}
