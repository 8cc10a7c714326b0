//! The form of a tool's result: for people or for programs.

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
