//! The file below, with requests that fail and wait as rules say.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use event_listener::Event;
use parking_lot::Mutex;
use storage::{Capabilities, Extent, Hints, IoBuf, IoFuture, IoVec, Step, StepWatcher, Storage, Zeroing};

use super::rules::{IoType, Rules};

/// Storage that obeys rules.
pub struct Blkdebug {
    below: Arc<dyn Storage>,
    state: Mutex<State>,
    /// A request may go on.
    resumed: Event,
}

#[derive(Debug)]
struct State {
    rules: Rules,
    /// Requests that wait, the first one first.
    held_back: Vec<String>,
    passed: u64,
    /// Requests that the file below has.
    below: usize,
    /// Requests that change the file, and how many of them there were when the last flush began that succeeded: one with nothing to flush obeys
    /// no rule, as in QEMU, where no such request reaches a driver.
    changes: u64,
    flushed: u64,
}

impl fmt::Debug for Blkdebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blkdebug").field("below", &self.below).finish_non_exhaustive()
    }
}

/// A suspended request. Dropping it resumes its tag.
struct HeldBack<'a> {
    storage: &'a Blkdebug,
    tag: String,
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.storage.resume(&self.tag);
    }
}

/// A request that the file below has.
struct Below<'a>(&'a Blkdebug);

impl Drop for Below<'_> {
    fn drop(&mut self) {
        self.0.state.lock().below -= 1;
    }
}

impl Blkdebug {
    /// Over `below`.
    pub fn new(below: Arc<dyn Storage>, rules: Rules) -> Self {
        let held_back = Vec::new();
        let state = State { rules, held_back, passed: 0, below: 0, changes: 0, flushed: 0 };
        Self { below, state: Mutex::new(state), resumed: Event::new() }
    }

    /// Waits and fails as the rules say; otherwise the request may be given to the file below.
    async fn pass(&self, io_type: IoType, range: Range<u64>) -> io::Result<Below<'_>> {
        let tag = {
            let mut state = self.state.lock();
            state.passed += 1;
            state.changes +=
                u64::from(matches!(io_type, IoType::Write | IoType::WriteZeroes | IoType::Discard));
            let tag = state.rules.hold_back();
            state.held_back.extend(tag.clone());
            tag
        };
        if let Some(tag) = tag {
            self.wait(tag).await;
        }
        let failure = self.state.lock().rules.failure(io_type, range);
        if let Some(delay) = failure.map(|failure| failure.delay_ns).filter(|delay| *delay > 0) {
            reactor::sleep(Duration::from_nanos(delay)).await;
        }
        let Some(failure) = failure.filter(|failure| failure.errno != 0) else {
            self.state.lock().below += 1;
            return Ok(Below(self));
        };
        if !failure.immediately {
            reactor::yield_now().await;
        }
        Err(io::Error::from_raw_os_error(i32::try_from(failure.errno).unwrap_or(libc::EIO)))
    }

    async fn wait(&self, tag: String) {
        let held_back = HeldBack { storage: self, tag };
        loop {
            let resumed = self.resumed.listen();
            if !self.state.lock().held_back.contains(&held_back.tag) {
                return;
            }
            resumed.await;
        }
    }

    fn end_of(offset: u64, len: u64) -> Range<u64> {
        offset..offset.saturating_add(len)
    }
}

impl StepWatcher for Blkdebug {
    fn about_to(&self, step: Step) {
        let mut state = self.state.lock();
        if step != Step::FlushToDisk || state.changes > state.flushed {
            state.rules.about_to(step);
        }
    }

    fn set_breakpoint(&self, step: Step, tag: &str) {
        self.state.lock().rules.set_breakpoint(step, tag);
    }

    fn remove_breakpoint(&self, tag: &str) -> bool {
        let was_set = self.state.lock().rules.remove_breakpoint(tag);
        self.resume(tag) || was_set
    }

    fn resume(&self, tag: &str) -> bool {
        let mut state = self.state.lock();
        let Some(place) = state.held_back.iter().position(|held| held == tag) else { return false };
        state.held_back.remove(place);
        drop(state);
        self.resumed.notify(usize::MAX);
        true
    }

    fn held_back(&self) -> Vec<String> {
        self.state.lock().held_back.clone()
    }

    fn requests(&self) -> (u64, usize) {
        let state = self.state.lock();
        (state.passed, state.below)
    }
}

impl Storage for Blkdebug {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&*self.below)
    }

    fn capabilities(&self) -> Capabilities {
        // What is in memory would pass by the rules.
        Capabilities { cached: false, ..self.below.capabilities() }
    }

    fn read(&self, offset: u64, buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            match self.pass(IoType::Read, Self::end_of(offset, buf.len() as u64)).await {
                Ok(_below) => self.below.read(offset, buf, hints).await,
                Err(error) => (Err(error), buf),
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.about_to(Step::Pwritev);
            let _below = self.pass(IoType::Write, Self::end_of(offset, data.len() as u64)).await?;
            self.below.write(offset, data, hints).await?;
            self.about_to(Step::PwritevDone);
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let changes = {
                let state = self.state.lock();
                (state.changes > state.flushed).then_some(state.changes)
            };
            let Some(changes) = changes else { return self.below.flush().await };
            let _below = self.pass(IoType::Flush, 0..0).await?;
            self.below.flush().await?;
            let mut state = self.state.lock();
            state.flushed = state.flushed.max(changes);
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.about_to(Step::PwritevZero);
            let _below = self.pass(IoType::WriteZeroes, Self::end_of(offset, len)).await?;
            self.below.zero(offset, len, how).await?;
            self.about_to(Step::PwritevDone);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let _below = self.pass(IoType::Discard, Self::end_of(offset, len)).await?;
            self.below.discard(offset, len).await
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let _below = self.pass(IoType::BlockStatus, Self::end_of(offset, len)).await?;
            self.below.extent(offset, len).await
        })
    }

    fn watcher(&self) -> Option<&dyn StepWatcher> {
        Some(self)
    }
}
