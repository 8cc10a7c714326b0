//! How a disk is named and opened: from arguments and from the words of `open` and `reopen`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use graph::drive::{Entry, OptionTree};
use graph::drivers::format_called;
use graph::options::DiskOptions;
use graph::probe::Format;
use graph::{Disk, OpenRules};
use qcow2::CreateOptions;
use tool::create::options::NewImage;
use tool::failure::Failure;

use super::words::Words;
use crate::copying;
use crate::create::make;
use crate::drive::option_tree;
use storage::create_private;

/// The mode of caches unless said otherwise, as in qemu-io.
const CACHE_DEFAULT: &str = "writethrough";
/// What a discard does unless said otherwise, as in qemu-io.
const DISCARD_DEFAULT: &str = "unmap";

/// The filter that `-C` puts over the disk.
const COPY_ON_READ: &str = "copy-on-read";

/// How a disk is opened, beside what DRIVE says: that counts more.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// Its format, or another driver.
    pub format: Option<String>,
    /// Not for writing.
    pub read_only: bool,
    /// Writes go to an overlay that is removed afterwards.
    pub snapshot: bool,
    /// Also while another program writes it.
    pub force_share: bool,
    /// The cache mode.
    pub cache: Option<String>,
    /// What a discard does.
    pub discard: Option<String>,
    /// How requests reach the kernel.
    pub aio: Option<String>,
    /// What is read from below the image is kept in it.
    pub copy_on_read: bool,
}

/// A disk that is open, and how that came.
#[derive(Debug)]
pub struct Opened {
    /// The disk.
    pub disk: Arc<Disk>,
    tree: OptionTree,
    /// Writes go to an overlay without a name: it cannot be opened again.
    snapshot: bool,
    /// The driver of a file that was opened without a format.
    pub bare: Option<String>,
}

impl Manner {
    /// Parses the arguments of `open`: flags, options and DRIVE. At least options or a DRIVE must be given.
    ///
    /// # Errors
    /// When they say nothing that can be opened.
    pub fn of_words(words: &[&str]) -> Result<(Self, OptionTree), Failure> {
        let words = Words::parse(words, "Cd:i:kno:rst:U")?;
        words.at_most(1)?;
        if words.has('k') {
            return Err(Failure::new("open -k is not supported here"));
        }
        let text = |letter| words.value(letter).map(str::to_owned);
        let manner = Self {
            format: None,
            read_only: words.has('r'),
            snapshot: words.has('s'),
            force_share: words.has('U'),
            cache: text('t').or_else(|| words.has('n').then(|| "none".to_owned())),
            discard: text('d'),
            aio: text('i'),
            copy_on_read: words.has('C'),
        };
        let exists = |path: &Path| path.symlink_metadata().is_ok();
        let mut tree = match words.operands.first() {
            Some(drive) => Some(option_tree(&OsString::from(drive), exists)?),
            None => None,
        };
        for options in words.values('o') {
            let tree = tree.get_or_insert_default();
            tree.replace_all(OsStr::new(options)).map_err(|error| unreadable(options, &error))?;
        }
        let tree =
            tree.ok_or_else(|| Failure::new("open needs a DRIVE, or options that name a file (-o)"))?;
        Ok((manner, tree))
    }

    /// Puts what DRIVE does not say into `tree`.
    fn complete(&self, tree: &mut OptionTree) {
        let on = |given: bool| given.then_some("on");
        // What DRIVE names is read by such a driver as it is.
        let is_format = |name: &&str| format_called(name).is_some() || !graph::drivers::is_storage(name);
        let format =
            self.format.as_deref().map(|name| Some(name).filter(is_format).unwrap_or(Format::Raw.name()));
        let given = [
            ("driver", format),
            ("read-only", on(self.read_only)),
            ("force-share", on(self.force_share)),
            ("cache", Some(self.cache.as_deref().unwrap_or(CACHE_DEFAULT))),
            ("discard", Some(self.discard.as_deref().unwrap_or(DISCARD_DEFAULT))),
            ("aio", self.aio.as_deref()),
        ];
        for (name, value) in given {
            let is_given = tree.names().any(|given| given == name || (name == "driver" && given == "format"));
            if let (Some(value), false) = (value, is_given) {
                // It is not there, so it cannot be there twice.
                let _ = tree.insert(name, Entry::Value(value.into()));
            }
        }
    }

