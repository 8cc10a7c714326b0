//! QMP, the protocol by which QEMU's clients steer it: the server's half, and a client for the command line.
//!
//! Bytes become messages in [`Framer`], messages become [`Command`]s in [`Session`] (handshake, schema),
//! a [`Handler`] does them, [`wire`] makes bytes of the outcome. All that is pure. [`Server`] moves the bytes
//! on the event loop of its thread; [`Client`] is the other side, blocking.
//!
//! What a client can cost is bounded in [`limits`].
#![forbid(unsafe_code)]

mod answer;
mod client;
mod error;
mod events;
mod framer;
mod introspection;
pub mod limits;
mod message;
mod outbox;
mod passed;
mod schema;
mod server;
mod session;
pub mod takes;
pub mod text;
pub mod wire;

pub use answer::{Answer, List};
pub use client::{Client, ClientError};
pub use error::{Class, QmpError, is_denied};
pub use events::Events;
pub use framer::{Frame, Framer};
pub use message::Command;
pub use passed::Passed;
pub use schema::{Argument, CommandSpec, EventSpec, Kind, NUMBER, NUMBER_MAX, Variant, optional, required};
pub use server::{Handler, Outcome, Server, ServerOptions};
pub use session::{Session, Step};
pub use takes::{Data, Members, Nothing, Tagged, Takes, taken};
pub use wire::Form;
