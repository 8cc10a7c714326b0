//! Reading tables, several at a time: on other threads where the program has some, otherwise where the check runs.
//!
//! What is read comes back in the order it was asked for, so what a check says does not depend on how many threads there are.

use std::io;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use storage::{Hints, IoBuf, Storage};

use crate::host::Host;
use crate::table_io::read_bytes;

/// Bytes of tables that one calculation reads: enough to outweigh waking a thread.
const BATCH_BYTES: u64 = 256 << 10;
/// Batches under way at a time: two threads have the next one before the last is counted. With the largest clusters 8 MiB.
pub(super) const BATCHES_AT_ONCE: usize = 4;

/// Threads beside the one that counts.
#[derive(Clone)]
pub(super) struct Helpers {
    /// The file that is checked.
    pub(super) file: Arc<dyn Storage>,
    /// Who has the threads.
    pub(super) host: Arc<dyn Host>,
}

/// Where tables are read.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    pub(super) file: &'a dyn Storage,
    helpers: Option<Helpers>,
}

impl<'a> Reader<'a> {
    /// All is read where the check runs.
    pub(crate) fn of(file: &'a dyn Storage) -> Self {
        Self { file, helpers: None }
    }

    /// What the page cache has is read on the threads of `host`.
    pub(crate) fn with_threads(file: &'a Arc<dyn Storage>, host: &Arc<dyn Host>) -> Self {
        let helpers = Helpers { file: Arc::clone(file), host: Arc::clone(host) };
        Self { file: &**file, helpers: Some(helpers) }
    }

    /// Reads `len` bytes at each of the `places` and gives what `look` makes of them, in the same order.
    pub(super) async fn read_each<P, T>(
        self,
        places: Vec<(u64, P)>,
        len: u64,
        look: impl Fn(P, &[u8]) -> T + Clone + Send + 'static,
    ) -> Vec<(P, io::Result<T>)>
    where
        P: Copy + Send + 'static,
        T: Send + 'static,
    {
        let mut early = self.read_early(&places, len, look.clone()).await.into_iter();
        let (file, look) = (self.file, &look);
        let all = places.into_iter().map(|(offset, place)| {
            let early = early.next().flatten();
            async move {
                let looked = match early {
                    Some(looked) => Ok(looked),
                    None => read_bytes(file, offset, len).await.map(|bytes| look(place, &bytes)),
                };
                (place, looked)
            }
        });
        // Gathered first: a stream that is polled must not borrow what makes its futures.
        let all: Vec<_> = all.collect();
        stream::iter(all).buffered(batch_len(len)).collect().await
    }

    /// What is in memory already, read and looked at on another thread. Nothing where there are no other threads.
    async fn read_early<P: Copy + Send + 'static, T: Send + 'static>(
        &self,
        places: &[(u64, P)],
        len: u64,
        look: impl Fn(P, &[u8]) -> T + Send + 'static,
    ) -> Vec<Option<T>> {
        let Some(Helpers { file, host }) = &self.helpers else { return Vec::new() };
        if !file.capabilities().cached {
            return Vec::new();
        }
        let (done, result) = sync::oneshot::channel();
        let (file, places) = (Arc::clone(file), places.to_vec());
        let calculation = move || {
            let Some(mut buf) = usize::try_from(len).ok().and_then(IoBuf::try_uninit) else { return };
            let read = |(offset, place): (u64, P)| {
                file.try_read(offset, &mut buf, Hints::NONE).then(|| look(place, &buf))
            };
            // No task waits any more if the check was dropped.
            let _ = done.send(places.into_iter().map(read).collect());
        };
        host.calculate(Box::new(calculation)).await;
        result.await.unwrap_or_default()
    }
}

/// How many tables of `len` bytes are read at a time.
pub(super) fn batch_len(len: u64) -> usize {
    (BATCH_BYTES / len).clamp(1, 64) as usize
}
