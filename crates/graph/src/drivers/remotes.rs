//! What drivers of files on other machines do beside requests.

use std::fs::File;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use storage::Storage;

/// What is done beside requests for files on other machines.
#[derive(Clone, Copy, Debug)]
pub struct Remotes {
    /// What is to be read ahead of a file, if it is cached and that was not asked yet.
    pub take_hint: fn(&Arc<dyn Storage>) -> Option<Hint>,
    /// Waits until what caches fetched is durable: for a bounded time.
    pub settle: fn() -> Pin<Box<dyn Future<Output = ()>>>,
    /// A guest is going to read the file: what a start reads of it may be fetched.
    pub expect_guest: fn(&dyn Storage),
}

/// What is to be read ahead of a remote file.
#[derive(Debug)]
pub struct Hint {
    /// The file; reads of it wait while others wait for the server.
    pub file: Arc<dyn Storage>,
    /// More of it than this is not worth reading ahead: the cache would not keep it. `None`: any number of bytes.
    pub bytes_max: Option<u64>,
    /// What a read of the file fetches at least.
    pub piece_bytes: u64,
    /// What earlier starts read.
    pub trace: TraceFile,
}

/// The file that the option `prefetch-trace` names. It is opened with the disk, before the sandbox starts.
#[derive(Debug)]
pub struct TraceFile {
    /// Its path.
    pub path: PathBuf,
    /// The file.
    pub file: File,
}

impl Remotes {
    /// Of a program that has no such drivers.
    pub const NONE: Self = Self { take_hint: |_| None, settle: || Box::pin(async {}), expect_guest: |_| () };
}

static HANDED_IN: OnceLock<Remotes> = OnceLock::new();

pub(super) fn hand_in(remotes: Remotes) {
    let _ = HANDED_IN.set(remotes);
}

/// What this process does beside requests.
pub(crate) fn remotes() -> Remotes {
    #[cfg(test)]
    return crate::catalog::DRIVERS.remotes;
    #[cfg(not(test))]
    HANDED_IN.get().copied().unwrap_or(Remotes::NONE)
}
