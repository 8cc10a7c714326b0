//! Loops that run in the background, with doors to disks in memory.

pub mod line_door;
pub mod memory_export;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use export::{Exports, Loops, Shutdown};
use line_door::LineDoor;
use memory_export::MemoryExport;

/// Two loops.
pub struct Running {
    pub loops: Arc<Loops>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Running {
    pub fn start() -> Self {
        Self::with_grace(export::limits::SHUTDOWN_GRACE_DEFAULT)
    }

    pub fn with_grace(grace: Duration) -> Self {
        let loops = Loops::with_grace(2, Shutdown::new(), grace);
        let running = Arc::clone(&loops);
        let thread = std::thread::spawn(move || running.run(reactor::Backend::Ring));
        Self { loops, thread: Some(thread) }
    }

    /// A door to `disk`, under the name "disk".
    pub fn door(&self, disk: &Arc<MemoryExport>) -> LineDoor {
        let exports = Exports::new();
        let disk: Arc<dyn export::Export> = Arc::clone(disk) as _;
        exports.add("disk", "", disk).expect("the first export");
        LineDoor::new(&self.loops, exports)
    }

    /// Waits for the loops to end; `Err` if one panicked.
    pub fn ended(&mut self) -> std::thread::Result<()> {
        let thread = self.thread.take().expect("loops that run");
        thread.join().map(|ended| ended.expect("event loops"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.loops.shutdown().trigger();
        // A test that fails is reported first.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

pub fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}
