//! What a command writes: JSON for programs, lines fit for a terminal.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{self, Write};

use control::text::shown_json;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Writes a value as qemu-img lays its JSON out: four spaces a level, a newline at the end.
pub fn write_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let formatter = Pretty(PrettyFormatter::with_indent(b"    "));
    let mut serializer = Serializer::with_formatter(&mut *out, formatter);
    value.serialize(&mut serializer)?;
    writeln!(out)
}

/// As qemu-img lays JSON out; what a terminal would obey in strings is escaped.
struct Pretty(PrettyFormatter<'static>);

type Written = io::Result<()>;

#[rustfmt::skip]
impl Formatter for Pretty {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> Written {
        writer.write_all(shown_json(fragment).as_bytes())
    }

    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.begin_array(writer) }
    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.end_array(writer) }
    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> Written { self.0.begin_array_value(writer, first) }
    fn end_array_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.end_array_value(writer) }
    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.begin_object(writer) }
    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.end_object(writer) }
    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> Written { self.0.begin_object_key(writer, first) }
    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.begin_object_value(writer) }
    fn end_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Written { self.0.end_object_value(writer) }
}

/// Prints a line on standard error. Where that fails (the terminal is gone, the pipe closed) nothing happens:
/// `eprintln!` would panic, in the middle of a repair or with writes that are not durable yet.
pub fn tell(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// `text` for a terminal: control characters, which names of files and texts of images may contain, are shown
/// as escapes, and credentials in names are removed.
pub fn printable(text: &str) -> Cow<'_, str> {
    match memory::secret::without_credentials(text) {
        Cow::Borrowed(text) => control::text::shown(text),
        Cow::Owned(text) => Cow::Owned(control::text::shown(&text).into_owned()),
    }
}
