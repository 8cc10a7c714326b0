//! A cell that is set once, as in `std`.

use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::Mutex;

/// Empty, then a value for good.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    set: AtomicBool,
    /// Held while the value is made: only one is.
    making: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// An empty cell.
    pub fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), set: AtomicBool::new(false), making: Mutex::new(()) }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        if self.set.load(SeqCst) { self.value.get() } else { None }
    }

    /// Sets the value; gives it back if there is one.
    ///
    /// # Errors
    /// With `value` if the cell is not empty.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        self.value.set(value)?;
        self.set.store(true, SeqCst);
        Ok(())
    }

    /// The value, made by `make` if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = self.making.lock();
        // No other thread makes one: the lock is ours.
        let value = self.value.get_or_init(make);
        self.set.store(true, SeqCst);
        value
    }
}
