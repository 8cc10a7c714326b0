//! The text that describes a vmdk image: lines `NAME=VALUE`, and one line for each extent.
//!
//! "Virtual Disk Format 5.0" of VMware, "The Descriptor File". Names of files are bytes: the text has whatever encoding its writer had.

use std::fmt;

/// Bytes of a descriptor that are read, as in QEMU. A disk of 4 TiB in extents of 2 GiB has 80 KiB.
pub const DESCRIPTOR_BYTES_MAX: u64 = (1 << 20) - 1;
/// Extents of an image: each is an open file. Writers split at 2 GiB, so these are 4 TiB.
pub const EXTENTS_MAX: usize = 2048;
/// Bytes of the name of a file: what Linux takes.
const NAME_BYTES_MAX: usize = 4096;
const SECTORS_MAX: u64 = 1 << 53;

/// What a descriptor says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// `createType`: how the image is laid out.
    pub create_type: String,
    /// `CID`, which changes with the content.
    pub cid: u32,
    /// `parentCID`: that of the backing file, [`NO_PARENT`] where there is none.
    pub parent_cid: u32,
    /// `parentFileNameHint`: the backing file.
    pub parent: Option<String>,
    /// The parts of the disk, in its order.
    pub extents: Vec<ExtentLine>,
}

/// The `parentCID` of an image that has no parent.
pub const NO_PARENT: u32 = u32::MAX;

/// A part of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentLine {
    /// Sectors of the disk.
    pub sectors: u64,
    /// What its file is.
    pub kind: ExtentKind,
    /// The file, relative to the descriptor's directory; empty where there is none.
    pub file: Vec<u8>,
    /// The sector of the file where a flat extent begins.
    pub first_sector: u64,
}

/// What the file of an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// The bytes of the disk.
    Flat,
    /// The bytes of the disk, on VMFS.
    Vmfs,
    /// Grains that tables find.
    Sparse,
    /// The same in ESX's older form (COWD).
    VmfsSparse,
    /// No file: it reads as zeroes.
    Zero,
}

impl ExtentKind {
    /// As lines of extents write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "FLAT",
            Self::Vmfs => "VMFS",
            Self::Sparse => "SPARSE",
            Self::VmfsSparse => "VMFSSPARSE",
            Self::Zero => "ZERO",
        }
    }

    /// Whether the file has the bytes of the disk as they are.
    pub fn is_flat(self) -> bool {
        matches!(self, Self::Flat | Self::Vmfs)
    }

    fn of_name(name: &[u8]) -> Option<Self> {
        let all = [Self::Flat, Self::Vmfs, Self::Sparse, Self::VmfsSparse, Self::Zero];
        all.into_iter().find(|kind| kind.name().as_bytes() == name)
    }
}

/// Why a text is no descriptor, or one that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// It contradicts itself.
    Corrupt(String),
    /// It describes what is not read.
    Unsupported(String),
}

fn corrupt<T>(detail: impl Into<String>) -> Result<T, DescriptorError> {
    Err(DescriptorError::Corrupt(detail.into()))
}

/// Whether the lines of extents are read. Where the descriptor is inside the only extent they place nothing, and writers put anything there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// They are, and `createType` is needed.
    Read,
    /// They are not.
    Skip,
}

/// Text of an image, for a message: at most 64 characters of it.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        let shown: String = text.chars().take(64).collect();
        write!(f, "{shown:?}")
    }
}

impl Descriptor {
    /// Reads the text, which ends at the first zero byte.
    ///
    /// # Errors
    /// Where `CID` is missing, or `createType` and a place for each extent.
    pub fn parse(text: &[u8], lines: Lines) -> Result<Self, DescriptorError> {
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let text = text.get(..end).unwrap_or_default();
        let mut found = Self { parent_cid: NO_PARENT, ..Self::default() };
        let (mut create_type, mut cid) = (None, None);
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let extent = if lines == Lines::Read { extent_line(line, index + 1)? } else { None };
            if let Some(extent) = extent {
                if found.extents.len() == EXTENTS_MAX {
                    return Err(DescriptorError::Unsupported(format!(
                        "the descriptor has more than {EXTENTS_MAX} extents, which is the most that is opened"
                    )));
                }
                found.extents.push(extent);
                continue;
            }
            let Some((name, value)) = assignment(line) else { continue };
            match name.to_ascii_lowercase().as_slice() {
                b"createtype" if create_type.is_none() => {
                    create_type = Some(String::from_utf8_lossy(value).into_owned());
                }
                b"cid" if cid.is_none() => cid = Some(hex(value, "CID")?),
                b"parentcid" => found.parent_cid = hex(value, "parentCID")?,
                b"parentfilenamehint" if found.parent.is_none() => {
                    found.parent = Some(parent_name(value)?);
                }
                _ => {}
            }
        }
        let create_type = create_type.or_else(|| (lines == Lines::Skip).then(String::new));
        let (Some(create_type), Some(cid)) = (create_type, cid) else {
            return corrupt("the descriptor lacks createType or CID");
        };
        (found.create_type, found.cid) = (create_type, cid);
        Ok(found)
    }

    /// The name of the backing file, if there is one.
    pub fn parent(&self) -> Option<&str> {
        self.parent.as_deref()
    }
}

