//! Every bound of the protocol half, with its reason.

/// Longest string (export name, description, context name, error message) in bytes: the
/// protocol's own limit ("Values", strings).
pub const STRING_BYTES_MAX: usize = 4096;

/// Longest option data that is looked at. The largest useful one is SET_META_CONTEXT with a name
/// and a few contexts; 64 KiB hold 15 strings of full length.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// Longest option data that is read and thrown away to answer ERR_TOO_BIG; anything longer is not
/// a client, and the connection ends.
pub const OPTION_SKIP_BYTES_MAX: u32 = 32 << 20;

/// Most options of one handshake: a client that lists and asks about every export of a full
/// catalogue stays below; one that keeps asking for ever does not.
pub const OPTIONS_MAX: u32 = 4096;

/// Most queries in one LIST_META_CONTEXT or SET_META_CONTEXT: each is compared with every context
/// of the export.
pub const QUERIES_MAX: u32 = 128;

/// Most contexts one client can have selected: each multiplies the work of a BLOCK_STATUS.
pub const CONTEXTS_SELECTED_MAX: usize = 64;

/// Most contexts named in one reply to LIST_META_CONTEXT: an image may hold 65,535 bitmaps.
pub const CONTEXTS_LISTED_MAX: usize = 1024;

/// Most bytes that one READ or WRITE carries: what every known peer accepts, and what is
/// advertised as the maximum block size.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Longest unwelcome payload that is read and thrown away so that the error can be answered; the
/// connection ends at anything longer.
pub const PAYLOAD_SKIP_BYTES_MAX: u64 = 64 << 20;

/// Most extents in one block status reply: 1 MiB of descriptors in the structured dialect.
pub const EXTENTS_MAX: usize = 128 << 10;

/// Longest context filter of an extended BLOCK_STATUS: the effective length and one id for each
/// context that can be selected.
pub const FILTER_BYTES_MAX: u64 = 8 + 4 * CONTEXTS_SELECTED_MAX as u64;

/// Longest chunk payload that the client half accepts: the data of the largest read and its
/// offset. (A block status of [`EXTENTS_MAX`] extents is smaller.)
pub const CHUNK_BYTES_MAX: u64 = REQUEST_BYTES_MAX as u64 + 8;

/// Longest option reply that the client half accepts: two strings and their numbers.
pub const OPTION_REPLY_BYTES_MAX: u32 = (8 << 10) + 64;
