//! The end of the process: waits for lost servers end.

use std::pin::pin;
use std::time::{Duration, Instant};

use event_listener::Event;
use futures_util::future::{Either, select};
use parking_lot::Mutex;

static ENDS: Mutex<Option<Instant>> = Mutex::new(None);
static BEGUN: Event = Event::new();

/// The process is about to end: a task that waits for a lost server does so for `patience` more. What was acknowledged and not flushed may
/// need it; a server that stays away does not hold the end up.
pub fn end_within(patience: Duration) {
    ENDS.lock().get_or_insert(Instant::now() + patience);
    BEGUN.notify(usize::MAX);
}

/// What `wait` gives, unless the process ends before: `None`.
pub async fn unless_ended<T>(wait: impl Future<Output = T>) -> Option<T> {
    match select(pin!(wait), pin!(ended())).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// Until [`end_within`] was called, and its time is over.
async fn ended() {
    loop {
        let begun = BEGUN.listen();
        let ends = *ENDS.lock();
        if let Some(ends) = ends {
            return reactor::sleep_until(ends).await;
        }
        begun.await;
    }
}
