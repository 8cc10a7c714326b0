//! The server's half of the handshake.

mod answers;
mod handshake;

pub use handshake::{Catalogue, Handshake, HandshakeError, Refusal, Session, Step, Tls};
