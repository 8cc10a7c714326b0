//! Which format an image is in.
//!
//! The caller or the overlay's header says so; otherwise the first bytes decide, with one exception:
//! raw is never *guessed* for writing. A guest can write sector 0 of its raw disk, and could
//! otherwise make the next opener read it as qcow2, with a backing file of the guest's choice.

use std::fmt;

use thiserror::Error;

use crate::drivers;

/// Bytes from the start of a file that [`probe`] wants to see.
pub const PROBE_BYTES: usize = 512;

/// Formats that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// QEMU's copy-on-write format, versions 2 and 3.
    Qcow2,
    /// The disk's bytes as they are.
    Raw,
    /// The disk's bytes, encrypted.
    Luks,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Qcow2, Self::Raw, Self::Luks];

    /// QEMU's name of the format.
    pub fn name(self) -> &'static str {
        drivers::format(self).name
    }

    /// The format of that name, if it is one that is served.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the first bytes of a file look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// qcow2's magic, with any version from 2 on.
    Qcow2,
    /// A LUKS header's magic, of any version.
    Luks,
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

/// A format that cannot be decided on, or not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Raw would be a guess.
    #[error(
        "the format is not given and the file has no qcow2 header; raw is never guessed for writing: \
         if it is a raw disk, say so with -f raw, or with file=PATH,format=raw as DRIVE"
    )]
    RawGuessed,
    /// A known format that is not served.
    #[error(
        "the file looks like {found}, which is not supported: {INSTEAD} (format=raw takes its bytes as they are)"
    )]
    Unsupported {
        /// Its name.
        found: &'static str,
    },
    /// The caller says qcow2 and the file does not.
    #[error("the format is given as qcow2, but the file does not begin with a qcow2 header")]
    NotQcow2,
}

/// Formats that QEMU reads or writes and that are not served.
pub const UNSUPPORTED: [&str; 10] =
    ["bochs", "cloop", "dmg", "parallels", "qcow", "qed", "vdi", "vhdx", "vmdk", "vpc"];

/// What to do with an image of one of them.
pub const INSTEAD: &str = "qemu-img convert -O qcow2 makes a qcow2 image of it";

/// Magics of formats that others write: (offset, bytes, name). A dmg has its at the end.
const OTHERS: [(usize, &[u8], &str); 11] = [
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0, b"QED\0", "qed"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vpc"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"Bochs Virtual HD Image", "bochs"),
    (0, b"#!/bin/sh\n#V2.0 Format\n", "cloop"),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], "vdi"),
];

/// Looks at the first bytes of a file (fewer than [`PROBE_BYTES`] if it is shorter).
pub fn probe(start: &[u8]) -> Probed {
    if let Some(version) = start.strip_prefix(b"QFI\xfb") {
        return match version {
            [0, 0, 0, 0 | 1, ..] => Probed::Other("qcow (version 1)"),
            _ => Probed::Qcow2,
        };
    }
    if storage_luks::is_luks(start) {
        return Probed::Luks;
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
        (Some(Format::Raw), _, _) => Ok(Format::Raw),
        // Its header may be in another file, or its first copy damaged: who opens it looks.
        (Some(Format::Luks), _, _) => Ok(Format::Luks),
        (_, Probed::Qcow2, _) => Ok(Format::Qcow2),
        (Some(Format::Qcow2), _, _) => Err(FormatError::NotQcow2),
        (None, Probed::Luks, _) => Ok(Format::Luks),
        (None, Probed::Other(found), _) => Err(FormatError::Unsupported { found }),
        (None, Probed::Nothing, Access::Read) => Ok(Format::Raw),
        (None, Probed::Nothing, Access::Write) => Err(FormatError::RawGuessed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_magic() {
        let table: [(&[u8], Probed); 9] = [
            (b"QFI\xfb\0\0\0\x03", Probed::Qcow2),
            (b"QFI\xfb\0\0\0\x02", Probed::Qcow2),
            (b"QFI\xfb\0\0\0\x01", Probed::Other("qcow (version 1)")),
            (b"QFI\xfb", Probed::Qcow2),
            (b"QFI", Probed::Nothing),
            (b"", Probed::Nothing),
            (b"vhdxfile....", Probed::Other("vhdx")),
            (b"LUKS\xba\xbe\0\x01", Probed::Luks),
            (&[0; PROBE_BYTES], Probed::Nothing),
        ];
        for (start, found) in table {
            assert_eq!(probe(start), found, "{start:?}");
        }
        let mut vdi = [0; PROBE_BYTES];
        vdi[0x40..0x44].copy_from_slice(&0xbeda_107f_u32.to_le_bytes());
        assert_eq!(probe(&vdi), Probed::Other("vdi"));
    }

    #[test]
    fn raw_is_never_guessed_for_writing_and_always_believed_when_said() {
        assert_eq!(decide(None, Probed::Nothing, Access::Write), Err(FormatError::RawGuessed));
        assert_eq!(decide(None, Probed::Nothing, Access::Read), Ok(Format::Raw));
        for found in [Probed::Qcow2, Probed::Nothing, Probed::Luks] {
            for access in [Access::Read, Access::Write] {
                assert_eq!(decide(Some(Format::Raw), found, access), Ok(Format::Raw));
            }
        }
    }

    #[test]
    fn luks_is_known_by_its_header_and_looked_for_when_said() {
        for access in [Access::Read, Access::Write] {
            assert_eq!(decide(None, Probed::Luks, access), Ok(Format::Luks));
            assert_eq!(decide(Some(Format::Luks), Probed::Luks, access), Ok(Format::Luks));
            assert_eq!(decide(Some(Format::Luks), Probed::Nothing, access), Ok(Format::Luks));
            assert_eq!(decide(Some(Format::Qcow2), Probed::Luks, access), Err(FormatError::NotQcow2));
        }
    }

    #[test]
    fn qcow2_is_opened_as_qcow2_only_with_its_header() {
        assert_eq!(decide(None, Probed::Qcow2, Access::Write), Ok(Format::Qcow2));
        assert_eq!(decide(Some(Format::Qcow2), Probed::Qcow2, Access::Read), Ok(Format::Qcow2));
        assert_eq!(decide(Some(Format::Qcow2), Probed::Nothing, Access::Read), Err(FormatError::NotQcow2));
        let other = decide(None, Probed::Other("vmdk"), Access::Read);
        assert_eq!(other, Err(FormatError::Unsupported { found: "vmdk" }));
    }
}
