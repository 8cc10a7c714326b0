//! A flag that others watch, set at the end.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped, also by a panic: threads of a scope that watch it end, and the scope with them. Otherwise a test that fails
/// would wait for them until its time limit.
#[derive(Debug)]
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
