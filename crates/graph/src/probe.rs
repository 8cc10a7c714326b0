//! Which format an image is in.
//!
//! The caller or the overlay's header says so; otherwise the first bytes decide, with one exception:
//! raw is never *guessed* for writing. A guest can write sector 0 of its raw disk, and could
//! otherwise make the next opener read it as qcow2, with a backing file of the guest's choice.

use std::fmt;

use thiserror::Error;

use crate::drivers::{self, FORMATS};

/// Bytes from the start of a file that [`probe`] wants to see.
pub const PROBE_BYTES: usize = 512;

/// A format that is served: a driver's place in the list ([`FORMATS`]). Those that other code treats in a way of their own have names here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Format(u8);

#[expect(
    non_upper_case_globals,
    reason = "they are what variants of an enum would be, and are matched like those"
)]
impl Format {
    /// QEMU's copy-on-write format, versions 2 and 3.
    pub const Qcow2: Self = Self::called("qcow2");
    /// The disk's bytes as they are.
    pub const Raw: Self = Self::called("raw");
    /// The disk's bytes, encrypted.
    pub const Luks: Self = Self::called("luks");
    /// QEMU's first copy-on-write format, version 1.
    pub const Qcow: Self = Self::called("qcow");
    /// VMware's format, whose disk may be in several files.
    pub const Vmdk: Self = Self::called("vmdk");
}

impl Format {
    /// All of them.
    pub const ALL: [Self; FORMATS.len()] = {
        let mut all = [Self(0); FORMATS.len()];
        let mut place = 0;
        while place < all.len() {
            all[place] = Self(place as u8);
            place += 1;
        }
        all
    };

    /// The format of a driver of the list.
    const fn called(name: &str) -> Self {
        let mut place = 0;
        while !is_same(FORMATS[place].name, name) {
            place += 1;
        }
        Self(place as u8)
    }

    /// Its place in the list of drivers.
    pub(crate) fn place(self) -> usize {
        self.0.into()
    }

    /// QEMU's name of the format.
    pub fn name(self) -> &'static str {
        drivers::format(self).name
    }

    /// The header without which an image is not of this format, by name.
    pub(crate) fn required_header(self) -> Option<&'static str> {
        drivers::format(self).header.as_ref().filter(|header| header.required).map(|header| header.name)
    }

    /// What some callers write for the format of a raw disk: the driver of the file alone.
    pub const BARE: [&str; 5] = ["file", "host_device", "host_cdrom", "null-co", "null-aio"];

    /// The format that an image gives its backing file by `name`: also one of [`Self::BARE`].
    pub fn of_backing_name(name: &str) -> Option<Self> {
        Self::of_name(name).or(Self::BARE.contains(&name).then_some(Self::Raw))
    }

    /// The format of that name, if it is one that is served.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// `==`, when this is compiled.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut place = 0;
    while place < one.len() && place < other.len() && one[place] == other[place] {
        place += 1;
    }
    place == one.len() && place == other.len()
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
    /// The caller says a format, and the file does not.
    #[error("the format is given as {asked}, but the file does not begin with a {header} header")]
    NotAsAsked {
        /// The format.
        asked: Format,
        /// What its header is called.
        header: &'static str,
    },
}

/// Formats that QEMU reads or writes and that are not served.
pub const UNSUPPORTED: [&str; 5] = ["bochs", "cloop", "dmg", "parallels", "qed"];

/// What to do with an image of one of them.
pub const INSTEAD: &str = "qemu-img convert -O qcow2 makes a qcow2 image of it";

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
    let is_its_header = |format: &Format| {
        drivers::format(*format).header.as_ref().is_some_and(|header| (header.begins)(start))
    };
    if let Some(format) = Format::ALL.into_iter().find(is_its_header) {
        return Probed::Format(format);
    }
    if start.starts_with(&drivers::QCOW_MAGIC) {
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
        (Some(asked), _, _) => match asked.required_header() {
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

    const QCOW2: Probed = Probed::Format(Format::Qcow2);
    const LUKS: Probed = Probed::Format(Format::Luks);

    fn refused(asked: Format, header: &'static str) -> Result<Format, FormatError> {
        Err(FormatError::NotAsAsked { asked, header })
    }

    #[test]
    fn each_format_of_the_list_is_found_by_its_name_and_the_named_ones_are_theirs() {
        assert!(Format::ALL.iter().all(|format| Format::of_name(format.name()) == Some(*format)));
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
        assert_eq!(Some(probe(&vdi)), Format::of_name("vdi").map(Probed::Format));
        assert_eq!(Some(probe(b"conectix")), Format::of_name("vpc").map(Probed::Format));
        for start in [&b"KDMV"[..], b"COWD", b"# Disk DescriptorFile\nversion=1\n", b"\r\n# x\nversion=3\r\n"]
        {
            assert_eq!(probe(start), Probed::Format(Format::Vmdk), "{start:?}");
        }
        assert_eq!(probe(b"# Disk DescriptorFile\n"), Probed::Nothing);
        assert_eq!(Some(probe(b"vhdxfile")), Format::of_name("vhdx").map(Probed::Format));
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
