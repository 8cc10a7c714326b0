//! Shapes that the drawing and the page share: a bar in parts, a map of cells, and their colours in light and dark.

use std::fmt::Write;

use graph::size::human_size;

use super::cells::{Cell, Cells};
use super::facts::percent;
use super::kind::Kind;

/// A piece of a drawing, from its own corner on.
#[derive(Debug)]
pub struct Shape {
    /// Its elements.
    pub elements: String,
    /// Pixels from top to bottom.
    pub height: f64,
}

/// Pixels of a drawing from side to side, without its margins.
pub const WIDTH: f64 = 912.0;

/// Pixels of a bar from top to bottom.
pub const BAR_HEIGHT: f64 = 22.0;
/// Cells of a map in one line.
const ACROSS: usize = 64;
/// Pixels before a map, for the places where its lines begin.
const MARGIN: f64 = 64.0;
/// Pixels between cells, and between parts of a bar.
const GAP: f64 = 2.0;
/// Lines of a map from one place to the next.
const LINES_PER_PLACE: usize = 4;
/// How strong the colour of a cell is of which next to nothing is stored; a full one has all of it.
const FAINTEST: f64 = 0.3;
/// A cell of which less than this is stored is not called full.
const FULL: f64 = 0.999;

/// Text, paper and lines in both themes: class, property, on white, on black.
const GROUND: [(&str, &str, &str, &str); 4] = [
    ("paper", "fill", "#ffffff", "#0f1318"),
    ("ink", "fill", "#1c2228", "#e6eaee"),
    ("soft", "fill", "#5a6672", "#9aa6b2"),
    ("line", "stroke", "#d5dbe1", "#323a43"),
];

/// The rules that give everything its colours.
pub fn rules() -> String {
    let kinds = Kind::OF_DISK.into_iter().chain(Kind::OF_FILE).map(|kind| {
        let look = kind.look();
        (look.name, "fill", look.light, look.dark)
    });
    let all: Vec<_> = GROUND.into_iter().chain(kinds).collect();
    let mut rules = String::new();
    for (class, property, light, _) in &all {
        let _ = writeln!(rules, ".{class} {{ {property}: {light}; }}");
    }
    rules += "@media (prefers-color-scheme: dark) {\n";
    for (class, property, _, dark) in &all {
        let _ = writeln!(rules, "  .{class} {{ {property}: {dark}; }}");
    }
    rules + "}\n"
}

/// A bar of `whole` bytes in parts; what is left is ground.
pub fn bar(parts: &[(Kind, u64)], whole: u64) -> Shape {
    let mut elements = rect("nothing", 0.0, 0.0, (WIDTH, BAR_HEIGHT), 1.0, "");
    let mut x = 0.0;
    for (kind, bytes) in parts.iter().filter(|(kind, bytes)| *bytes > 0 && !kind.is_ground()) {
        let width = (part(*bytes, whole) * WIDTH).min(WIDTH - x);
        let title = format!("{}: {}, {}", kind.look().words, human_size(*bytes), percent(*bytes, whole));
        // What is there is seen, and next to nothing takes no gap.
        elements += &rect(kind.look().name, x, 0.0, ((width - GAP).max(1.0), BAR_HEIGHT), 1.0, &title);
        x = (x + width.max(1.0 + GAP)).min(WIDTH - 1.0);
    }
    Shape { elements, height: BAR_HEIGHT }
}

/// A bar of one part, full at `whole`.
pub fn single_bar(kind: Kind, (bytes, whole): (u64, u64), title: &str) -> Shape {
    let mut elements = rect("nothing", 0.0, 0.0, (WIDTH, BAR_HEIGHT), 1.0, "");
    if bytes > 0 {
        // A file that takes little is visible, too.
        let width = (part(bytes, whole) * WIDTH).max(1.0);
        elements += &rect(kind.look().name, 0.0, 0.0, (width, BAR_HEIGHT), 1.0, title);
    }
    Shape { elements, height: BAR_HEIGHT }
}

/// A map: each cell in the colour of what most of it is, the stronger the more of it is stored.
pub fn map(cells: &Cells, kinds: &[Kind]) -> Shape {
    let pitch = (WIDTH - MARGIN) / ACROSS as f64;
    let mut elements = String::new();
    for (index, cell) in cells.cells.iter().enumerate() {
        let (line, column) = (index / ACROSS, index % ACROSS);
        let (x, y) = (MARGIN + column as f64 * pitch, line as f64 * pitch);
        let start = index as u64 * cells.cell_bytes;
        if column == 0 && line % LINES_PER_PLACE == 0 {
            let (x, y) = (MARGIN - 8.0, y + pitch - 3.0);
            let place = human_size(start);
            let _ = writeln!(
                elements,
                "<text class=\"soft small\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{place}</text>"
            );
        }
        let title = format!(
            "{} to {}: {}",
            human_size(start),
            human_size(start + cells.bytes_of(index)),
            contents(cell, kinds)
        );
        let (class, opacity) = match cell.most(kinds) {
            None => ("nothing", 1.0),
            Some((kind, part)) if part > FULL => (kind.look().name, 1.0),
            Some((kind, part)) => (kind.look().name, FAINTEST + (1.0 - FAINTEST) * part),
        };
        elements += &rect(class, x, y, (pitch - GAP, pitch - GAP), opacity, &title);
    }
    let lines = cells.cells.len().div_ceil(ACROSS);
    Shape { elements, height: lines as f64 * pitch }
}

/// The parts of a cell in words, the largest first.
fn contents(cell: &Cell, kinds: &[Kind]) -> String {
    let mut parts: Vec<_> = kinds.iter().map(|kind| (cell.of(*kind), kind.look().words)).collect();
    parts.retain(|(bytes, _)| *bytes > 0);
    parts.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let words = parts.iter().map(|(bytes, words)| format!("{words} {}", percent(*bytes, cell.total())));
    words.collect::<Vec<_>>().join(", ")
}

fn rect(class: &str, x: f64, y: f64, (width, height): (f64, f64), opacity: f64, title: &str) -> String {
    let faint = if opacity < 1.0 { format!(" opacity=\"{opacity:.2}\"") } else { String::new() };
    let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
    format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"1.5\"{faint}>{title}</rect>\n"
    )
}

/// What part of `whole` some bytes are, of 1.
fn part(bytes: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "pixels")]
    let part = bytes as f64 / whole.max(1) as f64;
    part.min(1.0)
}

/// Text as it may stand in a document: names of files may hold what a browser would obey.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in tool::output::printable(text).chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}
