//! Options as a client sends them, one at a time: for clients that want something else than to
//! get to transmission (listing, asking).

use crate::nbd::cursor::{Cursor, Truncated};
use crate::nbd::option::put_option;
use crate::nbd::put::{Put, len_u32};
use crate::nbd::{BlockSizes, ExportFlags, InfoKind, OptionKind};

/// Appends an option without data: LIST, STARTTLS, STRUCTURED_REPLY, EXTENDED_HEADERS.
pub fn plain_option(out: &mut Vec<u8>, option: OptionKind) {
    put_option(out, option, &[]);
}

/// Appends a LIST: every export is answered with a SERVER reply ([`listed_name`]), then ACK.
pub fn list(out: &mut Vec<u8>) {
    plain_option(out, OptionKind::List);
}

/// Appends an ABORT: the polite way to leave before transmission.
pub fn abort(out: &mut Vec<u8>) {
    plain_option(out, OptionKind::Abort);
}

/// Appends an EXPORT_NAME, whose answer is not an option reply.
pub fn export_name(out: &mut Vec<u8>, name: &str) {
    put_option(out, OptionKind::ExportName, name.as_bytes());
}

/// Appends an INFO or GO for the export `name` that asks for `facts` too.
pub fn info(out: &mut Vec<u8>, option: OptionKind, name: &str, facts: &[InfoKind]) {
    let mut data = Vec::new();
    data.put_u32(len_u32(name.as_bytes()));
    data.put(name.as_bytes());
    debug_assert!(u16::try_from(facts.len()).is_ok());
    data.put_u16(u16::try_from(facts.len()).unwrap_or(u16::MAX));
    facts.iter().for_each(|fact| data.put_u16(fact.to_wire()));
    put_option(out, option, &data);
}

/// Appends a LIST_META_CONTEXT or SET_META_CONTEXT for the export `name`.
pub fn meta_contexts<S: AsRef<str>>(out: &mut Vec<u8>, option: OptionKind, name: &str, queries: &[S]) {
    let mut data = Vec::new();
    data.put_u32(len_u32(name.as_bytes()));
    data.put(name.as_bytes());
    debug_assert!(u32::try_from(queries.len()).is_ok());
    data.put_u32(u32::try_from(queries.len()).unwrap_or(u32::MAX));
    for query in queries.iter().map(|query| query.as_ref().as_bytes()) {
        data.put_u32(len_u32(query));
        data.put(query);
    }
    put_option(out, option, &data);
}

/// The name of a context from the data of a META_CONTEXT reply.
pub fn context_name(data: &[u8]) -> Result<&[u8], Truncated> {
    let mut cursor = Cursor::new(data);
    cursor.u32()?;
    Ok(cursor.rest())
}

/// A fact about an export: the data of an INFO reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<'a> {
    /// Its length in bytes, and what the server understands.
    Export(u64, ExportFlags),
    /// Its own name.
    Name(&'a [u8]),
    /// Text for people.
    Description(&'a [u8]),
    /// What requests should look like.
    Blocks(BlockSizes),
    /// Another one.
    Unknown,
}

impl<'a> Fact<'a> {
    /// Reads the data of an INFO reply.
    ///
    /// # Errors
    /// When it is too short.
    pub fn decode(data: &'a [u8]) -> Result<Self, Truncated> {
        let mut cursor = Cursor::new(data);
        Ok(match InfoKind::from_wire(cursor.u16()?) {
            InfoKind::Export => Self::Export(cursor.u64()?, ExportFlags::from_wire(cursor.u16()?)),
            InfoKind::Name => Self::Name(cursor.rest()),
            InfoKind::Description => Self::Description(cursor.rest()),
            InfoKind::BlockSize => {
                let (minimum, preferred, maximum) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
                Self::Blocks(BlockSizes { minimum, preferred, maximum })
            }
            InfoKind::Unknown(_) => Self::Unknown,
        })
    }
}

/// Name and description from the data of a SERVER reply.
pub fn listed_name(data: &[u8]) -> Result<(&[u8], &[u8]), Truncated> {
    let mut cursor = Cursor::new(data);
    Ok((cursor.counted_bytes()?, cursor.rest()))
}
