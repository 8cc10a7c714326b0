//! Something else is put into a disk while requests run.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use block::{Blame, Block, BlockFuture, Filter};
use serde_json::{Value, json};
use storage::{IoBuf, IoBytes, IoVec};

use super::*;
use crate::Disk;

const SIZE: u64 = 1 << 20;
const STEP: u64 = 64 << 10;

/// A graph, and a directory for the files of its disks.
struct World {
    graph: Graph,
    directory: tempfile::TempDir,
}

fn with_world(test: impl AsyncFnOnce(&World)) {
    let world = World { graph: Graph::new(OpenRules::default()), directory: tempfile::tempdir().unwrap() };
    let reactor = reactor::Reactor::new(reactor::available()).unwrap();
    reactor.run(test(&world));
}

impl World {
    /// A raw file of which every byte is `value`.
    fn raw_file(&self, name: &str, value: u8) -> Value {
        let path = self.directory.path().join(name);
        std::fs::write(&path, vec![value; SIZE as usize]).unwrap();
        json!({ "driver": "raw", "node-name": name, "file": { "driver": "file", "filename": path } })
    }

    /// A qcow2 file that has nothing of its own, with the image below as options say it.
    async fn image_file(&self, name: &str, backing: Value) -> Value {
        let path = self.directory.path().join(name);
        std::fs::File::create(&path).unwrap();
        let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
        let created = qcow2::CreateOptions { size: SIZE, ..qcow2::CreateOptions::default() };
        qcow2::create(&file, None, &created).await.unwrap();
        let file = json!({ "driver": "file", "filename": path });
        json!({ "driver": "qcow2", "node-name": name, "file": file, "backing": backing })
    }

    async fn add(&self, options: Value) -> Arc<Disk> {
        let added = self.graph.add(&self.graph.change().await, options.as_object().unwrap()).await.unwrap();
        Arc::clone(&added.disk().unwrap().disk)
    }

    async fn opened(&self, mut options: Value) -> Put {
        options.as_object_mut().unwrap().remove("node-name");
        let change = self.graph.change().await;
        Put::Opened(self.graph.open_layers(&change, options.as_object().unwrap()).await.unwrap())
    }

    async fn replace(&self, edge: Edge, put: Put) -> Result<Replaced, ReplaceError> {
        let change = self.graph.change().await;
        self.graph.replace(&change, "d", edge, put, async || Ok(())).await
    }

    async fn refused(&self, edge: Edge, put: Put) -> String {
        let names = layer_names(&self.graph.disk("d").unwrap().disk);
        let refused = self.replace(edge, put).await.map(drop).expect_err("it is refused").to_string();
        assert_eq!(layer_names(&self.graph.disk("d").unwrap().disk), names);
        refused.replace(&format!("{}/", self.directory.path().display()), "")
    }

