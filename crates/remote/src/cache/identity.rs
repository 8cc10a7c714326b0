//! Which version of which file a cache is of.

/// The type of the header extension that holds it: "cowc". QEMU keeps extensions that it does not know.
pub(crate) const EXTENSION: u32 = 0x636f_7763;
/// The first line of the extension.
const FORMAT: &str = "cowhand cache 1";

/// Which version of which file a cache is of. Two that are equal are of the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The file's name, without credentials.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
    /// What its server calls this version of it, in one line.
    pub version: String,
}

impl Identity {
    /// The data of the extension.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { name, length, version } = self;
        format!("{FORMAT}\n{length}\n{version}\n{name}").into_bytes()
    }

    /// What the data of an extension says; `None` if another program, or a later version of this one, wrote it.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(data).ok()?.splitn(4, '\n');
        if lines.next()? != FORMAT {
            return None;
        }
        let length = lines.next()?.parse().ok()?;
        let (version, name) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        Some(Self { name, length, version })
    }

    /// What `wanted` has otherwise, in words.
    pub(crate) fn difference(&self, wanted: &Self) -> Option<String> {
        if self.name != wanted.name {
            return Some(format!("it is of {}", self.name));
        }
        if self.length != wanted.length {
            return Some(format!("the file had {} bytes and has {}", self.length, wanted.length));
        }
        let changed = || format!("the file was at version {} and is at {}", self.version, wanted.version);
        (self.version != wanted.version).then(changed)
    }
}