/// `NAME=VALUE`, the value without its quotes.
fn assignment(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = line.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (line.get(..equals)?.trim_ascii(), line.get(equals + 1..)?.trim_ascii());
    let Some(quoted) = value.strip_prefix(b"\"") else { return Some((name, value)) };
    let end = quoted.iter().position(|byte| *byte == b'"').unwrap_or(quoted.len());
    Some((name, quoted.get(..end)?))
}

fn hex(value: &[u8], what: &str) -> Result<u32, DescriptorError> {
    let digits = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
    match digits.and_then(|text| u32::from_str_radix(text, 16).ok()) {
        Some(number) => Ok(number),
        None => corrupt(format!("{what} is {}; allowed: up to 8 hexadecimal digits", Quoted(value))),
    }
}

fn parent_name(value: &[u8]) -> Result<String, DescriptorError> {
    match std::str::from_utf8(value) {
        Ok(name) if !name.is_empty() && name.len() <= NAME_BYTES_MAX => Ok(name.to_owned()),
        _ => {
            corrupt(format!("parentFileNameHint is {}; allowed: the name of a file, in UTF-8", Quoted(value)))
        }
    }
}

/// `RW 4192256 SPARSE "name.vmdk"`, `RW 8 FLAT "name" 0`, `RW 8 ZERO`; `None` of a line that is none of an extent.
fn extent_line(line: &[u8], number: usize) -> Result<Option<ExtentLine>, DescriptorError> {
    let (access, rest) = word(line);
    match access {
        b"RW" | b"RDONLY" => {}
        b"NOACCESS" => {
            return Err(DescriptorError::Unsupported(format!(
                "line {number} of the descriptor is an extent without access"
            )));
        }
        _ => return Ok(None),
    }
    let (sectors, rest) = word(rest);
    let sectors = match number_of(sectors) {
        Some(sectors) if (1..=SECTORS_MAX).contains(&sectors) => sectors,
        _ => {
            return corrupt(format!(
                "line {number} of the descriptor has an extent of {} sectors; allowed: 1 to {SECTORS_MAX}",
                Quoted(sectors)
            ));
        }
    };
    let (kind, rest) = word(rest);
    let Some(kind) = ExtentKind::of_name(kind) else {
        return Err(DescriptorError::Unsupported(format!(
            "line {number} of the descriptor is an extent of type {}; FLAT, SPARSE, VMFS, VMFSSPARSE and ZERO are supported \
             (vmkfstools -i, or vmware-vdiskmanager -r, makes a copy that has those)",
            Quoted(kind)
        )));
    };
    let (file, rest) = match kind {
        ExtentKind::Zero => (Vec::new(), rest),
        _ => quoted_name(rest, number)?,
    };
    let (offset, _) = word(rest);
    let first_sector = match (kind, number_of(offset)) {
        (ExtentKind::Flat, Some(first)) if first <= SECTORS_MAX => first,
        (ExtentKind::Vmfs, Some(first)) if first <= SECTORS_MAX => first,
        (ExtentKind::Vmfs, None) if offset.is_empty() => 0,
        (ExtentKind::Flat | ExtentKind::Vmfs, _) => {
            return corrupt(format!(
                "line {number} of the descriptor has a flat extent at sector {}; allowed: 0 to {SECTORS_MAX}",
                Quoted(offset)
            ));
        }
        _ => 0,
    };
    Ok(Some(ExtentLine { sectors, kind, file, first_sector }))
}

/// The first word of `text`, and what follows it.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    text.split_at(end)
}

fn quoted_name(text: &[u8], number: usize) -> Result<(Vec<u8>, &[u8]), DescriptorError> {
    let quoted = text.trim_ascii_start().strip_prefix(b"\"");
    let name = quoted.and_then(|quoted| {
        let end = quoted.iter().position(|byte| *byte == b'"')?;
        Some((quoted.get(..end)?, quoted.get(end + 1..)?))
    });
    match name.filter(|(name, _)| (1..=NAME_BYTES_MAX).contains(&name.len())) {
        Some((name, rest)) => Ok((name.to_owned(), rest)),
        None => corrupt(format!(
            "line {number} of the descriptor has no name of a file in quotes (1 to {NAME_BYTES_MAX} bytes)"
        )),
    }
}

