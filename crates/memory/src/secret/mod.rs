//! Memory for passwords and keys: it is not swapped, is in no core dump, and is overwritten when it is no longer used.

//!
//! [`Secret`] has bytes and [`Locked`] a value in pages of their own. [`wiped_stack`] clears what a calculation left on the stack and in registers.
//! [`without_credentials`] is the last gate before a message, a log or an answer.
//! [`read_key`] brings a password from the kernel's keyrings straight into such pages.
//!
//! What this cannot do: registers are in a core dump while a calculation is at work, and what the kernel, a terminal or a debugger has seen is theirs.

mod bytes;
mod core_dump;
mod keyring;
mod locked;
mod pages;
mod stack;
mod text;

pub use bytes::Secret;
pub use core_dump::leave_no_core_dump;
pub use keyring::read_key;
pub use locked::Locked;
pub use pages::why_unlocked;
pub use stack::wiped_stack;
pub use text::without_credentials;
