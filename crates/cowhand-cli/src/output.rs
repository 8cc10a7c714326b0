//! The form of a tool's result: for people or for programs; and what is said beside it.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

/// What `--output` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people
    #[default]
    Human,
    /// JSON with qemu-img's fields
    Json,
}

/// Writes a value as qemu-img lays its JSON out: four spaces a level, a newline at the end.
pub fn write_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *out, PrettyFormatter::with_indent(b"    "));
    value.serialize(&mut serializer)?;
    writeln!(out)
}

/// Says a line on standard error. Where nobody can hear it any more (the terminal is gone, the pipe closed) nothing happens: `eprintln!`
/// would panic, in the middle of a repair or with writes that are not on the disk yet.
pub fn tell(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// `text` with what a terminal would obey shown, not sent: names of files and what images say may hold control
/// characters. Without what lets somebody in, which names may hold, too.
pub fn printable(text: &str) -> Cow<'_, str> {
    let text = secret::without_credentials(text);
    if !text.contains(char::is_control) {
        return text;
    }
    let show = |c: char| if c.is_control() { c.escape_default().collect() } else { vec![c] };
    Cow::Owned(text.chars().flat_map(show).collect())
}
