//! What a comparison found, for people and for programs.

use std::io::{self, Write};

use serde::Serialize;

/// The first difference of two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Their sizes, where those must be the same.
    Size,
    /// What is allocated, from this byte on.
    Allocation(u64),
    /// Bytes of the sector at this offset.
    Content(u64),
}

/// The result for two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of both disks, in bytes.
    pub sizes: [u64; 2],
    /// `None`: the disks are the same.
    pub difference: Option<Difference>,
}

/// What [`Report`] prints.
pub const JSON: &str = "  identical               bool
  difference?             text: what differs first, size, allocation or content
  offset?                 where on the disks; absent if nothing or the size differs
  sizes                   list of two sizes";

/// The result for programs.
#[derive(Debug, Serialize)]
pub struct Report {
    identical: bool,
    /// What differs: size, allocation or content.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    sizes: [u64; 2],
}

/// Says that one disk is longer.
pub fn warn_of_sizes(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Warning: Image size mismatch!")
}

impl Outcome {
    /// For programs.
    pub fn report(&self) -> Report {
        let (difference, offset) = match self.difference {
            None => (None, None),
            Some(Difference::Size) => (Some("size"), None),
            Some(Difference::Allocation(offset)) => (Some("allocation"), Some(offset)),
            Some(Difference::Content(offset)) => (Some("content"), Some(offset)),
        };
        Report { identical: self.difference.is_none(), difference, offset, sizes: self.sizes }
    }

    /// For people, in the lines that scripts know from qemu-img.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.rest_was_looked_at() {
            warn_of_sizes(out)?;
        }
        match self.difference {
            None => writeln!(out, "Images are identical."),
            Some(Difference::Size) => writeln!(out, "Strict mode: Image size mismatch!"),
            Some(Difference::Allocation(offset)) => {
                writeln!(out, "Strict mode: Offset {offset} block status mismatch!")
            }
            Some(Difference::Content(offset)) => writeln!(out, "Content mismatch at offset {offset}!"),
        }
    }

    /// Whether the disks were the same up to the end of the shorter one, and there is more of the other.
    fn rest_was_looked_at(&self) -> bool {
        let [first, second] = self.sizes;
        let common = first.min(second);
        let same_so_far = match self.difference {
            None => true,
            Some(Difference::Content(offset)) => offset >= common,
            Some(Difference::Size | Difference::Allocation(_)) => false,
        };
        first != second && same_so_far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_warned_of_once_the_rest_of_the_longer_disk_is_looked_at() {
        let reported = |sizes, difference| {
            let mut out = Vec::new();
            Outcome { sizes, difference }.write_human(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(reported([1024, 1024], None), "Images are identical.\n");
        assert_eq!(reported([1024, 2048], None), "Warning: Image size mismatch!\nImages are identical.\n");
        assert_eq!(
            reported([2048, 1024], Some(Difference::Content(512))),
            "Content mismatch at offset 512!\n"
        );
        assert_eq!(
            reported([2048, 1024], Some(Difference::Content(1024))),
            "Warning: Image size mismatch!\nContent mismatch at offset 1024!\n"
        );
    }
}
