//! The client's half of the handshake.

mod handshake;
mod option;

pub use handshake::{ExportRequest, Handshake, HandshakeError, Negotiated, Step};
pub use option::{abort, export_name, info, list, listed_name, meta_contexts, plain_option};
