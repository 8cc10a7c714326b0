//! Key slots and new files on a medium that loses what was not flushed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod key_slots;
mod new_file;
