//! What was fetched last, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use async_lock::OnceCell;
use parking_lot::Mutex;

/// So many things by their keys, those that were used last. Each is fetched by one of those who want it at the same time.
#[derive(Debug)]
pub(crate) struct RecentlyUsed<K, V> {
    max: usize,
    /// The one that was used last at the end.
    entries: Mutex<VecDeque<Entry<K, V>>>,
}

type Entry<K, V> = (K, Arc<OnceCell<V>>);

impl<K: Copy + PartialEq, V: Clone> RecentlyUsed<K, V> {
    /// Keeps `max` of them, one at least.
    pub(crate) fn new(max: usize) -> Self {
        Self { max: max.max(1), entries: Mutex::default() }
    }

    /// What `key` stands for, fetched unless it is there. Who is dropped while it fetches leaves that to the next who waits.
    ///
    /// # Errors
    /// Of `fetch`; the next caller fetches again.
    pub(crate) async fn get<E>(&self, key: K, fetch: impl AsyncFn() -> Result<V, E>) -> Result<V, E> {
        let cell = self.cell(key);
        cell.get_or_try_init(|| fetch()).await.cloned()
    }

    fn cell(&self, key: K) -> Arc<OnceCell<V>> {
        let mut entries = self.entries.lock();
        let at = entries.iter().position(|(known, _)| *known == key);
        let entry = at.and_then(|at| entries.remove(at)).unwrap_or_else(|| (key, Arc::default()));
        let cell = Arc::clone(&entry.1);
        entries.push_back(entry);
        while entries.len() > self.max {
            entries.pop_front();
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
}
