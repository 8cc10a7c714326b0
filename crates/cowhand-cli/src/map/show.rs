//! The map on paper: a table for people, JSON with qemu-img's fields for programs.

use std::io::{self, Write};

use tool::output::printable;

use super::extent::Extent;
use crate::output::OutputFormat;

/// Prints extents as they come, so that a map of any length takes no memory.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    format: OutputFormat,
    rows: u64,
}

impl<'a> Printer<'a> {
    /// Begins the map.
    pub fn begin(out: &'a mut dyn Write, format: OutputFormat) -> io::Result<Self> {
        match format {
            OutputFormat::Human => writeln!(out, "{:<16}{:<16}{:<16}File", "Offset", "Length", "Mapped to")?,
            OutputFormat::Json => write!(out, "[")?,
        }
        Ok(Self { out, format, rows: 0 })
    }

    /// One extent. People see only what is stored somewhere.
    pub fn row(&mut self, extent: &Extent) -> io::Result<()> {
        match self.format {
            OutputFormat::Human if extent.data && !extent.zero => self.human_row(extent)?,
            OutputFormat::Human => {}
            OutputFormat::Json => self.json_row(extent)?,
        }
        self.rows += 1;
        Ok(())
    }

    /// Ends the map.
    pub fn end(self) -> io::Result<()> {
        match self.format {
            OutputFormat::Human => Ok(()),
            OutputFormat::Json => writeln!(self.out, "]"),
        }
    }

    fn human_row(&mut self, extent: &Extent) -> io::Result<()> {
        let place = match extent.offset {
            Some(offset) => hex(offset),
            None if extent.compressed => "compressed".to_owned(),
            None => "elsewhere".to_owned(),
        };
        let (start, length) = (hex(extent.start), hex(extent.length));
        writeln!(
            self.out,
            "{start:<16}{length:<16}{place:<16}{}",
            printable(extent.file.as_deref().unwrap_or("-"))
        )
    }

    fn json_row(&mut self, extent: &Extent) -> io::Result<()> {
        let Extent { start, length, depth, present, zero, data, compressed, .. } = extent;
        if self.rows > 0 {
            writeln!(self.out, ",")?;
        }
        write!(
            self.out,
            "{{ \"start\": {start}, \"length\": {length}, \"depth\": {depth}, \"present\": {present}, \
             \"zero\": {zero}, \"data\": {data}, \"compressed\": {compressed}"
        )?;
        if let Some(offset) = extent.offset {
            write!(self.out, ", \"offset\": {offset}")?;
        }
        write!(self.out, "}}")
    }
}

/// What `Printer::json_row` prints.
pub const JSON: &str = "\
A list of extents in the order of the disk, of each:
  start                   offset on the disk
  length                  bytes
  depth                   number of the image in the chain, 0 is the top one
  present                 bool: an image of the chain has an entry for it
  zero                    bool: it reads as zeroes
  data                    bool: bytes are stored for it
  compressed              bool: they are stored compressed
  offset?                 where in the image's file they begin; absent if they are not there byte
                          for byte";

/// As C's `%#llx`: zero has no prefix.
fn hex(number: u64) -> String {
    match number {
        0 => "0".to_owned(),
        number => format!("{number:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> [Extent; 4] {
        let data = Extent {
            start: 0,
            length: 131072,
            depth: 0,
            present: true,
            zero: false,
            data: true,
            compressed: false,
            offset: Some(327680),
            file: Some("top.qcow2".into()),
        };
        let compressed =
            Extent { start: 131072, length: 65536, compressed: true, offset: None, ..data.clone() };
        let zero =
            Extent { start: 196608, length: 10, zero: true, data: false, offset: None, ..data.clone() };
        let nobody =
            Extent { start: 196618, length: 20, depth: 1, present: false, file: None, ..zero.clone() };
        [data, compressed, zero, nobody]
    }

    fn shown(format: OutputFormat, rows: &[Extent]) -> String {
        let mut text = Vec::new();
        let mut printer = Printer::begin(&mut text, format).unwrap();
        rows.iter().for_each(|row| printer.row(row).unwrap());
        printer.end().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn people_see_what_is_stored_and_where() {
        let expected = "\
Offset          Length          Mapped to       File
0               0x20000         0x50000         top.qcow2
0x20000         0x10000         compressed      top.qcow2
";
        assert_eq!(shown(OutputFormat::Human, &rows()), expected);
    }

    #[test]
    fn programs_see_every_byte_of_the_disk_with_qemu_imgs_fields() {
        let expected = r#"[{ "start": 0, "length": 131072, "depth": 0, "present": true, "zero": false, "data": true, "compressed": false, "offset": 327680},
{ "start": 131072, "length": 65536, "depth": 0, "present": true, "zero": false, "data": true, "compressed": true},
{ "start": 196608, "length": 10, "depth": 0, "present": true, "zero": true, "data": false, "compressed": false},
{ "start": 196618, "length": 20, "depth": 1, "present": false, "zero": true, "data": false, "compressed": false}]
"#;
        assert_eq!(shown(OutputFormat::Json, &rows()), expected);
        assert_eq!(shown(OutputFormat::Json, &[]), "[]\n");
    }
}
