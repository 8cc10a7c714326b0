//! The server's half of the handshake.

mod answers;
mod handshake;
mod meta;

pub use handshake::{Catalogue, Handshake, HandshakeError, Refusal, Session, Step, Tls};
