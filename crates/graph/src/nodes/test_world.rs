//! A graph with disks in a directory of its own, and requests to them, for tests of what happens beside requests.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use serde_json::{Value, json};
use storage::{Hints, IoBuf, IoBytes, IoVec};

use super::{Edge, Graph, Put, ReplaceError, Replaced};
use crate::{Disk, OpenRules};

pub(super) const SIZE: u64 = 1 << 20;
pub(super) const STEP: u64 = 64 << 10;

/// A graph, and a directory for the files of its disks.
pub(super) struct World {
    pub(super) graph: Graph,
    pub(super) directory: tempfile::TempDir,
}

pub(super) fn with_world(test: impl AsyncFnOnce(&World)) {
    let world = World { graph: Graph::new(OpenRules::default()), directory: tempfile::tempdir().unwrap() };
    let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
    reactor.run(test(&world));
}

impl World {
    /// A raw file of which every byte is `value`.
    pub(super) fn raw_file(&self, name: &str, value: u8) -> Value {
        let path = self.directory.path().join(name);
        std::fs::write(&path, vec![value; SIZE as usize]).unwrap();
        json!({ "driver": "raw", "node-name": name, "file": { "driver": "file", "filename": path } })
    }

    /// A new qcow2 file without data. `backing` is the option of that name.
    pub(super) async fn image_file(&self, name: &str, backing: Value) -> Value {
        let path = self.directory.path().join(name);
        std::fs::File::create(&path).unwrap();
        let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
        let created = qcow2::CreateOptions { size: SIZE, ..qcow2::CreateOptions::default() };
        qcow2::create(&file, None, &created).await.unwrap();
        let file = json!({ "driver": "file", "filename": path });
        json!({ "driver": "qcow2", "node-name": name, "file": file, "backing": backing })
    }

    pub(super) async fn add(&self, options: Value) -> Arc<Disk> {
        let added = self.graph.add(&self.graph.change().await, options.as_object().unwrap()).await.unwrap();
        Arc::clone(&added.disk().unwrap().disk)
    }

    pub(super) async fn opened(&self, mut options: Value) -> Put {
        options.as_object_mut().unwrap().remove("node-name");
        let change = self.graph.change().await;
        Put::Opened(self.graph.open_layers(&change, options.as_object().unwrap()).await.unwrap())
    }

    pub(super) async fn replace(&self, edge: Edge, put: Put) -> Result<Replaced, ReplaceError> {
        let change = self.graph.change().await;
        self.graph.replace(&change, "d", edge, put, async || Ok(())).await
    }

    pub(super) async fn refused(&self, edge: Edge, put: Put) -> String {
        let names = layer_names(&self.graph.disk("d").unwrap().disk);
        let refused = self.replace(edge, put).await.map(drop).expect_err("it is refused").to_string();
        assert_eq!(layer_names(&self.graph.disk("d").unwrap().disk), names);
        refused.replace(&format!("{}/", self.directory.path().display()), "")
    }

    /// Whether the file's lock keeps writers out.
    pub(super) async fn is_locked(&self, name: &str) -> bool {
        let mut options = crate::options::DiskOptions::of_path(self.directory.path().join(name));
        let is_raw = !std::fs::read(&options.filename).unwrap().starts_with(b"QFI");
        options.layer.format = is_raw.then_some(crate::probe::Format::Raw);
        options.layer.backing = crate::options::Backing::None;
        match crate::open(&options, &OpenRules::default()).await {
            Ok(disk) => {
                disk.close().await.unwrap();
                false
            }
            Err(crate::OpenError::Lock { .. }) => true,
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

pub(super) fn read_only(mut options: Value) -> Value {
    options["read-only"] = json!(true);
    options
}

pub(super) fn layer_names(disk: &Disk) -> Vec<String> {
    let last = |name: &str| name.rsplit('/').next().unwrap().to_owned();
    block::layers(disk.root()).map(|layer| last(layer.name())).collect()
}

/// The one value of the range.
pub(super) async fn value_at(disk: &Disk, offset: u64, len: u64) -> u8 {
    let (result, buf) = disk.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a torn read: {} and others", buf[0]);
    let mut inline = vec![0; len as usize];
    if disk.try_read(offset, &mut inline, Hints::NONE) == Some(block::ReadKind::Data) {
        assert!(inline.iter().all(|byte| *byte == inline[0]), "a torn read inline");
    }
    buf[0]
}

pub(super) async fn write(disk: &Disk, offset: u64, value: u8) {
    // Not in the statement that awaits: the array would be a part of every task that writes, and of each stack that such a task is on.
    let data = IoVec::from(IoBytes::copy_from(&vec![value; STEP as usize]));
    disk.write(offset, data, false, Hints::NONE).await.unwrap();
}

/// Readers and writers, until [`Load::end`]. Every writer has a range of its own, and finds there what it wrote last.
pub(super) struct Load {
    pub(super) done: Rc<Cell<bool>>,
    pub(super) tasks: Vec<reactor::Task<(u64, u8)>>,
}

impl Load {
    pub(super) fn on(disk: &Arc<Disk>) -> Self {
        let done = Rc::new(Cell::new(false));
        let tasks = (0..4).map(|range| {
            let (disk, done) = (Arc::clone(disk), Rc::clone(&done));
            reactor::spawn(async move {
                let (offset, mut value) = (range * STEP, 10);
                while !done.get() || value == 10 {
                    value = value % 250 + 1;
                    write(&disk, offset, value).await;
                    assert_eq!(value_at(&disk, offset, STEP).await, value, "a write was lost");
                }
                (offset, value)
            })
        });
        Self { tasks: tasks.collect(), done }
    }

    /// What each range holds.
    pub(super) async fn end(self) -> Vec<(u64, u8)> {
        self.done.set(true);
        let mut held = Vec::new();
        for task in self.tasks {
            held.push(task.await);
        }
        held
    }
}

pub(super) async fn a_while() {
    for _ in 0..30 {
        reactor::yield_now().await;
    }
}

/// Polls `future` that often, and drops it where it is then, if it has not ended.
pub(super) async fn polled<T>(future: impl Future<Output = T>, mut times: u32) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if times == 0 => Poll::Ready(None),
        Poll::Pending => {
            times -= 1;
            Poll::Pending
        }
    })
    .await
}
