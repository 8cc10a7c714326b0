//! The disks that a door offers, by name.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use event_listener::{Event, EventListener};
use parking_lot::{Mutex, RwLock};

use crate::counters::Counters;
use crate::export::Export;
use crate::few_names::{few_names, shortened};
use crate::latch::Latch;
use crate::place::Places;
use crate::shutdown::Shutdown;

/// What the next export is called among themselves.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// One disk under one name.
#[derive(Debug)]
pub struct ExportEntry {
    name: String,
    description: String,
    disk: Arc<dyn Export>,
    /// Tells it from all others that there ever were.
    number: u64,
    counters: Counters,
    places: Places,
    /// Clients are to leave: the export is taken away.
    leaving: Shutdown,
    /// A client changed the disk's size.
    resized: Event,
    left_behind: LeftBehind,
}

impl ExportEntry {
    /// What clients call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For people; may be empty.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The bytes behind it.
    pub fn disk(&self) -> &Arc<dyn Export> {
        &self.disk
    }

    /// What it has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections that use it now.
    pub fn connections(&self) -> u32 {
        self.places.taken()
    }

    /// Waits until no connection uses it. After [`Exports::remove`] that is the end of it.
    pub async fn unused(&self) {
        self.places.all_free().await;
    }

    /// Waits until a connection has used it and none does any more.
    pub async fn abandoned(&self) {
        self.places.all_left().await;
    }

    /// Triggered when the export is taken away from its clients.
    pub fn leaving(&self) -> &Shutdown {
        &self.leaving
    }

    /// Tells clients that can hear of it that the disk has another size.
    pub fn tell_resized(&self) {
        self.resized.notify(usize::MAX);
    }

    /// Awaited, ends with the next [`ExportEntry::tell_resized`] after this call.
    pub fn resized(&self) -> EventListener {
        self.resized.listen()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }
}

/// Two exports cannot have one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is an export named {0:?} already")]
pub struct DuplicateName(pub String);

/// Why an export stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRemoved {
    /// No export has this name.
    #[error("there is no export named {0:?}")]
    Unknown(String),
    /// Clients use it.
    #[error("export {name:?} is in use by {connections} connections")]
    InUse {
        /// Its name.
        name: String,
        /// How many.
        connections: u32,
    },
}

/// What happens to the clients of an export that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// If there are any, nothing is removed.
    Safe,
    /// They are disconnected.
    Hard,
}

/// No export has the name that a client asked for. Says which there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownExport {
    wanted: String,
    /// What the empty name means, if that was said.
    default: Option<String>,
    /// A few of those that there are; empty if there is none.
    names: String,
    /// In the words that clients of QEMU's servers know.
    as_qemu: bool,
}

impl fmt::Display for UnknownExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, default, names, as_qemu } = self;
        if *as_qemu {
            return write!(f, "export '{}' not present", shortened(wanted));
        }
        match (wanted.as_str(), default) {
            _ if names.is_empty() => f.write_str("there are no exports"),
            ("", None) => write!(
                f,
                "there are several exports, and the empty name means none of them; name one of {names}"
            ),
            ("", Some(default)) => {
                write!(f, "the default export {:?} is not here; name one of {names}", shortened(default))
            }
            (name, _) => write!(f, "there is no export {:?}; name one of {names}", shortened(name)),
        }
    }
}

impl std::error::Error for UnknownExport {}

/// The disks of a door, in order. They may come and go while clients are connected.
///
/// The empty name means the export of that name, or the one that was [said](Exports::set_default), or the only one. Where there are several it
/// means none: which one is first would depend on the order of starting, and a client would write to the wrong disk.
#[derive(Debug, Default)]
pub struct Exports {
    shelf: RwLock<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    offered: Vec<Arc<ExportEntry>>,
    /// Removed; clients may not have ended yet.
    removed: Vec<Weak<ExportEntry>>,
    /// What the empty name means, if that was said.
    default: Option<String>,
    as_qemu: bool,
}

impl Exports {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// None yet. A name that none has is refused in the words of QEMU's servers.
    pub fn as_qemu() -> Self {
        Self { shelf: RwLock::new(Shelf { as_qemu: true, ..Shelf::default() }) }
    }

    /// Offers `disk` as `name`, which the door's protocol has words for; `description` is for humans and may be empty.
    pub fn add(
        &self,
        name: impl Into<String>,
        description: impl Into<String>,
        disk: Arc<dyn Export>,
    ) -> Result<Arc<ExportEntry>, DuplicateName> {
        let name = name.into();
        let mut shelf = self.shelf.write();
        if find_exact(&shelf.offered, &name).is_some() {
            return Err(DuplicateName(name));
        }
        let entry = Arc::new(ExportEntry {
            name,
            description: description.into(),
            disk,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            counters: Counters::default(),
            places: Places::default(),
            leaving: Shutdown::new(),
            resized: Event::new(),
            left_behind: LeftBehind::default(),
        });
        shelf.offered.push(Arc::clone(&entry));
        Ok(entry)
    }

