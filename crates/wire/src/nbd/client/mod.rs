//! The client's half of the handshake.

mod handshake;
mod option;

pub use handshake::{ExportRequest, GREETING_BYTES, Handshake, HandshakeError, Negotiated, Step, greet};
pub use option::{
    Fact, abort, context_name, export_name, info, list, listed_name, meta_contexts, plain_option,
};
