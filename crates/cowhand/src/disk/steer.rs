//! What concerns a disk as a whole, while it is in use: limits, figures, size, snapshots.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use graph::front::Statistics;
use qcow2::ResizeOptions;
use qcow2::snapshot::{NewSnapshot, SnapshotName};
use qcow2_layout::SnapshotEntry;
use throttle::{Dialect, PARAMETERS, Setting};

use super::Disk;
use crate::error::{Error, ErrorKind};
use crate::pending::Pending;

/// An internal snapshot of a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Unique among the image's snapshots.
    pub id: String,
    /// The user's name for it; several may have the same.
    pub name: String,
    /// When it was taken.
    pub taken: SystemTime,
    /// How long the guest had been running.
    pub vm_clock: Duration,
    /// Size of the disk at that time; `None` in old images.
    pub size_bytes: Option<u64>,
}

impl Snapshot {
    fn new(entry: &SnapshotEntry) -> Self {
        Self {
            id: entry.id_text().into_owned(),
            name: entry.name_text().into_owned(),
            taken: UNIX_EPOCH + Duration::new(entry.date_sec.into(), entry.date_nsec),
            vm_clock: Duration::from_nanos(entry.vm_clock_nsec),
            size_bytes: entry.disk_size,
        }
    }
}

impl Disk {
    /// Puts limits in force at once, instead of all that were: each by its name in QEMU (`iops-total`, `bps-read`,
    /// `iops-total-max`, ...; docs/reference/throttling.md says what they mean) with a value in requests, bytes or seconds. No limit at all
    /// lifts them. In a throttle group they are the group's.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that is no limit, or limits that contradict each other; then nothing changes.
    pub fn set_limits(&self, limits: &[(&str, u64)]) -> Result<(), Error> {
        let mut options = throttle::Options::new();
        for &(name, value) in limits {
            match Setting::named(name, Dialect::Limits) {
                Some(Setting::Limit(parameter)) => options.set(parameter, value),
                _ => return Err(no_limit(name)),
            };
        }
        Ok(self.handle.enter()?.disk().set_throttling(&options)?)
    }

    /// The limits in force by name, those that are not set left out.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn limits(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        let options = self.handle.enter()?.disk().limits().options();
        let value = |setting| match setting {
            Setting::Limit(parameter) => options.get(parameter),
            Setting::Group | Setting::Weight => None,
        };
        Ok(PARAMETERS.iter().filter_map(|names| Some((names.limits, value(names.setting)?))).collect())
    }

    /// What has passed since the disk was opened.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.handle.enter()?.disk().statistics())
    }

    /// Changes the size to `size_bytes` while the disk is in use. A raw disk on a device gets the size that this has by now, and no other. What is added reads as
    /// zeroes; durable when it completes.
    pub fn resize(&self, size_bytes: u64, options: ResizeOptions) -> Pending<()> {
        self.run(async move |inside| Ok(inside.disk().resize(size_bytes, options).await?))
    }

    /// The internal snapshots; a raw disk has none.
    pub fn snapshots(&self) -> Pending<Vec<Snapshot>> {
        self.run(async move |inside| {
            let entries = inside.disk().snapshots().await?;
            Ok(entries.iter().map(Snapshot::new).collect())
        })
    }

    /// Takes an internal snapshot of the disk as it is, while it is in use. What completed before is in it; durable when it
    /// completes. Requests wait meanwhile.
    pub fn create_snapshot(&self, name: impl Into<String>) -> Pending<Snapshot> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let new = NewSnapshot {
            name: name.into(),
            // The format ends in 2106.
            date_sec: u32::try_from(now.as_secs()).unwrap_or(u32::MAX),
            date_nsec: now.subsec_nanos(),
            vm_clock_nsec: 0,
            icount: None,
        };
        self.run(async move |inside| Ok(Snapshot::new(&inside.disk().create_snapshot(new).await?)))
    }

    /// Goes back to the snapshot with this id, or else of this name, and to the size that the disk had. Everything written since
    /// is lost; the snapshot stays. The guest must not use the disk meanwhile.
    pub fn apply_snapshot(&self, id_or_name: impl Into<String>) -> Pending<()> {
        let name = SnapshotName::IdOrName(id_or_name.into());
        self.run(async move |inside| Ok(inside.disk().apply_snapshot(name).await?))
    }

    /// Deletes the snapshot with this id, or else of this name. What only it needed is freed in the background.
    pub fn delete_snapshot(&self, id_or_name: impl Into<String>) -> Pending<()> {
        let name = SnapshotName::IdOrName(id_or_name.into());
        self.run(async move |inside| Ok(inside.disk().delete_snapshot(name).await.map(drop)?))
    }
}

fn no_limit(name: &str) -> Error {
    let names: Vec<_> = PARAMETERS.iter().map(|names| names.limits).collect();
    let text = match nearest::nearest(name, names.iter().copied()).first() {
        Some(near) => format!("there is no limit {name:?}; did you mean {near:?}?"),
        None => format!("there is no limit {name:?}; allowed: {}", names.join(", ")),
    };
    Error::said(ErrorKind::Invalid, text)
}
