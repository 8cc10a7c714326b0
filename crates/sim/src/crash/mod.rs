//! What a crash may leave: from a recording to every image that the contract allows.

mod atom;
mod plan;
mod recording;
mod states;

pub use plan::CrashOptions;
pub use recording::Recording;
pub use states::{CrashState, CrashStates};
