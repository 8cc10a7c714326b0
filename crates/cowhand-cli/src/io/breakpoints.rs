//! Requests that are held back: `break`, `remove_break`, `wait_break`, `resume`, on a disk over `blkdebug`.

use std::io::{self, Write};
use std::time::Duration;

use graph::{Disk, raw_of};
use storage::{Step, StepWatcher, Storage};
use tool::failure::Failure;

use super::failed::Failed;
use super::report::words_of;

/// Time between two checks for suspended requests.
pub const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So many looks without any change mean that nothing changes any more: a second.
const LOOKS_MAX: u32 = 50;

/// Calls `work` with the watcher of the steps of the disk's image; `None` if there is none.
pub fn with_watcher<T>(disk: &Disk, work: impl FnOnce(&dyn StepWatcher) -> T) -> Option<T> {
    let root = disk.root();
    let watched = |storage: &dyn Storage| storage.watcher().map(work);
    match (raw_of(&*root), disk.image()) {
        (Some(raw), _) => watched(&*raw.storage),
        (None, Some(image)) => watched(&**image.file()),
        (None, None) => None,
    }
}

/// `break`: `words` are an event and a tag.
pub fn set(disk: &Disk, words: &[&str], out: &mut dyn Write) -> Result<(), Failed> {
    let (event, tag) =
        (words.first().copied().unwrap_or_default(), words.last().copied().unwrap_or_default());
    let step = Step::NAMED.iter().find(|(name, _)| *name == event).map(|(_, step)| *step);
    let done = match (step, with_watcher(disk, |_| ()).is_some()) {
        (_, false) => Err(libc::ENOTSUP),
        (None, true) => Err(libc::ENOENT),
        (Some(step), true) => Ok(with_watcher(disk, |watcher| watcher.set_breakpoint(step, tag))),
    };
    done.map(drop).or_else(|number| shown(out, &format!("Could not set breakpoint: {}", words_of(number))))
}

/// `remove_break`: `words` are a tag.
pub fn remove(disk: &Disk, words: &[&str], out: &mut dyn Write) -> Result<(), Failed> {
    let tag = words.first().copied().unwrap_or_default();
    match with_watcher(disk, |watcher| watcher.remove_breakpoint(tag)) {
        Some(true) => Ok(()),
        found => shown(out, &format!("Could not remove breakpoint {tag}: {}", why_not(found))),
    }
}

/// `resume`: `words` are a tag.
pub fn resume(disk: &Disk, words: &[&str], out: &mut dyn Write) -> Result<(), Failed> {
    let tag = words.first().copied().unwrap_or_default();
    match with_watcher(disk, |watcher| watcher.resume(tag)) {
        Some(true) => Ok(writeln!(out, "blkdebug: Resuming request '{tag}'")?),
        found => shown(out, &format!("Could not resume request: {}", why_not(found))),
    }
}

/// Resumes all requests: the disk is about to be closed.
pub fn resume_all(disk: &Disk) {
    with_watcher(disk, |watcher| {
        watcher.held_back().iter().for_each(|tag| {
            watcher.remove_breakpoint(tag);
        });
    });
}

fn why_not(found: Option<bool>) -> String {
    words_of(if found.is_some() { libc::ENOENT } else { libc::ENOTSUP })
}

fn shown(out: &mut dyn Write, line: &str) -> Result<(), Failed> {
    writeln!(out, "{line}")?;
    Err(Failed::Shown)
}

/// Suspended requests, checked periodically.
#[derive(Debug, Default)]
pub struct Watch {
    /// Tags that were reported.
    known: Vec<String>,
    requests: (u64, usize),
    looks: u32,
}

impl Watch {
    /// Prints requests that were suspended since the last call.
    pub fn look(&mut self, disk: &Disk, out: &mut dyn Write) -> io::Result<()> {
        let Some(held_back) = with_watcher(disk, |watcher| watcher.held_back()) else { return Ok(()) };
        for tag in held_back.iter().filter(|tag| !self.known.contains(tag)) {
            writeln!(out, "blkdebug: Suspended request '{tag}'")?;
        }
        self.known = held_back;
        Ok(())
    }

    /// Whether a request called `tag` is held back, as of the last look.
    pub fn is_held_back(&self, tag: &str) -> bool {
        self.known.iter().any(|known| known == tag)
    }

    /// Fails once nothing has happened for a second, while requests are held back, but waiting.
    pub fn check(&mut self, disk: &Disk) -> Result<(), Failure> {
        let requests = with_watcher(disk, |watcher| watcher.requests()).unwrap_or_default();
        let stands = !self.known.is_empty() && requests.1 == 0 && requests == self.requests;
        self.requests = requests;
        self.looks = if stands { self.looks + 1 } else { 0 };
        match self.looks < LOOKS_MAX {
            true => Ok(()),
            false => {
                self.looks = 0;
                let what = format!("it waits for a request that is held back: {}", self.known.join(", "));
                Err(Failure::new(what).with_hint("resume it first"))
            }
        }
    }
}
