//! Images in object stores: disks that are pushed, checkpoints that are published, and what begins as one of those.
//!
//! A program that uploads says by [`Follow`] how fast, sees how far it is, and ends it; a job is followed by its [`job::Life`].

mod deltas;
mod error;
mod follow;
mod live;
mod moment;
mod parent;
mod publication;
mod session;
mod source;
mod upload;

pub use self::error::{NoParent, PublishError};
pub use self::follow::Follow;
pub use self::live::{LivePush, PushTarget, changed};
pub use self::publication::{Outcome, Publication};
pub use self::session::{Sent, Session, Target};
pub use self::source::Source;
