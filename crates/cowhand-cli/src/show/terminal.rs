//! The picture in a terminal.

use std::io::{self, Write};

use graph::size::human_size;
use tool::output::printable;

use super::cells::Cells;
use super::facts;
use super::kind::Kind;
use super::picture::{Layer, Picture};

/// What is drawn on.
#[derive(Clone, Copy, Debug)]
pub struct Canvas {
    /// Characters of a line.
    pub columns: usize,
    /// Without Unicode.
    pub ascii: bool,
    /// With colours.
    pub colours: bool,
}

/// Lines of a map.
const MAP_LINES_MAX: usize = 8;
/// Layers that are drawn; a chain may have hundreds.
const LAYERS_MAX: usize = 12;
/// Less of a cell than this is drawn as a little.
const LITTLE: f64 = 1.0 / 8.0;
/// Characters before a map: where its line begins on the disk.
const MARGIN: usize = 11;
/// Characters of a name in a list of facts.
const NAME: usize = 13;
/// Eighths of a character, for bars.
const EIGHTHS: [char; 8] = ['█', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Draws it.
pub fn draw(out: &mut dyn Write, canvas: &Canvas, picture: &Picture) -> io::Result<()> {
    writeln!(out, "{}", canvas.cut(&printable(&picture.filename)))?;
    writeln!(out, "{}", facts::headline(picture))?;
    canvas.title(out, "What the guest sees")?;
    canvas.parts(out, &facts::of_disk(picture), picture.virtual_size)?;
    canvas.map(out, &picture.disk, &Kind::OF_DISK)?;
    if picture.layers.len() > 1 {
        canvas.title(out, "Who holds it")?;
        draw_layers(out, canvas, picture)?;
    }
    let Some(image) = &picture.image else { return Ok(()) };
    canvas.title(out, &format!("The file, {}", human_size(image.file_length)))?;
    canvas.parts(out, &facts::of_file(image), image.file_length)?;
    canvas.map(out, &image.file, &Kind::OF_FILE)?;
    writeln!(out)?;
    facts::of_image(image).iter().try_for_each(|(name, text)| canvas.fact(out, name, text))
}

fn draw_layers(out: &mut dyn Write, canvas: &Canvas, picture: &Picture) -> io::Result<()> {
    for (depth, layer) in picture.layers.iter().enumerate().take(LAYERS_MAX) {
        canvas.layer(out, depth, layer, picture.virtual_size)?;
    }
    match picture.layers.get(LAYERS_MAX..) {
        None | Some([]) => Ok(()),
        Some(rest) => {
            let bytes = rest.iter().map(Layer::holds).fold(0, u64::saturating_add);
            writeln!(out, "  and {} more below, which hold {}", rest.len(), human_size(bytes))
        }
    }
}

impl Canvas {
    fn title(&self, out: &mut dyn Write, text: &str) -> io::Result<()> {
        match self.colours {
            true => writeln!(out, "\n\x1b[1m{text}\x1b[0m"),
            false => writeln!(out, "\n{text}"),
        }
    }

    /// A line for each kind: sign, name, bytes, part, bar.
    fn parts(&self, out: &mut dyn Write, parts: &[(Kind, u64)], whole: u64) -> io::Result<()> {
        let widest = parts.iter().map(|(kind, _)| kind.look().words.len()).max().unwrap_or(0);
        for (kind, bytes) in parts {
            let look = kind.look();
            let (sign, size) = (self.paint(*kind, &self.sign(*kind).to_string()), human_size(*bytes));
            let line = format!("{:<widest$}  {size:>9}  {:>7}", look.words, facts::percent(*bytes, whole));
            let room = self.columns.saturating_sub(4 + line.chars().count() + 2);
            let bar = self.paint(*kind, &self.bar(*kind, *bytes, whole, room));
            writeln!(out, "{}", format!("  {sign} {line}  {bar}").trim_end())?;
        }
        Ok(())
    }

    /// The cells, line by line, each beginning with its place.
    fn map(&self, out: &mut dyn Write, cells: &Cells, kinds: &[Kind]) -> io::Result<()> {
        let across = self.columns.saturating_sub(MARGIN + 1).max(1);
        let count = cells.cells.len().min(across * MAP_LINES_MAX);
        let merged = cells.merged(count);
        writeln!(out)?;
        for (line, row) in merged.chunks(across).enumerate() {
            let first = line * across * cells.cells.len() / count.max(1);
            let place = human_size((first as u64).saturating_mul(cells.cell_bytes));
            write!(out, "{place:>width$} ", width = MARGIN - 1)?;
            self.map_line(out, row.iter().map(|cell| cell.most(kinds)))?;
        }
        if merged.iter().filter_map(|cell| cell.most(kinds)).any(|(_, part)| part < LITTLE) {
            writeln!(out, "{:MARGIN$}{} less than an eighth of it is stored", "", self.little())?;
        }
        Ok(())
    }

    fn map_line(
        &self,
        out: &mut dyn Write,
        cells: impl Iterator<Item = Option<(Kind, f64)>>,
    ) -> io::Result<()> {
        let (mut run, mut of) = (String::new(), None);
        for cell in cells {
            let (kind, sign) = match cell {
                None => (Kind::Free, self.sign(Kind::Free)),
                Some((kind, part)) if part < LITTLE => (kind, self.little()),
                Some((kind, _)) => (kind, self.sign(kind)),
            };
            if let Some(before) = of.replace(kind)
                && before != kind
            {
                write!(out, "{}", self.paint(before, &std::mem::take(&mut run)))?;
            }
            run.push(sign);
        }
        writeln!(out, "{}", of.map_or_else(String::new, |kind| self.paint(kind, &run)))
    }

    fn layer(&self, out: &mut dyn Write, depth: usize, layer: &Layer, whole: u64) -> io::Result<()> {
        let indent = "     ";
        writeln!(out, "{}", self.cut(&format!("{depth:>3}  {}", printable(&layer.filename))))?;
        writeln!(out, "{}", self.cut(&format!("{indent}{}", facts::of_layer(layer))))?;
        let held = layer.holds();
        let size = format!("{:>9}  {:>7}", human_size(held), facts::percent(held, whole));
        let room = self.columns.saturating_sub(indent.len() + size.len() + 2);
        let kind = if depth == 0 { Kind::Data } else { Kind::Below };
        let bar = self.paint(kind, &self.bar(kind, held, whole, room));
        writeln!(out, "{}", format!("{indent}{size}  {bar}").trim_end())
    }

    /// A name and what is said, in as many lines as it takes.
    fn fact(&self, out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
        let room = self.columns.saturating_sub(NAME + 2).max(1);
        let mut line = String::new();
        let mut name = Some(name);
        for word in text.split(' ') {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
                writeln!(out, "  {:<NAME$}{}", name.take().unwrap_or(""), std::mem::take(&mut line))?;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
        writeln!(out, "  {:<NAME$}{line}", name.unwrap_or(""))
    }

    fn sign(&self, kind: Kind) -> char {
        if self.ascii { kind.look().ascii } else { kind.look().unicode }
    }

    fn little(&self) -> char {
        if self.ascii { '+' } else { '▪' }
    }

    /// A bar of `bytes`, where `room` characters are `whole`.
    pub fn bar(&self, kind: Kind, bytes: u64, whole: u64, room: usize) -> String {
        if kind.is_ground() {
            return String::new();
        }
        let eighths = u128::from(bytes) * room as u128 * 8 / u128::from(whole.max(1));
        // What is there is seen.
        let eighths = (eighths as usize).max(usize::from(bytes > 0)).min(room * 8);
        if self.ascii {
            return "#".repeat(eighths.div_ceil(8));
        }
        let rest = EIGHTHS.get(eighths % 8).filter(|_| !eighths.is_multiple_of(8));
        "█".repeat(eighths / 8) + &rest.map_or_else(String::new, char::to_string)
    }

    /// In the colour of a kind.
    pub fn paint(&self, kind: Kind, text: &str) -> String {
        match self.colours && !text.is_empty() {
            true => format!("\x1b[38;5;{}m{text}\x1b[0m", kind.look().terminal),
            false => text.to_owned(),
        }
    }

    /// No longer than a line.
    pub fn cut(&self, text: &str) -> String {
        self.cut_to(text, self.columns)
    }

    /// No longer than `columns`.
    pub fn cut_to(&self, text: &str, columns: usize) -> String {
        match text.chars().count() > columns {
            true => text.chars().take(columns.saturating_sub(3)).chain("...".chars()).collect(),
            false => text.to_owned(),
        }
    }
}
