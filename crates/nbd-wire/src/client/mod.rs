//! The client's half of the handshake.

mod handshake;
mod option;

pub use handshake::{Handshake, HandshakeError, Negotiated, Step, Wanted};
pub use option::{abort, export_name, info, list, listed_name, meta_contexts, plain_option};
