//! Whether a request is past the limits of its disk: from then on it runs, and must not be dropped.
//!
//! A disk and its caller are on one thread, with any blocks between them: the flag passes those by.

use std::cell::Cell;

thread_local! {
    static ADMITTED: Cell<bool> = const { Cell::new(false) };
}

/// The request that is being polled has been admitted.
pub fn admit() {
    ADMITTED.set(true);
}

/// Returns and clears this thread's "admitted" flag: true if the request just polled is running and can no
/// longer be cancelled.
pub fn was_admitted() -> bool {
    ADMITTED.replace(false)
}
