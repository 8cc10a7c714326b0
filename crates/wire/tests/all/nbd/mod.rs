//! All tests of the messages in one program: it is linked once.

mod common;
mod handshake;
mod properties;
mod transmission;