    /// Whether somebody holds the file's lock so that nobody else may write.
    async fn is_locked(&self, name: &str) -> bool {
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

fn over(put: Put) -> Put {
    match put {
        Put::Opened(opened) => Put::Over(opened),
        _ => panic!("not opened layers"),
    }
}

fn read_only(mut options: Value) -> Value {
    options["read-only"] = json!(true);
    options
}

fn layer_names(disk: &Disk) -> Vec<String> {
    let last = |name: &str| name.rsplit('/').next().unwrap().to_owned();
    block::layers(disk.root()).map(|layer| last(layer.name())).collect()
}

/// The one value of the range.
async fn value_at(disk: &Disk, offset: u64, len: u64) -> u8 {
    let (result, buf) = disk.read(offset, IoBuf::uninit(len as usize)).await;
    result.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a torn read: {} and others", buf[0]);
    let mut inline = vec![0; len as usize];
    if disk.try_read(offset, &mut inline) == Some(block::ReadKind::Data) {
        assert!(inline.iter().all(|byte| *byte == inline[0]), "a torn read inline");
    }
    buf[0]
}

async fn write(disk: &Disk, offset: u64, value: u8) {
    disk.write(offset, IoVec::from(IoBytes::copy_from(&[value; STEP as usize])), false).await.unwrap();
}

/// Readers and writers, until [`Load::end`]. Every writer has a range of its own, and finds there what it wrote last.
struct Load {
    done: Rc<Cell<bool>>,
    tasks: Vec<reactor::Task<(u64, u8)>>,
}

impl Load {
    fn on(disk: &Arc<Disk>) -> Self {
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
    async fn end(self) -> Vec<(u64, u8)> {
        self.done.set(true);
        let mut held = Vec::new();
        for task in self.tasks {
            held.push(task.await);
        }
        held
    }
}

async fn a_while() {
    for _ in 0..30 {
        reactor::yield_now().await;
    }
}

#[test]
fn requests_before_an_exchange_see_the_old_disk_and_those_after_it_the_new_one() {
    with_world(async |world| {
        let disk = world.add(world.raw_file("d", 1)).await;
        world.add(world.raw_file("t", 2)).await;
        let done = Rc::new(Cell::new(false));
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let (disk, done) = (Arc::clone(&disk), Rc::clone(&done));
                reactor::spawn(async move {
                    let mut seen = Vec::new();
                    while !done.get() {
                        seen.push(value_at(&disk, reader * STEP, 3 * STEP).await);
                        reactor::yield_now().await;
                    }
                    seen
                })
            })
            .collect();
        a_while().await;
        let looked = Cell::new(0);
        let change = world.graph.change().await;
        let last_look = async || {
            let (result, buf) = disk.root().read(0, IoBuf::uninit(10)).await;
            result?;
            looked.set(buf[0]);
            Ok(())
        };
        let replaced =
            world.graph.replace(&change, "d", Edge::Root, Put::Node("t".into()), last_look).await.unwrap();
        assert_eq!(looked.get(), 1, "the last look is at the old disk");
        assert_eq!(value_at(&disk, 0, SIZE).await, 2);
        a_while().await;
        done.set(true);
        for reader in readers {
            let seen = reader.await;
            assert!(seen.starts_with(&[1]) && seen.ends_with(&[2]) && seen.is_sorted(), "{seen:?}");
        }
        // The other node is gone, and its file locked on by this one; the old file is free once it is closed.
        assert_eq!(world.graph.node("t").unwrap_err().to_string(), "there is no device or node \"t\"");
        assert!(world.graph.disk("d").unwrap().path().ends_with("t"));
        assert!(world.is_locked("t").await && world.is_locked("d").await);
        assert_eq!(replaced.removed.names().count(), 1);
        replaced.removed.close().await.unwrap();
        assert!(world.is_locked("t").await && !world.is_locked("d").await);
    });
}

#[test]
fn an_overlay_is_put_over_a_disk_at_work_and_no_write_is_lost() {
    with_world(async |world| {
        let base = world.image_file("d", Value::Null).await;
        let disk = world.add(base).await;
        let load = Load::on(&disk);
        for overlay in ["o1", "o2"] {
            a_while().await;
            let opened = world.opened(world.image_file(overlay, Value::Null).await).await;
            let replaced = world.replace(Edge::Root, over(opened)).await.unwrap();
            assert_eq!(replaced.removed.names().count(), 0, "what is below is still needed");
        }
        assert_eq!(layer_names(&disk), ["o2", "o1", "d"]);
        a_while().await;
        let held = load.end().await;
        for (offset, value) in &held {
            assert_eq!(value_at(&disk, *offset, STEP).await, *value);
        }
        // Every layer is closed in order: no file needs a repair, and together they hold everything.
        let change = world.graph.change().await;
        world.graph.remove(&change, "d").await.unwrap();
        drop(change);
        drop(disk);
        let mut chain = json!(null);
        for name in ["d", "o1", "o2"] {
            let path = world.directory.path().join(name);
            let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
            let report = qcow2::check(&file, qcow2::Repair::None, &mut |_| ()).await.unwrap();
            assert!(report.is_clean(), "{name}: {report:?}");
            chain = json!({ "driver": "qcow2", "file": { "driver": "file", "filename": path }, "backing": chain });
        }
        chain["node-name"] = json!("again");
        let again = world.add(chain).await;
        for (offset, value) in &held {
            assert_eq!(value_at(&again, *offset, STEP).await, *value);
        }
    });
}

#[test]
fn layers_between_two_others_leave_a_disk_at_work() {
    with_world(async |world| {
        let bottom = world.raw_file("bottom", 3);
        let without_name = |mut options: Value| {
            options.as_object_mut().unwrap().remove("node-name");
            options
        };
        let middle = world.image_file("middle", without_name(bottom)).await;
        let upper = world.image_file("upper", without_name(middle)).await;
        let disk = world.add(world.image_file("d", without_name(upper)).await).await;
        assert_eq!(value_at(&disk, 0, SIZE).await, 3);
        assert!(world.is_locked("upper").await && world.is_locked("middle").await);
        let load = Load::on(&disk);
        a_while().await;
        let replaced = world.replace(Edge::Backing { of: 0 }, Put::Layer(2)).await.unwrap();
        assert_eq!(layer_names(&disk), ["d", "middle", "bottom"]);
        replaced.removed.close().await.unwrap();
        assert!(!world.is_locked("upper").await && world.is_locked("middle").await);
        // What is below the middle changes for the images above it, too.
        let other = world.opened(read_only(world.raw_file("other", 4))).await;
        let replaced = world.replace(Edge::Backing { of: 1 }, other).await.unwrap();
        replaced.removed.close().await.unwrap();
        assert_eq!(value_at(&disk, SIZE / 2, SIZE / 2).await, 4);
        assert!(world.is_locked("other").await && !world.is_locked("bottom").await);
        world.replace(Edge::Backing { of: 0 }, Put::Nothing).await.unwrap().removed.close().await.unwrap();
        assert_eq!(value_at(&disk, SIZE / 2, SIZE / 2).await, 0);
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
        assert_eq!(layer_names(&disk), ["d"]);
    });
}

/// A filter that refuses what is written where it says.
#[derive(Debug)]
struct Guarded(Arc<dyn Block>);

impl Filter for Guarded {
    fn driver(&self) -> &'static str {
        "guarded"
    }

