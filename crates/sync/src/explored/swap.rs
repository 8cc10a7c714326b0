//! A shared pointer that is replaced under its readers, as in `arc-swap`.

use std::ops::Deref;
use std::sync::Arc;

use super::Mutex;

/// An `Arc` or nothing. Loading and storing are one step each, in one order for all threads.
#[derive(Debug)]
pub struct ArcSwapOption<T>(Mutex<Option<Arc<T>>>);

/// What was there when it was loaded; stays alive while this does.
#[derive(Debug)]
pub struct Loaded<T>(Option<Arc<T>>);

impl<T> Deref for Loaded<T> {
    type Target = Option<Arc<T>>;

    fn deref(&self) -> &Option<Arc<T>> {
        &self.0
    }
}

impl<T> From<Option<Arc<T>>> for ArcSwapOption<T> {
    fn from(value: Option<Arc<T>>) -> Self {
        Self(Mutex::new(value))
    }
}

impl<T> ArcSwapOption<T> {
    /// Nothing.
    pub fn empty() -> Self {
        Self(Mutex::new(None))
    }

    /// What is there now.
    pub fn load(&self) -> Loaded<T> {
        Loaded(self.load_full())
    }

    /// What is there now.
    pub fn load_full(&self) -> Option<Arc<T>> {
        self.0.lock().clone()
    }

    /// Replaces it.
    pub fn store(&self, value: Option<Arc<T>>) {
        let old = std::mem::replace(&mut *self.0.lock(), value);
        drop(old);
    }
}
