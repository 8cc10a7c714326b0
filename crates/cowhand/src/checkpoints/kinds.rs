//! What is asked about checkpoints, and what is found.

use std::time::{SystemTime, UNIX_EPOCH};

use ::checkpoints::Part;
pub use ::checkpoints::Says;
pub use lineage::Keep;
use lineage::{Entry, LayerId, Merge, Outcome, Survey};

use crate::jobs::Job;

/// A checkpoint that is to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// Its name, which no other checkpoint of the disk has: letters, digits and `-_.:+` of ASCII. Without one it is called by its id, and
    /// [`Disk::forget`](crate::Disk::forget) may forget it.
    pub name: Option<String>,
    /// Words of the caller, `KEY=VALUE`, at most 32.
    pub labels: Vec<String>,
}

impl NewCheckpoint {
    /// One with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), labels: Vec::new() }
    }

    pub(super) fn now(&self) -> Result<lineage::NewCheckpoint, lineage::Error> {
        lineage::NewCheckpoint::now(self.name.as_deref(), &self.labels)
    }
}

/// A checkpoint, or a layer that stays because others need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its layer, which no other lineage has either.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The file name of the disk whose active layer it was.
    pub disk: String,
    /// The layer that it is backed by, if that is one of the lineage.
    pub parent: Option<String>,
    /// When it was taken.
    pub taken: SystemTime,
    /// Keys and values, in the order of the keys.
    pub labels: Vec<(String, String)>,
    /// Size of the disk at that time.
    pub size_bytes: u64,
    /// Bytes that its file takes.
    pub allocated_bytes: u64,
    /// The file names of disks and layers that are backed by it directly.
    pub users: Vec<String>,
    /// It was deleted, and is removed when nothing needs it.
    pub deleted: bool,
    /// Why it is not what it was when it was sealed; it cannot be used then.
    pub changed: Option<String>,
}

/// All layers of a lineage, the oldest first.
pub(super) fn listed(survey: &Survey) -> Vec<Checkpoint> {
    let mut users = survey.all_users();
    let listed = survey.layers.iter().map(|(id, layer)| {
        let entry = layer.entry.as_ref();
        let labels = entry.into_iter().flat_map(|entry| entry.labels.iter());
        Checkpoint {
            id: id.to_string(),
            name: entry.and_then(|entry| entry.name.as_ref()).map(ToString::to_string),
            disk: entry.map(|entry| entry.disk.clone()).unwrap_or_default(),
            parent: layer.image.backing.layer().map(|id| id.to_string()),
            taken: UNIX_EPOCH + entry.map(Entry::time).unwrap_or_default(),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            size_bytes: layer.image.shape.disk_bytes,
            allocated_bytes: layer.image.allocated_bytes,
            users: users.remove(id).unwrap_or_default(),
            deleted: entry.is_some_and(|entry| entry.deleted),
            changed: layer.changed.clone(),
        }
    });
    let mut listed: Vec<_> = listed.collect();
    listed.sort_by(|one, other| (one.taken, &one.id).cmp(&(other.taken, &other.id)));
    listed
}

/// Whether something is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removal {
    /// It is.
    #[default]
    Remove,
    /// What would go is listed, and nothing changes.
    List,
}

/// Which layers are collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collect {
    /// Also checkpoints without a name, as a rollback leaves them, that nothing is backed by.
    pub unnamed: bool,
    /// Whether they go.
    pub removal: Removal,
}

/// What is removed, and what is still needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Ids of the layers whose files go, the upper ones first.
    pub layers: Vec<String>,
    /// Bytes that they take.
    pub bytes: u64,
    /// Deleted checkpoints whose layers are needed.
    pub needed: Vec<NeededLayer>,
}

/// A layer of a deleted checkpoint that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededLayer {
    /// The layer.
    pub id: String,
    /// The file names of what is backed by it; where that is nothing, a process has it open.
    pub users: Vec<String>,
}

impl Removed {
    pub(super) fn of(outcome: Outcome) -> Self {
        let needed = outcome.staying.into_iter();
        Self {
            layers: ids(&outcome.going),
            bytes: outcome.going_bytes,
            needed: needed.map(|(id, users)| NeededLayer { id: id.to_string(), users }).collect(),
        }
    }
}

fn ids(layers: &[LayerId]) -> Vec<String> {
    layers.iter().map(ToString::to_string).collect()
}

/// Which checkpoints of a disk are forgotten, and which layers merged. By default the policy of the lineage says so; without one none is forgotten, and layers of
/// deleted ones are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forget {
    /// Which checkpoints without a name stay (`"hourly:24,daily:7".parse()`); all without. One with a name always stays.
    pub keep: Option<Keep>,
    /// Layers below the disk at most: beyond that the oldest checkpoints without a name are forgotten, whatever `keep` says.
    pub depth_max: Option<usize>,
    /// Layers are merged only where more than so many percent of what they take is not needed; always without.
    pub waste_max: Option<u8>,
    /// Bytes a second that the merges copy at most; 0 is no limit.
    pub speed_bytes: u64,
    /// Whether it is done.
    pub removal: Removal,
    /// It becomes the policy of the lineage, which servers follow after each checkpoint, and who forgets without one; an empty one takes that away. Needs
    /// [`Removal::Remove`].
    pub is_saved: bool,
}

/// What a policy came to.
#[derive(Clone, Debug)]
pub struct Forgotten {
    /// Ids of the checkpoints that it does not keep.
    pub checkpoints: Vec<String>,
    /// Layers that went at once.
    pub removed: Removed,
    /// What is merged, the oldest first.
    pub merges: Vec<MergedLayers>,
    /// Layers that the disk is backed by where the policy wants fewer: the rest is named, or others need it.
    pub too_deep: Option<usize>,
    /// The job that merges; `None` where all of this was listed only.
    pub job: Option<Job>,
}

/// Layers that become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedLayers {
    /// The layer that has all of it afterwards.
    pub into: String,
    /// Those that are removed, from the upper to the lower.
    pub layers: Vec<String>,
    /// Bytes that all of them take.
    pub bytes: u64,
}

impl Forgotten {
    pub(super) fn of(found: lineage::Forgotten) -> Self {
        let merge = |Merge { into, going, bytes }: Merge| MergedLayers {
            into: into.to_string(),
            layers: ids(&going),
            bytes,
        };
        Self {
            checkpoints: ids(&found.checkpoints),
            removed: Removed::of(found.removal),
            merges: found.merges.into_iter().map(merge).collect(),
            too_deep: found.too_deep.first().map(|(_, depth)| *depth),
            job: None,
        }
    }
}

/// A range in which two disks may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// First byte.
    pub offset: u64,
    /// Bytes, never 0.
    pub len: u64,
    /// What the checkpoint says of it.
    pub checkpoint: Says,
    /// And the other one, or the disk.
    pub other: Says,
}

/// Ranges in which two disks may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences {
    /// In order.
    pub ranges: Vec<Difference>,
    /// The offset of the next question, where there are more.
    pub next: Option<u64>,
}

impl Differences {
    pub(super) fn of((parts, next): (Vec<Part>, Option<u64>)) -> Self {
        let range = |Part { start, length, says: [checkpoint, other] }: Part| Difference {
            offset: start,
            len: length,
            checkpoint,
            other,
        };
        Self { ranges: parts.into_iter().map(range).collect(), next }
    }
}
