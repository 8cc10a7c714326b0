//! `offset` and `size`: a raw disk that is a part of its file; `protect-start`: one whose format was guessed.

use block::SECTOR_BYTES;

use super::error::OptionError;

/// Which part of its file a raw disk is; unless said otherwise, all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOptions {
    /// `offset`: the disk's first byte in the file. Any byte, as in QEMU.
    pub offset: u64,
    /// `size`: bytes of the disk, whole sectors; `None`: up to the file's end.
    pub size: Option<u64>,
    /// `protect-start`: the format was guessed, and what is written must not have another one guessed next time.
    pub protect_start: bool,
}

impl RawOptions {
    /// Whether the disk is a part of its file.
    pub fn is_part(&self) -> bool {
        self.offset > 0 || self.size.is_some()
    }
}

/// A part of a file that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The disk's first byte in the file.
    pub offset: u64,
    /// Bytes of the disk, whole sectors.
    pub size: u64,
    /// The size was given: the disk does not grow with its file.
    pub fixed: bool,
}

impl RawOptions {
    /// The part of a file of `file_bytes`. A file counts as whole sectors: what the last one lacks reads as zeroes.
    ///
    /// # Errors
    /// When it begins or ends past the file's end.
    pub fn window(&self, file_bytes: u64) -> Result<Window, OptionError> {
        let outside =
            || OptionError::Window { offset: self.offset, size: self.size.unwrap_or(0), file: file_bytes };
        let whole = file_bytes.checked_next_multiple_of(SECTOR_BYTES).ok_or_else(outside)?;
        let rest = whole.checked_sub(self.offset).ok_or_else(outside)?;
        match self.size {
            Some(size) if size > rest => Err(outside()),
            Some(size) => Ok(Window { offset: self.offset, size, fixed: true }),
            None => {
                let size = rest.checked_next_multiple_of(SECTOR_BYTES).ok_or_else(outside)?;
                Ok(Window { offset: self.offset, size, fixed: false })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as qemu-img 10.0 gives them for a file of 1048676 bytes.
    #[test]
    fn a_window_lies_inside_the_whole_sectors_of_its_file() {
        let size = |offset, size| {
            let found = RawOptions { offset, size, ..RawOptions::default() }.window(1_048_676);
            found.map(|window| window.size).map_err(|error| error.to_string())
        };
        assert_eq!(size(0, None), Ok(1_049_088));
        assert_eq!(size(100, None), Ok(1_049_088));
        assert_eq!(size(1_048_576, None), Ok(512));
        assert_eq!(size(1_048_676, None), Ok(512));
        assert_eq!(size(100, Some(1024)), Ok(1024));
        assert_eq!(size(0, Some(0)), Ok(0));
        assert_eq!(size(512, Some(1_048_576)), Ok(1_048_576));
        assert_eq!(
            size(1024, Some(1_048_576)).unwrap_err(),
            "options offset and size ask for 1024 + 1048576 bytes of a file of 1048676 bytes; allowed: at most its end"
        );
        for (offset, bytes) in
            [(2_000_000, None), (u64::MAX, None), (u64::MAX, Some(512)), (512, Some(u64::MAX))]
        {
            assert!(size(offset, bytes).is_err(), "{offset} {bytes:?}");
        }
        assert!(RawOptions::default().window(u64::MAX).is_err());
    }
}
