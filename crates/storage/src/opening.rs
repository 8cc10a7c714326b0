//! The order in which a file is opened: its lock first, then everything else.

use std::time::Duration;

use crate::{LockError, OpenError, Role, Storage};

/// How long a lock is waited for that no living process is seen to hold.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks at it.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// A file before its lock is held. Its holder may change anything of it, its length too, so there is nothing to
/// ask of it but the lock.
pub trait Unlocked {
    /// Keeps others away while it lives.
    type Lock;
    /// What is made of it.
    type Storage: Storage;

    /// Takes the lock if no process stands against it.
    fn try_lock(&self, role: Role) -> Result<Self::Lock, LockError>;

    /// Takes the length, under `lock`. Without one, nothing beyond the length may be taken for zeroes.
    fn measured(&self, lock: Option<&Self::Lock>) -> Result<Self::Storage, OpenError>;
}

/// Time, as far as waiting for a lock needs it.
pub trait LockClock {
    /// Time since any fixed moment.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()>;
}

/// Why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum LockedOpenError {
    /// Its lock is not given.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It cannot serve as storage.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Locks `file` and then takes its length.
///
/// A lock whose holder is seen is refused at once. One whose holder cannot be seen is waited for, up to 2 s: a
/// process that was killed holds it until the kernel has ended what it had in flight, and one of another user or
/// in another PID namespace is not seen at all. All that time the holder may write, which is why nothing was read yet.
///
/// # Errors
/// When the lock is not given, or the file cannot serve as storage.
pub async fn open_locked<F: Unlocked>(
    file: &F,
    role: Role,
    clock: &impl LockClock,
) -> Result<(F::Storage, F::Lock), LockedOpenError> {
    let lock = lock(file, role, clock).await?;
    Ok((file.measured(Some(&lock))?, lock))
}

async fn lock<F: Unlocked>(file: &F, role: Role, clock: &impl LockClock) -> Result<F::Lock, LockError> {
    let deadline = clock.now() + LOCK_PATIENCE;
    loop {
        match file.try_lock(role) {
            Err(LockError::Busy { holders, .. }) if holders.is_empty() && clock.now() < deadline => {
                clock.sleep(LOCK_RETRY).await;
            }
            result => return result,
        }
    }
}
