//! Adding nodes.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::active::without_active;
use super::description::Described;
use super::description_error::DescriptionError;
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter::text;
use super::name::{MadeNames, check_node_name};
use super::node::{Node, NodeKind, NodeLinks};
use super::{Change, Graph};
use crate::background::BackgroundTasks;
use crate::bitmaps_file::bitmaps_of;
use crate::drive::OptionTree;
use crate::drivers::{Driver, StorageDriver, driver};
use crate::fd_sets::{FdSetError, FdSets};
use crate::layers::{Layer, LayerFiles, OpenedLayers};
use crate::links::Links;
use crate::locks_ahead::LockAhead;
use crate::open::{open, open_layers};
use crate::options::DiskOptions;

/// The same, to be opened with nothing below.
fn without_backing(options: &Map<String, Value>) -> Map<String, Value> {
    let mut options = options.clone();
    options.insert("backing".to_owned(), Value::Null);
    options
}

impl Graph {
    /// Puts in a disk that is open.
    ///
    /// # Errors
    /// When its name is in use.
    pub fn add_disk(&self, _change: &Change<'_>, disk: DiskNode) -> Result<Arc<Node>, NodeError> {
        self.insert(Node::new(disk.name(), NodeKind::Disk(Arc::new(disk))))
    }

    /// Adds what `options` describe; they have the names and types of QMP's blockdev-add. Runs on a loop, on which what
    /// runs beside the requests of a disk begins.
    ///
    /// # Errors
    /// When a name is in use or leads nowhere, or the disk cannot be opened.
    pub async fn add(
        &self,
        change: &Change<'_>,
        options: &Map<String, Value>,
    ) -> Result<Arc<Node>, NodeError> {
        check_node_name(text(options, "node-name")?)?;
        self.add_generated(change, options).await
    }

    /// The same, also under a name of [`Graph::make_name`].
    ///
    /// # Errors
    /// As [`Graph::add`].
    pub async fn add_generated(
        &self,
        _change: &Change<'_>,
        options: &Map<String, Value>,
    ) -> Result<Arc<Node>, NodeError> {
        let name = text(options, "node-name")?;
        let (options, is_active) = without_active(options);
        match is_active {
            true => self.add_named(name.to_owned(), &options, false).await,
            false => self.add_inactive(name.to_owned(), &options).await,
        }
    }

    pub(super) async fn add_named(
        &self,
        name: String,
        options: &Map<String, Value>,
        implicit: bool,
    ) -> Result<Arc<Node>, NodeError> {
        // Looked at before anything is opened, and again when it is put in.
        self.check_free(&name)?;
        let found = text(options, "driver")?;
        let mut made = Vec::new();
        let below = (implicit, &mut made);
        let added = match driver(found) {
            Some(Driver::Storage(driver)) => self.add_storage(name, driver, options, below).await,
            Some(Driver::Format) => self.add_opened(name, options, below).await,
            Some(Driver::Filter(driver)) => Box::pin(self.add_filter(name, driver, options, below)).await,
            Some(Driver::Throttle) => self.add_throttle(name, options, below).await,
            None => Err(DescriptionError::UnknownDriver { found: found.to_owned() }.into()),
        };
        if added.is_err() {
            self.unmake(&made).await;
        }
        added
    }

    async fn add_storage(
        &self,
        name: String,
        driver: &StorageDriver,
        options: &Map<String, Value>,
        (implicit, made): (bool, &mut Vec<Arc<Node>>),
    ) -> Result<Arc<Node>, NodeError> {
        let file = self.make_file(&Value::Object(options.clone()), false, made).await?;
        let options = file.as_object().unwrap_or(options);
        check_file(options).await?;
        self.add_file(name, driver, options, implicit)
    }

    fn add_file(
        &self,
        name: String,
        driver: &StorageDriver,
        options: &Map<String, Value>,
        implicit: bool,
    ) -> Result<Arc<Node>, NodeError> {
        if !driver.is_of_paths() {
            // What it names is there before it, and stays as long as it does: so no file is below itself.
            let links = self.below_file(driver, options)?;
            self.check_alone(&links.files, &links.uses)?;
            let links = NodeLinks::new(links);
            return self.insert(Node { links, implicit, ..Node::new(name, NodeKind::File(options.clone())) });
        }
        let path = options.get("filename").and_then(Value::as_str).unwrap_or_default();
        // Nothing is opened yet, but a file that does not exist is reported at once.
        match FdSets::number(path.as_ref()).transpose()? {
            Some(set) if self.rules.fd_sets.contains(set) => {}
            Some(set) => return Err(FdSetError::NoSet { set }.into()),
            None => {
                let found = std::fs::metadata(path);
                found.map_err(|source| NodeError::Find { path: path.to_owned(), source })?;
            }
        }
        self.insert(Node { implicit, ..Node::new(name, NodeKind::File(options.clone())) })
    }

