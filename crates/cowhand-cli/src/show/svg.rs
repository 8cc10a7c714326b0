//! The picture as a drawing that needs nothing else.

use std::fmt::Write;

use graph::size::human_size;

use super::facts;
use super::kind::Kind;
use super::lineage::{LineagePicture, Row};
use super::picture::{Layer, Picture};
use super::shapes::{Shape, WIDTH, bar, escape, map, rules, single_bar};

/// Pixels around everything.
const MARGIN: f64 = 24.0;
/// Pixels of a line of text.
const LINE: f64 = 18.0;
/// Characters of a line of facts, and of names.
const LINE_CHARS: usize = 105;
/// Layers that are drawn; a chain may have hundreds.
const LAYERS_MAX: usize = 24;
/// Entries of a legend in one line, and pixels of one.
const LEGEND_ACROSS: usize = 3;
const LEGEND_WIDTH: f64 = WIDTH / LEGEND_ACROSS as f64;

const STYLE: &str = "
text { font: 13px system-ui, sans-serif; }
.title { font-size: 20px; font-weight: 600; }
.heading { font-size: 15px; font-weight: 600; }
.small { font-size: 10.5px; }
";

/// Elements so far, and where the next ones go.
#[derive(Default)]
struct Sheet {
    elements: String,
    y: f64,
}

/// The drawing.
pub fn drawing(picture: &Picture) -> String {
    let mut sheet = Sheet::default();
    sheet.text("ink title", 0.0, 20.0, &shortened(&picture.filename));
    sheet.y += 30.0;
    sheet.line("soft", &facts::headline(picture));
    sheet.heading("What the guest sees");
    sheet.parts(&facts::of_disk(picture), picture.virtual_size);
    sheet.shape(&map(&picture.disk, &Kind::OF_DISK));
    if picture.layers.len() > 1 {
        sheet.heading("Who holds it");
        sheet.layers(&picture.layers, picture.virtual_size);
    }
    if let Some(image) = &picture.image {
        sheet.heading(&format!("The file, {}", human_size(image.file_length)));
        sheet.parts(&facts::of_file(image), image.file_length);
        sheet.shape(&map(&image.file, &Kind::OF_FILE));
        sheet.y += LINE;
        facts::of_image(image).iter().for_each(|(name, text)| sheet.fact(name, text));
    }
    sheet.document(&picture.filename)
}

/// Pixels of a step of a tree to the right; deeper ones are in one column.
const STEP: f64 = 18.0;
const STEPS_MAX: usize = 20;

/// The drawing of a lineage.
pub fn of_lineage(picture: &LineagePicture) -> String {
    let mut sheet = Sheet::default();
    sheet.text("ink title", 0.0, 20.0, &shortened(&picture.directory));
    sheet.y += 30.0;
    sheet.line("soft", &picture.headline());
    sheet.y += 8.0;
    for row in &picture.rows {
        let x = steps_of(row) * STEP;
        sheet.text("ink", x, 13.0, &shortened(&row.name));
        sheet.y += LINE;
        sheet.text("soft small", x, 10.0, &shortened(&row.facts()));
        sheet.y += LINE - 4.0;
        // All begin at one edge and have one scale: what one takes is seen beside the others.
        sheet.shape(&bar_of(row, picture.largest()));
    }
    picture.missing.iter().for_each(|missing| sheet.line("ink", &shortened(missing)));
    sheet.document(&picture.directory)
}

/// How many steps to the right a row of a tree stands.
pub fn steps_of(row: &Row) -> f64 {
    (row.branch.chars().count() / 3).min(STEPS_MAX) as f64
}

/// What a row takes, as a bar that is full at `whole`.
pub fn bar_of(row: &Row, whole: u64) -> Shape {
    single_bar(row.kind, (row.own_bytes, whole), &row.facts())
}

