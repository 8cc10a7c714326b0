//! A lock that may be held across an await, as in `async-lock`. Which waiter comes next is not decided: the
//! explorer tries all. (The real one looks at the clock to be fair, which no schedule could replay.)

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use super::{Event, Mutex};

/// A lock for one owner at a time, waited for without blocking the thread.
#[derive(Debug)]
pub struct AsyncMutex<T> {
    value: std::sync::Mutex<T>,
    /// Makes each attempt a step of its own.
    attempt: Mutex<()>,
    released: Event,
}

/// The lock is held until this is dropped.
#[derive(Debug)]
pub struct AsyncMutexGuard<'a, T> {
    /// `None` only while it is dropped.
    value: Option<std::sync::MutexGuard<'a, T>>,
    released: &'a Event,
}

impl<T: Default> Default for AsyncMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> AsyncMutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self { value: std::sync::Mutex::new(value), attempt: Mutex::new(()), released: Event::new() }
    }

    /// Waits for the lock.
    pub async fn lock(&self) -> AsyncMutexGuard<'_, T> {
        loop {
            let released = self.released.listen();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            released.await;
        }
    }

    fn try_lock(&self) -> Option<AsyncMutexGuard<'_, T>> {
        let _attempt = self.attempt.lock();
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
        .map(|value| AsyncMutexGuard { value: Some(value), released: &self.released })
    }
}

impl<T> Drop for AsyncMutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        self.released.notify(usize::MAX);
    }
}

impl<T> Deref for AsyncMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("the lock is held while its guard is"),
        }
    }
}

impl<T> DerefMut for AsyncMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.value {
            Some(value) => value,
            None => unreachable!("the lock is held while its guard is"),
        }
    }
}