    fn over(&self) -> &Arc<dyn Block> {
        &self.0
    }

    fn write(&self, offset: u64, data: IoVec) -> BlockFuture<'_, Result<(), block::Error>> {
        match offset {
            0 => Box::pin(async { Err(Blame::new("guard").refused("not here")) }),
            _ => self.0.write(offset, data),
        }
    }
}

#[test]
fn a_filter_is_put_over_a_disk_at_work_and_taken_away() {
    with_world(async |world| {
        let disk = world.add(world.raw_file("d", 1)).await;
        let bytes = || IoVec::from(IoBytes::copy_from(&[9; 512]));
        let filter = Put::Filter(Box::new(|below| Arc::new(Guarded(below))));
        assert_eq!(world.replace(Edge::Root, filter).await.unwrap().removed.names().count(), 0);
        assert_eq!(disk.write(0, bytes(), false).await.unwrap_err().to_string(), "guard: not here");
        disk.write(512, bytes(), false).await.unwrap();
        let replaced = world.replace(Edge::Root, Put::Layer(1)).await.unwrap();
        assert_eq!(replaced.removed.names().count(), 1);
        drop(replaced);
        disk.write(0, bytes(), false).await.unwrap();
        assert_eq!(value_at(&disk, 0, 1024).await, 9);
    });
}

