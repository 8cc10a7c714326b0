//! What a part of a disk or of a file can be, and how each kind is called and drawn everywhere.

/// What a part of the disk, or of the image's file, holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of the image itself.
    Data,
    /// Data of a backing file.
    Below,
    /// Compressed data of the image itself.
    Compressed,
    /// Zeroes that a table speaks of.
    Zeroes,
    /// No image says anything of it: it reads as zeroes.
    Nothing,
    /// Tables, refcounts, the header.
    Metadata,
    /// Clusters in use that the disk does not show: of snapshots, bitmaps, saved machines.
    Other,
    /// Clusters that are kept for what reads as zeroes.
    Reserved,
    /// Clusters that nothing uses, and that are counted as used.
    Leaked,
    /// Room between clusters in use.
    Free,
}

/// How a kind is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// In words.
    pub words: &'static str,
    /// In JSON, and the class in a drawing.
    pub name: &'static str,
    /// In a terminal that has Unicode.
    pub unicode: char,
    /// In one that has not.
    pub ascii: char,
    /// In a terminal with colours: a number of the 256.
    pub terminal: u8,
    /// On white.
    pub light: &'static str,
    /// On black.
    pub dark: &'static str,
}

impl Kind {
    /// What a disk is made of, in the order of legends.
    pub const OF_DISK: [Kind; 5] = [Kind::Data, Kind::Below, Kind::Compressed, Kind::Zeroes, Kind::Nothing];

    /// What the file of an image is made of.
    pub const OF_FILE: [Kind; 7] =
        [Kind::Data, Kind::Compressed, Kind::Metadata, Kind::Other, Kind::Reserved, Kind::Leaked, Kind::Free];

    /// Whether nothing is stored: the ground that the rest is drawn on.
    pub fn is_ground(self) -> bool {
        matches!(self, Kind::Nothing | Kind::Free)
    }

    /// How it is drawn.
    pub fn look(self) -> Look {
        let look = |words, name, (unicode, ascii), terminal, (light, dark)| Look {
            words,
            name,
            unicode,
            ascii,
            terminal,
            light,
            dark,
        };
        match self {
            Kind::Data => look("data", "data", ('█', '#'), 33, ("#2563c9", "#5c9dff")),
            Kind::Below => look("data of backing files", "below", ('▓', '='), 103, ("#7484a0", "#8a99b3")),
            Kind::Compressed => {
                look("compressed data", "compressed", ('▒', 'c'), 134, ("#8e4ec6", "#bf8cf0"))
            }
            Kind::Zeroes => look("zeroes", "zeroes", ('░', '0'), 107, ("#66853a", "#8fae57")),
            Kind::Nothing => look("nothing stored", "nothing", ('·', '.'), 245, ("#e4e8ec", "#2a3038")),
            Kind::Metadata => look("metadata", "metadata", ('▚', 'm'), 172, ("#b56f00", "#e6a83c")),
            Kind::Other => look("snapshots, bitmaps, other", "other", ('▓', 's'), 36, ("#17867c", "#3fc1b0")),
            Kind::Reserved => {
                look("room kept for zeroes", "reserved", ('░', '0'), 107, ("#66853a", "#8fae57"))
            }
            Kind::Leaked => look("leaked", "leaked", ('!', '!'), 160, ("#cf2f2f", "#ff6b6b")),
            Kind::Free => look("free in the file", "free", ('·', '.'), 245, ("#e4e8ec", "#2a3038")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG's luminance of `#rrggbb`.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (a, b) = (luminance(one), luminance(other));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Three to one is what WCAG asks of graphics: paper, and nothing stored, are what everything else lies on.
    #[test]
    fn every_kind_is_seen_on_what_it_lies_on_in_light_and_dark() {
        let (paper, nothing) = (("#ffffff", "#0f1318"), Kind::Nothing.look());
        for kind in Kind::OF_DISK.into_iter().chain(Kind::OF_FILE) {
            let look = kind.look();
            if matches!(kind, Kind::Nothing | Kind::Free) {
                continue;
            }
            for (colour, below) in [
                (look.light, paper.0),
                (look.light, nothing.light),
                (look.dark, paper.1),
                (look.dark, nothing.dark),
            ] {
                let contrast = contrast(colour, below);
                assert!(contrast >= 3.0, "{}: {colour} on {below} has {contrast:.2}", look.name);
            }
        }
    }
}