impl Sheet {
    fn text(&mut self, class: &str, x: f64, below: f64, text: &str) {
        let (y, text) = (self.y + below, escape(text));
        let _ = writeln!(self.elements, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
    }

    fn line(&mut self, class: &str, text: &str) {
        self.text(class, 0.0, 13.0, text);
        self.y += LINE;
    }

    fn heading(&mut self, text: &str) {
        self.y += 16.0;
        let y = self.y;
        let _ = writeln!(
            self.elements,
            "<line class=\"line\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
        self.text("ink heading", 0.0, 26.0, text);
        self.y += 38.0;
    }

    fn shape(&mut self, shape: &Shape) {
        let _ =
            write!(self.elements, "<g transform=\"translate(0 {:.1})\">\n{}</g>\n", self.y, shape.elements);
        self.y += shape.height + 8.0;
    }

    fn document(&self, title: &str) -> String {
        let (width, height) = (WIDTH + 2.0 * MARGIN, self.y + 2.0 * MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\">\n\
             <title>{}</title>\n<style>{STYLE}{}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
             <g transform=\"translate({MARGIN} {MARGIN})\">\n{}</g>\n</svg>\n",
            escape(title),
            rules(),
            self.elements
        )
    }

    /// A bar, and a legend with numbers.
    fn parts(&mut self, parts: &[(Kind, u64)], whole: u64) {
        self.shape(&bar(parts, whole));
        for line in parts.chunks(LEGEND_ACROSS) {
            for (column, (kind, bytes)) in line.iter().enumerate() {
                let (x, y, class) = (column as f64 * LEGEND_WIDTH, self.y + 3.0, kind.look().name);
                let _ = writeln!(
                    self.elements,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"11\" height=\"11\" rx=\"2\"/>"
                );
                let numbers = format!("{}, {}", human_size(*bytes), facts::percent(*bytes, whole));
                self.text("ink", x + 17.0, 13.0, &format!("{}: {numbers}", kind.look().words));
            }
            self.y += LINE;
        }
        self.y += 8.0;
    }

    fn layers(&mut self, layers: &[Layer], whole: u64) {
        for (depth, layer) in layers.iter().enumerate().take(LAYERS_MAX) {
            self.line("ink", &format!("{depth}  {}", shortened(&layer.filename)));
            let (held, about) = (layer.holds(), facts::of_layer(layer));
            let holds = format!("holds {}, {}", human_size(held), facts::percent(held, whole));
            self.line("soft small", &format!("{holds} of the disk ({about})"));
            self.shape(&bar(&parts_of(depth, layer), whole));
        }
        let rest = layers.get(LAYERS_MAX..).unwrap_or_default();
        if !rest.is_empty() {
            let bytes = rest.iter().map(Layer::holds).fold(0, u64::saturating_add);
            self.line("soft", &format!("and {} more below, which hold {}", rest.len(), human_size(bytes)));
        }
    }

    fn fact(&mut self, name: &str, text: &str) {
        self.text("soft", 0.0, 13.0, name);
        let mut rest = text;
        while !rest.is_empty() {
            let (now, later) = split_line(rest);
            self.text("ink", 110.0, 13.0, now);
            self.y += LINE;
            rest = later;
        }
    }
}

/// What an image of the chain holds, as parts of a bar.
pub fn parts_of(depth: usize, layer: &Layer) -> [(Kind, u64); 3] {
    let data = if depth == 0 { Kind::Data } else { Kind::Below };
    [(data, layer.data), (Kind::Compressed, layer.compressed), (Kind::Zeroes, layer.zeroes)]
}

/// As many words as a line takes, and the rest.
fn split_line(text: &str) -> (&str, &str) {
    let Some((end, _)) = text.char_indices().nth(LINE_CHARS) else { return (text, "") };
    let (line, rest) = text.split_at(end);
    match line.rfind(' ') {
        Some(space) if !rest.starts_with(' ') => {
            let (line, rest) = text.split_at(space);
            (line, rest.trim_start())
        }
        _ => (line, rest.trim_start()),
    }
}

fn shortened(name: &str) -> String {
    match name.chars().count() > LINE_CHARS * 3 / 4 {
        true => name.chars().take(LINE_CHARS * 3 / 4 - 3).chain("...".chars()).collect(),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_between_words_and_loses_none() {
        let text = "word ".repeat(60);
        let (mut rest, mut words) = (text.trim(), 0);
        while !rest.is_empty() {
            let (line, later) = split_line(rest);
            assert!(line.chars().count() <= LINE_CHARS && !line.ends_with(' '));
            words += line.split(' ').count();
            rest = later;
        }
        assert_eq!(words, 60);
        let long = "ä".repeat(150);
        let (line, rest) = split_line(&long);
        assert_eq!((line.chars().count(), rest.chars().count()), (LINE_CHARS, 45));
    }
}
