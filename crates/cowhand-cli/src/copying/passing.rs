//! Files that a copy reads from end to end: what was not in the page cache before is dropped from it again.

use std::convert::Infallible;
use std::fs::File;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use graph::Disk;
use rustix::fs::{Advice, SeekFrom, fadvise, seek};

/// How often pages go: often enough that few are there at a time, seldom enough that what is read ahead of the copy is not lost.
const LET_GO: Duration = Duration::from_millis(300);

/// Places of a file that are checked for being in the page cache.
const LOOKS: u64 = 32;

/// The files.
#[derive(Debug)]
pub struct Passing(Vec<Arc<File>>);

impl Passing {
    /// The files of `disks` and of their backing files that are mostly not in the page cache now.
    pub fn of(disks: &[Arc<Disk>]) -> Self {
        let mut files = Vec::new();
        for disk in disks {
            let layers = std::iter::successors(Some(disk.root()), |layer| layer.below());
            let opened = layers.filter_map(|layer| File::open(Path::new(layer.name())).ok());
            files.extend(opened.filter(is_cold).map(Arc::new));
        }
        Self(files)
    }

    /// No file.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Whether all was in the page cache, as far as that is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs `reading`.
    pub async fn while_read<T>(&self, reading: impl Future<Output = T>) -> T {
        let read = match select(pin!(reading), pin!(self.let_go_again_and_again())).await {
            Either::Left((read, _)) => read,
            Either::Right((never, _)) => match never {},
        };
        self.let_go().await;
        read
    }

    async fn let_go_again_and_again(&self) -> Infallible {
        if self.is_empty() {
            return std::future::pending().await;
        }
        loop {
            reactor::sleep(LET_GO).await;
            self.let_go().await;
        }
    }

    async fn let_go(&self) {
        for file in &self.0 {
            let file = Arc::clone(file);
            // Advice that is not taken changes nothing.
            reactor::blocking(move || fadvise(&*file, 0, None, Advice::DontNeed)).await.ok();
        }
    }
}

/// Whether most of a file's data is not in the page cache. Of what says nothing of that (a file in memory, a device) it is not said.
fn is_cold(file: &File) -> bool {
    let Ok(found) = file.metadata() else { return false };
    if !found.is_file() || found.len() == 0 {
        return false;
    }
    let (mut cold, mut warm) = (0, 0);
    for look in 0..LOOKS {
        let Ok(at) = seek(file, SeekFrom::Data(found.len() / LOOKS * look)) else { break };
        match storage::is_cached(file, at) {
            Ok(true) => warm += 1,
            Ok(false) => cold += 1,
            Err(_) => return false,
        }
    }
    cold > warm
}