    /// Opens the disk that `tree` describes.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(&self, mut tree: OptionTree, rules: &OpenRules) -> Result<Opened, Failure> {
        if !self.snapshot {
            self.complete(&mut tree);
            let asked = matches!(tree.take("copy-on-read"), Some(Entry::Value(value)) if value == "on");
            if self.copy_on_read || asked {
                if self.read_only {
                    return Err(Failure::new(
                        "-C keeps what is read in the image, and -r has it stay as it is; give one of them",
                    ));
                }
                let below = std::mem::take(&mut tree);
                let over = tree.insert("driver", Entry::Value(COPY_ON_READ.into()));
                over.and_then(|()| tree.insert("file", Entry::Tree(below)))
                    .map_err(|error| unreadable("-C", &error))?;
            }
            if self.read_only && tree.driver().as_deref() == Some(COPY_ON_READ) {
                return Err(Failure::new(
                    "copy-on-read writes what it reads, and -r has the disk stay as it is",
                ));
            }
            let named = self.format.clone().or_else(|| tree.driver());
            let bare = named.filter(|driver| graph::drivers::is_storage(driver));
            let disk = open(&tree, rules).await?;
            return Ok(Opened { disk, tree, snapshot: false, bare });
        }
        let overlay = Overlay::over(self, tree, rules).await?;
        let disk = open(&overlay.tree, rules).await?;
        Ok(Opened { disk, tree: overlay.tree.clone(), snapshot: true, bare: None })
    }
}

impl Opened {
    /// The options with which `words` of `reopen` want it opened.
    ///
    /// # Errors
    /// When they contradict each other, or change what stays as it is.
    pub fn changed(&self, words: &[&str]) -> Result<OptionTree, Failure> {
        let words = Words::parse(words, "c:o:rw")?;
        words.at_most(0)?;
        if self.snapshot {
            return Err(Failure::new("a disk that was opened with -s cannot be opened again"));
        }
        let mut tree = self.tree.clone();
        let read_only = match (words.has('r'), words.has('w')) {
            (true, true) => return Err(Failure::new("give one of -r and -w")),
            (true, false) => Some("on"),
            (false, true) => Some("off"),
            (false, false) => None,
        };
        let cache = words.value('c').map(|mode| ("cache", mode));
        for (name, value) in read_only.map(|on| ("read-only", on)).into_iter().chain(cache) {
            tree.replace(name, value).map_err(|error| unreadable(name, &error))?;
        }
        for options in words.values('o') {
            let mut given = OptionTree::default();
            given.replace_all(OsStr::new(options)).map_err(|error| unreadable(options, &error))?;
            let names = |wanted: &str| {
                given.names().any(|name| {
                    name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                })
            };
            if read_only.is_some() && names("read-only") {
                return Err(Failure::new("-r and -w set read-only, and so does -o; give one of them"));
            }
            if words.value('c').is_some() && names("cache") {
                return Err(Failure::new(
                    "-c sets all options of the cache, and -o some of them; give one of them",
                ));
            }
            self.check_kept(&given)?;
            tree.replace_all(OsStr::new(options)).map_err(|error| unreadable(options, &error))?;
        }
        let (old, new) = (disk_options(&self.tree)?, disk_options(&tree)?);
        match old.filename == new.filename {
            true => Ok(tree),
            false => Err(Failure::new("option file stays as it is while the disk is open")),
        }
    }

    /// Refuses options that give a node another name or driver.
    fn check_kept(&self, given: &OptionTree) -> Result<(), Failure> {
        for key in given.keys() {
            let (node, name) = key.rsplit_once('.').unwrap_or(("", &key));
            let kept = match name {
                "node-name" => self.tree.at(&key),
                "driver" => self.tree.at(&key).or_else(|| self.driver_of(node)),
                _ => continue,
            };
            if kept != given.at(&key) {
                return Err(Failure::new(format!("option {key} stays as it is while the disk is open")));
            }
        }
        Ok(())
    }

    /// The driver of the node that options call `node` (`backing.file`, say), in a chain on files.
    fn driver_of(&self, node: &str) -> Option<String> {
        let depth = node.split('.').filter(|part| *part == "backing").count();
        match node.rsplit('.').next() {
            Some("file") => Some("file".to_owned()),
            _ => block::layers(self.disk.root()).nth(depth).map(|layer| layer.driver().to_owned()),
        }
    }

