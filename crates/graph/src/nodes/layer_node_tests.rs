//! Layers by their own names: a base that was added as a node becomes a layer, and a layer below a disk can
//! be read by its name.

use serde_json::{Value, json};
use std::sync::Arc;

use super::test_world::{STEP, World, layer_names, read_only, value_at, with_world, write};
use super::*;
use crate::Disk;

fn user(kind: &'static str) -> User {
    User { kind, name: "u".to_owned() }
}

impl World {
    /// The image `name`, open for writing, over what `backing` says.
    async fn image(&self, name: &str, backing: Value) -> Arc<Disk> {
        self.add(self.image_file(name, backing).await).await
    }

    async fn absorb(&self, name: &str) {
        self.graph.absorb_backing(&self.graph.change().await, name).await.unwrap();
    }

    async fn remove(&self, name: &str) -> Result<(), String> {
        let removed = self.graph.remove(&self.graph.change().await, name).await;
        removed.map(drop).map_err(|error| error.to_string())
    }

    async fn reopen(&self, options: Value) -> Result<(), String> {
        let reopened = self.graph.reopen(&self.graph.change().await, options.as_object().unwrap()).await;
        reopened.map_err(|error| error.to_string())
    }
}

/// Incus and autotest add base and overlay by name, the base without read-only: block-commit and block-stream found no base below the overlay.
#[test]
fn bases_that_were_added_by_name_become_layers_where_only_the_disk_uses_them() {
    with_world(async |world| {
        let base = world.image("base", Value::Null).await;
        write(&base, 0, 1).await;
        write(&base, STEP, 1).await;
        let mid = world.image("mid", json!("base")).await;
        write(&mid, STEP, 2).await;
        let top = world.image("top", json!("mid")).await;
        write(&top, 2 * STEP, 3).await;
        drop((base, mid));
        // Something else uses one of them.
        let hold = world.graph.hold("base", user("export")).unwrap();
        world.absorb("top").await;
        assert_eq!(world.graph.nodes().len(), 3, "nothing is absorbed while the base is exported");
        drop(hold);
        world.absorb("top").await;
        assert_eq!(layer_names(&top), ["top", "mid", "base"]);
        assert_eq!(world.graph.nodes().len(), 1);
        for (at, value) in [(0, 1), (STEP, 2), (2 * STEP, 3), (3 * STEP, 0)] {
            assert_eq!(value_at(&top, at, STEP).await, value);
        }
        world.absorb("top").await;
        assert!(world.remove("base").await.unwrap_err().contains("in use by node \"top\""));
        drop(top);
        world.remove("top").await.unwrap();
        for name in ["mid", "base"] {
            assert!(!world.is_locked(name).await);
            world.remove(name).await.unwrap();
        }
        assert!(world.graph.nodes().is_empty());
    });
}

/// A backup program names the node below a snapshot, which was the disk before: bitmaps, exports and backups of it were refused.
#[test]
fn a_layer_is_read_by_its_name_while_something_uses_it() {
    with_world(async |world| {
        let base = world.image("base", Value::Null).await;
        write(&base, 0, 1).await;
        let top = world.image("top", json!("base")).await;
        drop(base);
        world.absorb("top").await;
        write(&top, 0, 2).await;
        let layer = world.graph.disk("base").unwrap();
        assert_eq!((layer.driver(), layer.name()), ("qcow2", "base".to_owned()));
        assert!(layer.disk.read_only());
        assert_eq!(value_at(&layer.disk, 0, STEP).await, 1);
        assert_eq!(world.graph.layers("base").unwrap().len(), 1);
        let hold = world.graph.hold("base", user("export")).unwrap();
        assert!(Arc::ptr_eq(&world.graph.disk("base").unwrap(), &layer), "all that name it share one");
        assert!(world.remove("top").await.unwrap_err().contains("node \"base\" is in use by export \"u\""));
        // It follows the layer when that is opened in another way.
        let change = world.graph.change().await;
        world.graph.set_layer_access(&change, "top", 1, LayerAccess::Read).await.unwrap();
        assert_eq!(value_at(&layer.disk, 0, STEP).await, 1);
        let put = Put::Node("top".to_owned());
        let refused = world.graph.replace(&change, "base", Edge::Root, put, async || Ok(())).await;
        assert!(refused.unwrap_err().to_string().contains("is a layer of node \"top\""));
        drop(change);
        // An image over it reads it, too.
        let over = world.image("over", json!("base")).await;
        assert_eq!(value_at(&over, 0, STEP).await, 1);
        drop((over, layer, hold));
        world.remove("over").await.unwrap();
        let job = world.graph.hold("top", user("job")).unwrap();
        let held = world.graph.hold("base", user("export"));
        assert!(held.unwrap_err().to_string().contains("in use by job"), "the job may take it out");
        drop((job, top));
        world.remove("top").await.unwrap();
        assert!(world.graph.disk("base").unwrap_err().to_string().contains("is closed"));
    });
}

/// A commit into a base that a read-only export shows was refused. QEMU's daemon does it, and keeps the
/// export.
#[test]
fn a_base_that_exports_show_is_written_and_they_read_the_layer() {
    with_world(async |world| {
        let base = world.image_file("base", Value::Null).await;
        let shown = world.add(read_only(base)).await;
        let top = world.image("top", json!("base")).await;
        let hold = world.graph.hold("base", user("export")).unwrap();
        let change = world.graph.change().await;
        let disk = world.graph.disk("top").unwrap();
        let block = block::layers(top.root()).nth(1).unwrap();
        let written = world.graph.make_writable(&change, &disk, &block).await.unwrap();
        let data = storage::IoVec::from(storage::IoBytes::copy_from(&[7; 4096]));
        written.write(0, data, storage::Hints::NONE).await.unwrap();
        assert_eq!(value_at(&shown, 0, 4096).await, 7);
        assert_eq!(value_at(&top, 0, 4096).await, 7);
        drop(change);
        assert!(world.remove("top").await.unwrap_err().contains("in use by export"));
        drop((hold, shown, disk, top, block, written));
        world.remove("top").await.unwrap();
        assert!(!world.is_locked("base").await);
    });
}

#[test]
fn read_only_changes_while_a_node_or_an_image_below_one_is_open() {
    with_world(async |world| {
        let file = world.image_file("d", Value::Null).await;
        let disk = world.add(read_only(file.clone())).await;
        world.reopen(file.clone()).await.unwrap();
        write(&disk, 0, 5).await;
        world.reopen(read_only(file.clone())).await.unwrap();
        assert!(disk.read_only());
        assert_eq!(value_at(&disk, 0, STEP).await, 5);
        let path = world.directory.path().join("d");
        let lock = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let lock = Arc::new(std::os::fd::OwnedFd::from(lock));
        assert!(storage::FileLock::acquire_role(&lock, storage::Role::Reader).is_ok(), "others may read it");
        drop((disk, lock));
        world.remove("d").await.unwrap();
        // Below a disk, by its own name.
        let mut base = world.image_file("base", Value::Null).await;
        let top = world.image_file("top", base.clone()).await;
        let top = world.add(top).await;
        let is_read_only = || block::layers(top.root()).nth(1).unwrap().capabilities().read_only;
        for read_only in [false, true] {
            base["read-only"] = json!(read_only);
            base.as_object_mut().unwrap().remove("backing");
            world.reopen(base.clone()).await.unwrap();
            assert_eq!(is_read_only(), read_only);
        }
        drop(top);
        world.remove("top").await.unwrap();
    });
}
