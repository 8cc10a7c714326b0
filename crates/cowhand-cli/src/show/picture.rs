//! What a picture shows, in numbers. JSON has them as they stand here.

use serde::Serialize;
use serde::ser::Serializer;
use tool::info::model::{BitmapInfo, SnapshotInfo};

use super::cells::Cells;
use super::kind::Kind;
use super::runs::Fragmentation;

/// What [`Picture`] prints, with the texts of snapshots and bitmaps behind it.
pub const JSON: &str = "  filename                text: the image, as it was named
  virtual-size            size of the disk
  disk                    object: a map of the disk
  layers                  list of objects: the images of the chain, the active one first
  image?                  object: what is in the active image's file; absent of a raw one
Of each layer:
  filename, format        text
  virtual-size            size of its disk
  actual-size?            space that its file takes; absent if that is not known
  data, compressed, zeroes  bytes that the guest reads from it
Of image:
  cluster-size            bytes of a cluster
  file-length             length of the file
  clusters                object: numbers of clusters of the disk by state
  fragmentation           object: how scattered the data is
  usage                   object: bytes of the file by use
  file                    object: a map of the file
  check                   object: what a check found
  snapshots, bitmaps      lists of objects
Of a map:
  cell-bytes              bytes of a cell; the last one may be shorter
  kinds                   list of text: what the numbers of a cell count
  cells                   list of cells: of each, bytes of each kind
Of clusters:
  total, data, compressed, zeroes, mixed, unallocated  numbers of clusters
  subclusters?            object: numbers of subclusters, data, zeroes and unallocated; absent
                          without extended L2
Of fragmentation:
  runs                    number of pieces that one request could read
  average-run-bytes, longest-run-bytes  their lengths
  median-jump-bytes, furthest-jump-bytes  distances from one to the next
Of usage:
  data, compressed        bytes of the disk
  metadata                bytes of tables, refcounts, the header
  other                   bytes of snapshots, bitmaps and saved machines
  reserved                bytes of clusters that are kept for zeroes
  leaked                  bytes counted as used, and used by nothing
  free                    bytes not in use
  reclaimable             bytes that could be freed on disk, about
Of check:
  corruptions, leaks      numbers
  error?                  text: why the check is not complete";

/// A disk with the images that it is made of.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Picture {
    /// The image, as it was named.
    pub filename: String,
    /// Size of the disk in bytes.
    pub virtual_size: u64,
    /// What the guest sees, and where it is.
    #[serde(serialize_with = "disk_cells")]
    pub disk: Cells,
    /// The images, the active one first.
    pub layers: Vec<Layer>,
    /// What is in the active image's file; not there for a raw one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

/// One image of the chain.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Layer {
    /// As it was named.
    pub filename: String,
    /// Its format.
    pub format: String,
    /// Size of its disk in bytes.
    pub virtual_size: u64,
    /// Bytes that its file occupies on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_size: Option<u64>,
    /// Bytes that the guest reads from it.
    pub data: u64,
    /// The same, compressed in the file.
    pub compressed: u64,
    /// Bytes of zeroes that the guest reads because this image says so.
    pub zeroes: u64,
}

impl Layer {
    /// Bytes of which this image decides.
    pub fn holds(&self) -> u64 {
        self.data + self.compressed + self.zeroes
    }
}

/// The active image, if it is qcow2.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Image {
    /// Bytes of a cluster.
    pub cluster_size: u64,
    /// Length of the file in bytes.
    pub file_length: u64,
    /// The clusters of the disk, by what the image's own tables say.
    pub clusters: Clusters,
    /// How scattered they are. Compressed ones are left out: each needs a request of its own.
    pub fragmentation: Fragmentation,
    /// What is in the file, in bytes.
    pub usage: Usage,
    /// Where in the file it is.
    #[serde(serialize_with = "file_cells")]
    pub file: Cells,
    /// What a check found.
    pub check: Checked,
    /// Internal snapshots.
    pub snapshots: Vec<SnapshotInfo>,
    /// Persistent bitmaps.
    pub bitmaps: Vec<BitmapInfo>,
}

/// Clusters of the disk by state. Each is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Clusters {
    /// All of the disk.
    pub total: u64,
    /// Stored as they are, whole.
    pub data: u64,
    /// Stored compressed.
    pub compressed: u64,
    /// Zeroes, whole.
    pub zeroes: u64,
    /// Of mixed subclusters.
    pub mixed: u64,
    /// The image says nothing of them.
    pub unallocated: u64,
    /// Subclusters of the clusters above that the image speaks of, where clusters have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subclusters: Option<Subclusters>,
}

/// Subclusters by state, of clusters that are not compressed and of which the image says something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Subclusters {
    /// Stored.
    pub data: u64,
    /// Zeroes.
    pub zeroes: u64,
    /// Not spoken of.
    pub unallocated: u64,
}

/// Bytes of the file by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Usage {
    /// Of the disk, as they are.
    pub data: u64,
    /// Of the disk, compressed.
    pub compressed: u64,
    /// Tables, refcounts, the header.
    pub metadata: u64,
    /// Snapshots, bitmaps, saved machines, and what else is in use.
    pub other: u64,
    /// Kept for clusters that read as zeroes.
    pub reserved: u64,
    /// Counted as used, and used by nothing.
    pub leaked: u64,
    /// Not in use.
    pub free: u64,
    /// What could be freed on disk, about: leaked, reserved, and free where that is no hole yet.
    pub reclaimable: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Checked {
    /// Contradictions.
    pub corruptions: u64,
    /// Clusters with a refcount that is too high.
    pub leaks: u64,
    /// Why it could not be done, or not completely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn disk_cells<S: Serializer>(cells: &Cells, serializer: S) -> Result<S::Ok, S::Error> {
    cells.to_json(&Kind::OF_DISK).serialize(serializer)
}

fn file_cells<S: Serializer>(cells: &Cells, serializer: S) -> Result<S::Ok, S::Error> {
    cells.to_json(&Kind::OF_FILE).serialize(serializer)
}