    /// Takes an export away. No client finds it any more; those that use it are disconnected, requests in flight are
    /// finished: [`ExportEntry::unused`] tells when.
    ///
    /// # Errors
    /// If there is none of that name; with [`Removal::Safe`], if a client uses it.
    pub fn remove(&self, name: &str, how: Removal) -> Result<Arc<ExportEntry>, NotRemoved> {
        let mut shelf = self.shelf.write();
        let index = shelf.offered.iter().position(|entry| entry.name == name);
        let index = index.ok_or_else(|| NotRemoved::Unknown(name.to_owned()))?;
        // From no client to closed in one step: no client can come in between.
        let closed = shelf.offered[index].places.close_if_free();
        if let (Err(connections), Removal::Safe) = (closed, how) {
            return Err(NotRemoved::InUse { name: name.to_owned(), connections });
        }
        let entry = shelf.offered.remove(index);
        entry.leaving.trigger();
        shelf.removed.retain(|entry| entry.strong_count() > 0);
        shelf.removed.push(Arc::downgrade(&entry));
        Ok(entry)
    }

    /// All of them, in order.
    pub fn entries(&self) -> Vec<Arc<ExportEntry>> {
        self.shelf.read().offered.clone()
    }

    /// All of them, and those that were removed and are still held by a client.
    pub(crate) fn entries_and_removed(&self) -> Vec<Arc<ExportEntry>> {
        let shelf = self.shelf.read();
        shelf.offered.iter().cloned().chain(shelf.removed.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Says what the empty name means, whether there is such an export now or later.
    pub fn set_default(&self, name: impl Into<String>) {
        self.shelf.write().default = Some(name.into());
    }

    /// What a client means by `name`.
    ///
    /// # Errors
    /// When it means none: says which there are.
    pub fn find(&self, name: &str) -> Result<Arc<ExportEntry>, UnknownExport> {
        let shelf = self.shelf.read();
        shelf.find(name).cloned().ok_or_else(|| UnknownExport {
            wanted: name.to_owned(),
            default: shelf.default.clone(),
            names: few_names(shelf.offered.iter().map(|entry| entry.name.as_str())),
            as_qemu: shelf.as_qemu,
        })
    }
}

impl Shelf {
    fn find(&self, name: &str) -> Option<&Arc<ExportEntry>> {
        let default = || match (name, &self.default, &self.offered[..]) {
            ("", Some(default), _) => find_exact(&self.offered, default),
            ("", None, [only]) => Some(only),
            _ => None,
        };
        find_exact(&self.offered, name).or_else(default)
    }
}

fn find_exact<'a>(entries: &'a [Arc<ExportEntry>], name: &str) -> Option<&'a Arc<ExportEntry>> {
    entries.iter().find(|entry| entry.name == name)
}

/// Changes at work at one export, of clients that are gone. They are carried out; what others ask for in the same
/// places comes after them. A client whose connection is lost asks for the same again on another one, has its answer,
/// and writes something newer: the change that was left behind could land on top of that.
#[derive(Debug, Default)]
struct LeftBehind {
    /// As many as are in `all`: most of the time nothing is.
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Remains>>>,
}

/// What one client left behind.
#[derive(Debug)]
struct Remains {
    ranges: Vec<Range<u64>>,
    landed: Latch,
}

impl Remains {
    fn touch(&self, range: &Range<u64>) -> bool {
        self.ranges.iter().any(|left| left.start < range.end && range.start < left.end)
    }
}

/// Keeps others behind what a client left; dropped once all of it has ended.
#[derive(Debug)]
pub struct Landing {
    entry: Arc<ExportEntry>,
    remains: Arc<Remains>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let left = &self.entry.left_behind;
        {
            let mut all = left.all.lock();
            all.retain(|remains| !Arc::ptr_eq(remains, &self.remains));
            left.count.store(all.len(), SeqCst);
        }
        self.remains.landed.set();
    }
}

impl ExportEntry {
    /// A client is gone, and its changes of these `ranges` of bytes are at work. From now on requests that touch one of them wait
    /// ([`ExportEntry::after_those_left_behind`]) until what is given here is dropped. Nothing for no ranges.
    pub fn leave_behind(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Option<Landing> {
        if ranges.is_empty() {
            return None;
        }
        let remains = Arc::new(Remains { ranges, landed: Latch::default() });
        let left = &self.left_behind;
        let mut all = left.all.lock();
        all.push(Arc::clone(&remains));
        left.count.store(all.len(), SeqCst);
        drop(all);
        Some(Landing { entry: Arc::clone(self), remains })
    }

    /// Whether any client that is gone left a change behind that is still at work. Costs a load.
    #[inline]
    pub fn has_left_behind(&self) -> bool {
        self.left_behind.count.load(SeqCst) > 0
    }

    /// Waits for the changes in these bytes that clients left behind before this call. Later ones may have waited for the caller: a request
    /// waits for those before it alone, so no two wait for each other.
    pub async fn after_those_left_behind(&self, offset: u64, len: u64) {
        if !self.has_left_behind() {
            return;
        }
        let range = offset..offset.saturating_add(len);
        let before: Vec<Arc<Remains>> =
            self.left_behind.all.lock().iter().filter(|remains| remains.touch(&range)).cloned().collect();
        for remains in before {
            remains.landed.wait().await;
        }
    }
}