fn number_of(digits: &[u8]) -> Option<u64> {
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}

/// Whether the first bytes of a file are those of a descriptor: comments and empty lines, and then `version=1`, `2` or `3`.
pub fn begins(start: &[u8]) -> bool {
    let mut rest = start;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, next) = rest.split_at(end);
        rest = next.get(1..).unwrap_or_default();
        if line.starts_with(b"#") {
            continue;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(|byte| *byte == b' ') {
            continue;
        }
        return matches!(line, b"version=1" | b"version=2" | b"version=3");
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentSparse\"\n\n\
        # Extent description\nRW 4192256 SPARSE \"a b-s001.vmdk\"\nRW 8 FLAT \"c\" 128\r\nRW 4 VMFS \"d\"\nRDONLY 2 ZERO \n\n\
        ddb.virtualHWVersion = \"4\"\n";

    fn parse(text: &[u8]) -> Result<Descriptor, DescriptorError> {
        Descriptor::parse(text, Lines::Read)
    }

    #[test]
    fn a_descriptor_inside_its_extent_needs_a_cid_alone() {
        let found =
            Descriptor::parse(b"CID=12\nRW 0 SPARSE x\nparentFileNameHint=\"base.vmdk\"\n", Lines::Skip)
                .unwrap();
        assert_eq!((found.cid, found.parent(), &*found.extents), (0x12, Some("base.vmdk"), &[][..]));
    }

    #[test]
    fn a_descriptor_has_names_and_extents_in_their_order() {
        let found = parse(TEXT.as_bytes()).unwrap();
        let line = |sectors, kind, file: &str, first_sector| ExtentLine {
            sectors,
            kind,
            file: file.as_bytes().to_vec(),
            first_sector,
        };
        let expected = Descriptor {
            create_type: "twoGbMaxExtentSparse".into(),
            cid: 0xffff_fffe,
            parent_cid: NO_PARENT,
            parent: None,
            extents: vec![
                line(4_192_256, ExtentKind::Sparse, "a b-s001.vmdk", 0),
                line(8, ExtentKind::Flat, "c", 128),
                line(4, ExtentKind::Vmfs, "d", 0),
                line(2, ExtentKind::Zero, "", 0),
            ],
        };
        assert_eq!(found, expected);
        assert_eq!(parse(format!("{TEXT}\0RW x").as_bytes()).unwrap(), expected);
    }

    #[test]
    fn texts_that_place_nothing_are_refused() {
        let with = |line: &str| parse(format!("{TEXT}{line}\n").as_bytes());
        for line in [
            "RW 0 FLAT \"a\" 0",
            "RW -1 FLAT \"a\" 0",
            "RW 99999999999999999999 FLAT \"a\" 0",
            "RW 8 FLAT \"a\"",
            "RW 8 FLAT \"a\" -1",
            "RW 8 FLAT \"a",
            "RW 8 SPARSE a",
            "RW 8 SPARSE \"\"",
            "RW 8",
            "parentCID=xyz",
            "parentFileNameHint=\"\"",
        ] {
            let kind = match with(line) {
                Err(DescriptorError::Corrupt(_)) => "corrupt",
                Err(DescriptorError::Unsupported(_)) => "unsupported",
                Ok(_) => "read",
            };
            let expected = if line == "RW 8" { "unsupported" } else { "corrupt" };
            assert_eq!(kind, expected, "{line}");
        }
        for line in ["NOACCESS 8 FLAT \"a\" 0", "RW 8 VMFSRDM \"a\"", "RW 8 SESPARSE \"a\""] {
            assert!(matches!(with(line), Err(DescriptorError::Unsupported(_))), "{line}");
        }
        let many = "RW 8 ZERO\n".repeat(EXTENTS_MAX + 1);
        assert!(matches!(with(&many), Err(DescriptorError::Unsupported(_))));
        assert!(matches!(parse(b"version=1\nCID=1\n"), Err(DescriptorError::Corrupt(_))));
        assert!(matches!(parse(b""), Err(DescriptorError::Corrupt(_))));
    }

    #[test]
    fn a_descriptor_begins_with_comments_and_a_version() {
        for (start, expected) in [
            ("# Disk DescriptorFile\nversion=1\n", true),
            ("# x\r\n   \r\nversion=3\r\n", true),
            ("\n\nversion=2\n", true),
            ("version=4\n", false),
            ("version=1", false),
            ("# only a comment\n", false),
            (" version=1\n", false),
            ("disk\nversion=1\n", false),
            ("", false),
        ] {
            assert_eq!(begins(start.as_bytes()), expected, "{start:?}");
        }
    }
}