#[test]
fn what_cannot_stand_there_is_refused_and_nothing_changes() {
    with_world(async |world| {
        let below = |mut options: Value| {
            options.as_object_mut().unwrap().remove("node-name");
            options
        };
        let base = below(world.raw_file("base", 1));
        let disk = world.add(world.image_file("d", base).await).await;
        world.add(world.raw_file("t", 2)).await;
        let backing = Edge::Backing { of: 0 };
        assert_eq!(world.refused(Edge::Root, Put::Nothing).await, "node \"d\" needs a layer to stand on");
        assert_eq!(world.refused(backing, Put::Layer(0)).await, "d would lie below itself");
        assert_eq!(
            world.refused(Edge::Backing { of: 7 }, Put::Nothing).await,
            "node \"d\" has 2 layers, and none 7 down"
        );
        assert_eq!(
            world.refused(Edge::Backing { of: 1 }, Put::Nothing).await,
            "base is a block of driver raw, which has no backing layer"
        );
        assert_eq!(
            world.refused(Edge::Root, Put::Layer(1)).await,
            "base is open for reading, and the disk is written"
        );
        assert_eq!(
            world.refused(backing, Put::Node("t".into())).await,
            "t is open for writing; open it with read-only to put it below an image"
        );
        let hold = world.graph.hold("t", User { kind: "job", name: "j".into() }).unwrap();
        assert_eq!(
            world.refused(Edge::Root, Put::Node("t".into())).await,
            "node \"t\" is in use by job \"j\""
        );
        drop(hold);
        assert_eq!(
            world.refused(Edge::Root, Put::Node("x".into())).await,
            "there is no device or node \"x\""
        );
        let small = world.directory.path().join("small");
        std::fs::write(&small, vec![0; 512]).unwrap();
        let small = json!({ "driver": "raw", "file": { "driver": "file", "filename": small } });
        assert_eq!(
            world.refused(Edge::Root, world.opened(small).await).await,
            "small has 512 bytes, and the disk 1048576"
        );
        let same = json!({ "driver": "qcow2", "read-only": true, "force-share": true, "backing": null,
            "file": { "driver": "file", "filename": world.directory.path().join("d"), "locking": "off" } });
        assert_eq!(world.refused(backing, world.opened(same).await).await, "d would lie below itself");
        let chain = world.image_file("over", read_only(below(world.raw_file("o", 1)))).await;
        assert_eq!(
            world.refused(Edge::Root, over(world.opened(chain).await)).await,
            "over has a backing layer of its own; open it with an empty backing"
        );
        // All of them are free again, and the disk works.
        for name in ["small", "over", "o"] {
            assert!(!world.is_locked(name).await, "{name}");
        }
        assert_eq!(value_at(&disk, 0, SIZE).await, 1);
    });
}

/// Polls `future` that often, and drops it where it is then, if it has not ended.
async fn polled<T>(future: impl Future<Output = T>, mut times: u32) -> Option<T> {
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

#[test]
fn an_exchange_that_fails_or_is_dropped_anywhere_leaves_the_old_disk_whole() {
    with_world(async |world| {
        let base = world.image_file("d", Value::Null).await;
        let disk = world.add(base).await;
        world.add(world.image_file("t", Value::Null).await).await;
        let change = world.graph.change().await;
        let root = disk.root();
        let load = Load::on(&disk);
        let mut dropped = 0;
        for times in 0.. {
            let last_look = async || {
                reactor::yield_now().await;
                // What the job that does this has written last: the disks are the same.
                for range in 0..4 {
                    let (result, buf) = root.read(range * STEP, IoBuf::uninit(STEP as usize)).await;
                    result?;
                    let target = world.graph.disk("t").unwrap();
                    target.disk.root().write(range * STEP, IoVec::from(buf.freeze())).await?;
                }
                match times % 2 {
                    0 => Ok(()),
                    _ => Err(Blame::new("job").refused("not yet")),
                }
            };
            let replacing = world.graph.replace(&change, "d", Edge::Root, Put::Node("t".into()), last_look);
            match polled(replacing, times).await {
                None => dropped += 1,
                Some(Err(ReplaceError::Before(error))) => assert_eq!(error.to_string(), "job: not yet"),
                Some(Err(other)) => panic!("{other}"),
                Some(Ok(replaced)) => {
                    replaced.removed.close().await.unwrap();
                    break;
                }
            }
            assert!(Arc::ptr_eq(&disk.root(), &root), "dropped after {times} polls");
            assert!(world.graph.node("t").is_ok());
            // Requests go on.
            write(&disk, 8 * STEP, times as u8).await;
            assert_eq!(value_at(&disk, 8 * STEP, STEP).await, times as u8);
        }
        assert!(dropped > 5, "it was dropped at {dropped} places");
        assert!(!Arc::ptr_eq(&disk.root(), &root) && world.graph.node("t").is_err());
        for (offset, value) in load.end().await {
            assert_eq!(value_at(&disk, offset, STEP).await, value);
        }
    });
}