    async fn add_opened(
        &self,
        name: String,
        options: &Map<String, Value>,
        (implicit, made): (bool, &mut Vec<Arc<Node>>),
    ) -> Result<Arc<Node>, NodeError> {
        let options = &self.make_below(options, made).await?;
        let below = self.changing_backing(options);
        let described = match below {
            Some(_) => self.describe_named(&without_backing(options))?,
            None => self.describe_named(options)?,
        };
        let node = Arc::new(self.open_disk(name.clone(), described.tree).await?);
        let disk = Arc::clone(&node.disk);
        let stands_on = match below {
            Some(below) => match self.put_over_changing(&node, &below).await {
                Ok(hold) => Some(hold),
                Err(error) => {
                    // Nothing was written.
                    let _ = disk.close().await;
                    return Err(error);
                }
            },
            None => None,
        };
        let mut links = described.links;
        links.parts.extend(made_names(&disk.layers().list, &links));
        let (kind, links) = (NodeKind::Disk(node), NodeLinks::new(links));
        let stands_on = Mutex::new(stands_on);
        let node = self.insert(Node { links, implicit, stands_on, ..Node::new(name, kind) })?;
        disk.start_upkeep();
        Ok(node)
    }

    /// As [`Graph::describe`], with parts whose names they may have.
    fn describe_named(&self, options: &Map<String, Value>) -> Result<Described, NodeError> {
        let described = self.describe(options)?;
        described.links.parts.iter().try_for_each(|part| check_node_name(part))?;
        self.check_alone(&described.links.files, &described.links.uses)?;
        Ok(described)
    }

    /// Opens what `options` describe (names and types are blockdev-add's) for a disk that is there already: [`Graph::replace`] puts it
    /// there. Limits have no meaning in them.
    ///
    /// # Errors
    /// As [`Graph::add`].
    pub async fn open_layers(
        &self,
        _change: &Change<'_>,
        options: &Map<String, Value>,
    ) -> Result<OpenedLayers, NodeError> {
        let Described { tree, mut links } = self.describe_named(options)?;
        links.parts.iter().try_for_each(|part| self.check_free(part))?;
        let options = DiskOptions::of_tree(tree.clone())?;
        self.find_files(&options)?;
        let path = options.filename.clone();
        let failed = |source| NodeError::Open { path: path.clone(), source: Box::new(source) };
        let tasks = BackgroundTasks::new(Arc::clone(&self.rules.map_budget));
        let list = open_layers(&options, &self.rules, &tasks).await.map_err(failed)?;
        let bitmaps = list.first().and_then(|top| bitmaps_of(&*top.block));
        links.parts.extend(made_names(&list, &links));
        Ok(OpenedLayers { list, bitmaps, path, tree, links })
    }

    /// Locks a file as its writer does, before a path leads to it that this process is going to open: [`Graph::open_layers`] takes the lock over.
    ///
    /// # Errors
    /// When it is not there, or another process uses it.
    pub fn lock_ahead(&self, path: &Path) -> Result<LockAhead, NodeError> {
        let failed = |source| NodeError::Open { path: path.to_owned(), source: Box::new(source) };
        self.rules.locks_ahead.take(path).map_err(failed)
    }

    pub(super) async fn open_disk(&self, name: String, tree: OptionTree) -> Result<DiskNode, NodeError> {
        let options = DiskOptions::of_tree(tree.clone())?;
        let files = self.find_files(&options)?;
        let path = options.filename.clone();
        match open(&options, &self.rules).await {
            Ok(disk) => Ok(DiskNode::new(name, path, tree, disk).over(files)),
            Err(error) => Err(NodeError::Open { path, source: Box::new(error) }),
        }
    }
}

/// Names that were made for layers and their files. Those of the files of a node that is opened once more are that node's.
fn made_names(list: &[Arc<Layer>], links: &Links) -> Vec<String> {
    let mut names = Vec::new();
    for layer in list {
        let own = layer.own_name();
        if own.as_ref().is_some_and(|own| links.uses.contains(own)) {
            continue;
        }
        let files = layer.files.iter().flat_map(LayerFiles::names).map(|(_, name)| name);
        names.extend(own.into_iter().chain(files).filter(|name| MadeNames::is_made(name)));
    }
    names.retain(|name| !links.uses.contains(name) && !links.parts.contains(name));
    names
}

/// Checks the options of a bare file by opening it read-only as a raw disk. A bare file is opened for good
/// only when a disk is put over it; an error then would name neither the command nor the wrong option.
/// Options that cannot be parsed here are reported by that opening.
async fn check_file(options: &Map<String, Value>) -> Result<(), NodeError> {
    let mut file = options.clone();
    file.remove("node-name");
    let disk =
        [("driver", Value::from("raw")), ("read-only", Value::from(true)), ("file", Value::Object(file))];
    let disk = disk.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let Ok(disk) =
        OptionTree::of_json(disk).map_err(drop).and_then(|tree| DiskOptions::of_tree(tree).map_err(drop))
    else {
        return Ok(());
    };
    let mut next = Some(&disk.layer.file);
    while let Some(file) = next {
        let refused = |source| NodeError::Find { path: disk.filename.display().to_string(), source };
        if let Some(target) = &file.target {
            target.check().await.map_err(refused)?;
        }
        if let Some(over) = &file.over {
            over.by.check().map_err(refused)?;
        }
        next = file.over.as_ref().map(|over| &*over.below);
    }
    Ok(())
}
