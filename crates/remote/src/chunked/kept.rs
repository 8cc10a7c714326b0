//! What was fetched last, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use async_lock::OnceCell;
use event_listener::Event;
use parking_lot::Mutex;

/// So many things by their keys, those that were used last. Each is fetched by one of those who want it at the same time.
#[derive(Debug)]
pub(crate) struct RecentlyUsed<K, V> {
    max: usize,
    /// The one that was used last at the end.
    entries: Mutex<VecDeque<Entry<K, V>>>,
    /// One that was fetched ahead is used, or has gone.
    changed: Arc<Event>,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    cell: Arc<OnceCell<V>>,
    /// It was fetched, or is being fetched, before anything has asked for it.
    is_ahead: bool,
}

impl<K: Copy + PartialEq, V: Clone> RecentlyUsed<K, V> {
    /// Keeps `max` of them, one at least.
    pub(crate) fn new(max: usize) -> Self {
        Self { max: max.max(1), entries: Mutex::default(), changed: Arc::default() }
    }

    /// How many it keeps besides that were fetched ahead, and have not been asked for.
    pub(crate) fn ahead_max(&self) -> usize {
        self.max / 2
    }

    /// What `key` stands for, fetched unless it is there. Who is dropped while it fetches leaves that to the next who waits.
    ///
    /// # Errors
    /// Of `fetch`; the next caller fetches again.
    pub(crate) async fn get<E>(&self, key: K, fetch: impl AsyncFn() -> Result<V, E>) -> Result<V, E> {
        let cell = self.cell(key, false);
        cell.get_or_try_init(|| fetch()).await.cloned()
    }

    /// Where what `key` stands for is to be put, before it is asked for. `None`: it is there, or is being fetched.
    pub(crate) fn ahead(&self, key: K) -> Option<Arc<OnceCell<V>>> {
        (!self.has(key)).then(|| self.cell(key, true))
    }

    /// Whether it is there, or is being fetched.
    pub(crate) fn has(&self, key: K) -> bool {
        self.entries.lock().iter().any(|known| known.key == key)
    }

    /// How many were fetched ahead, or are being fetched, and have not been asked for. [`RecentlyUsed::changed`] is notified when there are fewer.
    pub(crate) fn unused(&self) -> usize {
        self.entries.lock().iter().filter(|known| known.is_ahead).count()
    }

    /// Is notified when one that was fetched ahead is used, or goes.
    pub(crate) fn changed(&self) -> &Arc<Event> {
        &self.changed
    }

    fn cell(&self, key: K, is_ahead: bool) -> Arc<OnceCell<V>> {
        let mut entries = self.entries.lock();
        let at = entries.iter().position(|known| known.key == key);
        let entry = at.and_then(|at| entries.remove(at));
        let was_ahead = entry.as_ref().is_some_and(|entry| entry.is_ahead);
        let cell = entry.map(|entry| entry.cell).unwrap_or_default();
        entries.push_back(Entry { key, cell: Arc::clone(&cell), is_ahead });
        let mut goes = was_ahead && !is_ahead;
        // What was fetched ahead takes no room from what is used: a guest comes back to that. It goes when it has waited longer than all that is used.
        let mut used = entries.iter().filter(|known| !known.is_ahead).count();
        while used > self.max || entries.len() > self.max + self.ahead_max() {
            let Some(gone) = entries.pop_front() else { break };
            used -= usize::from(!gone.is_ahead);
            goes |= gone.is_ahead;
        }
        drop(entries);
        if goes {
            self.changed.notify(usize::MAX);
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_executor::block_on;
    use futures_util::future::join;

    use super::*;

    #[test]
    fn what_was_used_last_stays_and_is_fetched_once() {
        let (kept, fetches) = (RecentlyUsed::new(2), Cell::new(0));
        let get = async |key: u32| {
            let fetch = async || {
                fetches.set(fetches.get() + 1);
                Ok::<_, ()>(key * 10)
            };
            kept.get(key, fetch).await.unwrap()
        };
        block_on(async {
            assert_eq!(join(get(1), get(1)).await, (10, 10));
            assert_eq!(fetches.get(), 1);
            for key in [2, 1, 3] {
                get(key).await;
            }
            assert_eq!((get(1).await, fetches.get()), (10, 3));
            assert_eq!((get(2).await, fetches.get()), (20, 4));
        });
    }

    #[test]
    fn a_failure_is_not_kept() {
        let kept = RecentlyUsed::new(2);
        block_on(async {
            assert_eq!(kept.get(1, async || Err("lost")).await, Err("lost"));
            assert_eq!(kept.get(1, async || Ok::<_, &str>(5)).await, Ok(5));
        });
    }

    #[test]
    fn what_is_fetched_ahead_is_unused_until_it_is_asked_for_or_goes() {
        let kept = RecentlyUsed::new(3);
        let get = async |key: u32| kept.get(key, async || Ok::<_, ()>(key * 100)).await.unwrap();
        block_on(async {
            assert_eq!(get(1).await, 100);
            assert!(kept.ahead(1).is_none(), "it is there");
            let cell = kept.ahead(2).expect("it is not there");
            assert!(kept.ahead(2).is_none(), "it is being fetched");
            assert_eq!((kept.unused(), kept.has(2), kept.has(3)), (1, true, false));
            cell.get_or_init(async || 20).await;
            let changed = kept.changed().listen();
            // It is not fetched again.
            assert_eq!((get(2).await, kept.unused()), (20, 0));
            changed.await;
            kept.ahead(3).expect("it is not there");
            let changed = kept.changed().listen();
            for key in [4, 5, 6] {
                get(key).await;
            }
            assert_eq!((kept.unused(), kept.has(1)), (1, false), "it takes no room");
            get(7).await;
            changed.await;
            assert_eq!((kept.unused(), kept.has(3)), (0, false));
        });
    }
}
