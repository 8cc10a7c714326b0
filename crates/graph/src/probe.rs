//! Which format an image is in.
//!
//! The caller or the overlay's header says so; otherwise the first bytes decide, with one exception:
//! raw is never *guessed* for writing. A guest can write sector 0 of its raw disk, and could
//! otherwise make the next opener read it as qcow2, with a backing file of the guest's choice.

use crate::drivers::{FormatDriver, format_drivers, required_header};
pub use crate::format::{Format, FormatError, INSTEAD};

/// Bytes from the start of a file that [`probe`] wants to see.
pub const PROBE_BYTES: usize = 512;

/// What the first bytes of a file look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// The header of a format that is served.
    Format(Format),
    /// The magic of a format that is not served; its name.
    Other(&'static str),
    /// No magic that is known.
    Nothing,
}

/// What the opener is going to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written.
    Read,
    /// Something may be written.
    Write,
}

/// Formats that QEMU reads or writes and that are not served.
pub const UNSUPPORTED: [&str; 5] = ["bochs", "cloop", "dmg", "parallels", "qed"];

/// The first bytes of all versions of qcow; the version follows.
pub const QCOW_MAGIC: [u8; 4] = *b"QFI\xfb";

/// Magics of formats that others write: (offset, bytes, name). A dmg has its at the end.
const OTHERS: [(usize, &[u8], &str); 5] = [
    (0, b"QED\0", "qed"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"Bochs Virtual HD Image", "bochs"),
    (0, b"#!/bin/sh\n#V2.0 Format\n", "cloop"),
];

/// Detects the format from the first bytes of a file (fewer than [`PROBE_BYTES`] if it is shorter).
pub fn probe(start: &[u8]) -> Probed {
    let has_its_header =
        |driver: &&&FormatDriver| driver.header.as_ref().is_some_and(|header| (header.begins)(start));
    if let Some(driver) = format_drivers().iter().find(has_its_header) {
        return Probed::Format(Format::called(driver.name));
    }
    if start.starts_with(&QCOW_MAGIC) {
        return Probed::Other("qcow (version 0)");
    }
    let other =
        OTHERS.iter().find(|(at, magic, _)| start.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    other.map_or(Probed::Nothing, |(_, _, name)| Probed::Other(name))
}

/// The format to open a file in, from what was asked for and what was found.
///
/// # Errors
/// When the file is not what was asked for, or its format would have to be guessed.
pub fn decide(asked: Option<Format>, found: Probed, access: Access) -> Result<Format, FormatError> {
    match (asked, found, access) {
        (Some(asked), Probed::Format(found), _) if asked == found => Ok(asked),
        (Some(asked), _, _) => match required_header(asked) {
            Some(header) => Err(FormatError::NotAsAsked { asked, header }),
            None => Ok(asked),
        },
        (None, Probed::Format(found), _) => Ok(found),
        (None, Probed::Other(found), _) => Err(FormatError::Unsupported { found }),
        (None, Probed::Nothing, Access::Read) => Ok(Format::Raw),
        (None, Probed::Nothing, Access::Write) => Err(FormatError::RawGuessed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{format_called, formats};

    const QCOW2: Probed = Probed::Format(Format::Qcow2);
    const LUKS: Probed = Probed::Format(Format::Luks);

    fn refused(asked: Format, header: &'static str) -> Result<Format, FormatError> {
        Err(FormatError::NotAsAsked { asked, header })
    }

    #[test]
    fn each_format_of_the_list_is_found_by_its_name_and_the_named_ones_are_theirs() {
        assert!(formats().all(|format| format_called(format.name()) == Some(format)));
        assert_eq!([Format::Qcow2, Format::Raw, Format::Luks].map(Format::name), ["qcow2", "raw", "luks"]);
    }

    #[test]
    fn formats_are_reported_by_their_magic() {
        let table: [(&[u8], Probed); 9] = [
            (b"QFI\xfb\0\0\0\x03", QCOW2),
            (b"QFI\xfb\0\0\0\x02", QCOW2),
            (b"QFI\xfb\0\0\0\x01", Probed::Format(Format::Qcow)),
            (b"QFI\xfb", QCOW2),
            (b"QFI", Probed::Nothing),
            (b"", Probed::Nothing),
            (b"QED\0....", Probed::Other("qed")),
            (b"LUKS\xba\xbe\0\x01", LUKS),
            (&[0; PROBE_BYTES], Probed::Nothing),
        ];
        for (start, found) in table {
            assert_eq!(probe(start), found, "{start:?}");
        }
        let mut vdi = [0; PROBE_BYTES];
        vdi[0x40..0x44].copy_from_slice(&0xbeda_107f_u32.to_le_bytes());
        assert_eq!(Some(probe(&vdi)), format_called("vdi").map(Probed::Format));
        assert_eq!(Some(probe(b"conectix")), format_called("vpc").map(Probed::Format));
        for start in [&b"KDMV"[..], b"COWD", b"# Disk DescriptorFile\nversion=1\n", b"\r\n# x\nversion=3\r\n"]
        {
            assert_eq!(probe(start), Probed::Format(Format::Vmdk), "{start:?}");
        }
        assert_eq!(probe(b"# Disk DescriptorFile\n"), Probed::Nothing);
        assert_eq!(Some(probe(b"vhdxfile")), format_called("vhdx").map(Probed::Format));
    }

    #[test]
    fn raw_is_never_guessed_for_writing_and_always_believed_when_said() {
        assert_eq!(decide(None, Probed::Nothing, Access::Write), Err(FormatError::RawGuessed));
        assert_eq!(decide(None, Probed::Nothing, Access::Read), Ok(Format::Raw));
        for found in [QCOW2, Probed::Nothing, LUKS] {
            for access in [Access::Read, Access::Write] {
                assert_eq!(decide(Some(Format::Raw), found, access), Ok(Format::Raw));
            }
        }
    }

    #[test]
    fn luks_is_known_by_its_header_and_looked_for_when_said() {
        for access in [Access::Read, Access::Write] {
            assert_eq!(decide(None, LUKS, access), Ok(Format::Luks));
            assert_eq!(decide(Some(Format::Luks), LUKS, access), Ok(Format::Luks));
            assert_eq!(decide(Some(Format::Luks), Probed::Nothing, access), Ok(Format::Luks));
            assert_eq!(decide(Some(Format::Qcow2), LUKS, access), refused(Format::Qcow2, "qcow2"));
        }
    }

    #[test]
    fn qcow2_is_opened_as_qcow2_only_with_its_header() {
        assert_eq!(decide(None, QCOW2, Access::Write), Ok(Format::Qcow2));
        assert_eq!(decide(Some(Format::Qcow2), QCOW2, Access::Read), Ok(Format::Qcow2));
        assert_eq!(
            decide(Some(Format::Qcow2), Probed::Nothing, Access::Read),
            refused(Format::Qcow2, "qcow2")
        );
        let other = decide(None, Probed::Other("qed"), Access::Read);
        assert_eq!(other, Err(FormatError::Unsupported { found: "qed" }));
    }
}