    /// Closes it and opens it with the options of `tree`; if that cannot be done, as it was. Without a disk, that failed too.
    pub async fn again(self, tree: OptionTree, rules: &OpenRules) -> (Option<Self>, Result<(), Failure>) {
        let name = self.disk.root().name().to_owned();
        let (old, bare) = (self.tree.clone(), self.bare.clone());
        let closed = self.close().await;
        let opened = open(&tree, rules).await;
        let (tree, opened, result) = match opened {
            Ok(disk) => (tree, Ok(disk), closed),
            Err(failure) => (old.clone(), open(&old, rules).await, Err(failure)),
        };
        match opened {
            Ok(disk) => (Some(Self { disk, tree, snapshot: false, bare }), result),
            Err(failure) => {
                (None, result.and(Err(Failure::because(format!("{name} is closed now"), &Said(failure)))))
            }
        }
    }

    /// Closes it: its lock is free then.
    ///
    /// # Errors
    /// When something could not be written; it is closed all the same.
    pub async fn close(self) -> Result<(), Failure> {
        let what = format!("cannot close {}", self.disk.root().name());
        copying::finish(&self.disk, Ok(()), |error| Failure::because(what, error)).await
    }
}

/// A failure as the cause of another one.
#[derive(Debug)]
struct Said(Failure);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Said {}

/// An overlay whose file is removed when this is dropped; open descriptors keep it.
#[derive(Debug)]
pub(crate) struct Overlay {
    path: PathBuf,
    /// How it is opened.
    pub(crate) tree: OptionTree,
}

impl Overlay {
    /// Made in the directory for temporary files, over the disk that `below` describes.
    ///
    /// # Errors
    /// When the disk cannot be opened, or the overlay not be made.
    pub(crate) async fn over(
        manner: &Manner,
        mut below: OptionTree,
        rules: &OpenRules,
    ) -> Result<Self, Failure> {
        let looking = Manner { read_only: true, snapshot: false, ..manner.clone() };
        let mut tree = OptionTree::default();
        // Of its own: the overlay's mode is that of the disk.
        manner.complete(&mut tree);
        tree.replace("driver", "qcow2").map_err(|error| unreadable("driver", &error))?;
        let mut looked_at = below.clone();
        looking.complete(&mut looked_at);
        let disk = open(&looked_at, rules).await?;
        let size = disk.size();
        copying::finish(&disk, Ok(()), |error| Failure::because("cannot close the image", error)).await?;
        if let Some(format) = &manner.format {
            below.replace("driver", format).map_err(|error| unreadable("driver", &error))?;
        }
        let directory = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let path = directory.join(format!("cowhand-io-{}.qcow2", std::process::id()));
        // The name is never used: the options name the backing file.
        let options = CreateOptions { backing_file: Some("below".to_owned()), ..CreateOptions::default() };
        let image =
            NewImage { format: Format::Qcow2, options, size: Some(size), encryption: None, foreign: None };
        let overlay = Self { path, tree };
        // What is written to it is a disk's content, and the directory is everybody's.
        let created = create_private(&overlay.path);
        created
            .map_err(|error| Failure::because(format!("cannot create {}", overlay.path.display()), &error))?;
        make(&overlay.path, &image, size, cowhand::Existing::Replace)?;
        overlay.with(below)
    }

    fn with(mut self, below: OptionTree) -> Result<Self, Failure> {
        let path = self.path.clone().into_os_string();
        let named = self.tree.insert("file.filename", Entry::Value(path));
        let placed = named.and_then(|()| self.tree.insert("backing", Entry::Tree(below)));
        placed.map(|()| self).map_err(|error| unreadable("-s", &error))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn disk_options(tree: &OptionTree) -> Result<DiskOptions, Failure> {
    DiskOptions::of_tree(tree.clone())
        .map_err(|error| Failure::because("cannot understand the options", &error))
}

fn unreadable(options: &str, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot understand {}", graph::drive::shown(options.as_ref())), error)
}

async fn open(tree: &OptionTree, rules: &OpenRules) -> Result<Arc<Disk>, Failure> {
    copying::open(&disk_options(tree)?, rules, "open").await
}
