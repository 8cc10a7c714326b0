//! What a directory of backups holds: one JSON file that names every point, written aside and renamed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use monitor::inventory::export_view::BACKUPS_BITMAPS;
use storage::{FileAccess, create_beside};
use tool::failure::Failure;

/// The file that names the points.
const NAME: &str = "backup.json";
/// How the file of a point was filled. Points of builds before this was counted have 0: zeroes that hide older data may be missing in them
/// (docs/reference/advisory-copies.md), and no increment is put over them.
const COPY_RULES: u32 = 1;
/// The number of its form.
const VERSION: u32 = 1;
/// A larger file is none of ours: a point takes some 300 bytes.
const BYTES_MAX: u64 = 16 << 20;

/// A directory of backups, locked: one command at a time works on it.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    lock: File,
    manifest: Manifest,
}

/// The content of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Manifest {
    /// The form of this file.
    cowhand_backup: u32,
    /// Part of the names of bitmaps.
    id: String,
    /// The points, from the first to the last.
    points: Vec<Point>,
}

/// What [`Point`] prints.
pub const POINT_JSON: &str = "  point                   number, counted from 1
  kind                    text: full or incremental
  file                    text: the image in the directory
  disk-bytes              size of the disk
  file-bytes              size of the file
  sha256                  text: of the file
  time-sec                when it was begun: seconds since 1970
  copy-rules              number: 0 if an earlier build took it, which may have left zeroes out";

/// A moment that can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Point {
    /// Counted from 1.
    pub point: u32,
    /// Whether it is a full image, or needs the point before it.
    pub kind: Kind,
    /// The image in the same directory.
    pub file: String,
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Of the file.
    pub sha256: String,
    /// When it was begun, in seconds since 1970.
    pub time_sec: u64,
    /// [`COPY_RULES`] of the build that took it. One that does not know the field refuses the list, and puts no increment over it.
    #[serde(default)]
    pub copy_rules: u32,
}

/// What a point's file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// All of the disk.
    Full,
    /// What changed since the point before.
    Incremental,
}

impl Point {
    /// What a point that this build takes says of its copy.
    pub const fn copy_rules_now() -> u32 {
        COPY_RULES
    }

    fn is_trusted(&self) -> bool {
        self.copy_rules == COPY_RULES
    }
}

impl Kind {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Incremental => "incremental",
        }
    }
}

impl Store {
    /// Opens the directory, which is made if `make` says so. Files of a run that did not end are removed.
    ///
    /// # Errors
    /// When another process uses the directory, or it holds something that is no backup of ours.
    pub fn open(directory: &Path, make: bool) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot open the backups in {}", directory.display()), error)
        };
        if make {
            std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
        }
        let directory = directory.canonicalize().map_err(|error| failed(&error))?;
        let lock = File::open(&directory).map_err(|error| failed(&error))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::new(format!("another command works on the backups in {}", directory.display()))
        })?;
        let manifest = match read(&directory.join(NAME)) {
            Ok(text) => parsed(&text).map_err(|why| {
                Failure::explained(format!("{} is no list of backups", directory.join(NAME).display()), why)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && make => Manifest::new()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = format!("{} holds no backups: it has no {NAME}", directory.display());
                return Err(Failure::new(what));
            }
            Err(error) => return Err(failed(&error)),
        };
        Ok(Self { directory, lock, manifest })
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The points, from the first to the last.
    pub fn points(&self) -> &[Point] {
        &self.manifest.points
    }

    /// The point of this number; without one the last.
    ///
    /// # Errors
    /// When there is none.
    pub fn point(&self, number: Option<u32>) -> Result<&Point, Failure> {
        let found = match number {
            None => self.points().last(),
            Some(number) => self.points().iter().find(|point| point.point == number),
        };
        found.ok_or_else(|| {
            let wanted = number.map_or_else(|| "a point".to_owned(), |number| format!("point {number}"));
            let (dir, count) = (self.directory.display(), self.points().len());
            Failure::new(format!("{dir} has no {wanted}; it has {count} of them (cowhand backup --list)"))
        })
    }

    /// The points that make up `last`: a full one, and increments.
    pub fn chain(&self, last: &Point) -> &[Point] {
        let points = self.points();
        let end = points.iter().position(|point| point == last).map_or(0, |at| at + 1);
        let upto = points.get(..end).unwrap_or_default();
        let start = upto.iter().rposition(|point| point.kind == Kind::Full).unwrap_or(0);
        upto.get(start..).unwrap_or_default()
    }

    /// Whether an increment may be put over the last point: all files of its chain were filled by the rules of today.
    pub fn is_chain_trusted(&self) -> bool {
        self.points().last().is_none_or(|last| self.chain(last).iter().all(Point::is_trusted))
    }

    /// The number of the next point.
    pub fn next(&self) -> u32 {
        self.points().last().map_or(1, |point| point.point + 1)
    }

    /// What all bitmaps of these backups begin with.
    pub fn bitmaps(&self) -> String {
        format!("{BACKUPS_BITMAPS}{}-", self.manifest.id)
    }

    /// The bitmap of what changes after a point.
    pub fn bitmap(&self, point: u32) -> String {
        format!("{}{point}", self.bitmaps())
    }

    /// Adds a point whose file is complete and durable under its name.
    ///
    /// # Errors
    /// When the list cannot be written; then the old one is there.
    pub fn add(&mut self, point: Point) -> Result<(), Failure> {
        self.manifest.points.push(point);
        let written = self.write();
        written.map_err(|error| {
            self.manifest.points.pop();
            Failure::because(format!("cannot write {}", self.directory.join(NAME).display()), &error)
        })
    }

    /// Whether a point's file is there.
    pub fn has_file(&self, point: &Point) -> bool {
        self.directory.join(&point.file).is_file()
    }

    /// Removes the first `count` points and their files. What stays must begin with a full one.
    ///
    /// # Errors
    /// When a file cannot be removed, or the list not be written; then the points are still listed.
    pub fn remove_first(&mut self, count: usize) -> Result<Vec<Point>, Failure> {
        let (directory, mut rest) = (&self.directory, self.manifest.points.clone());
        let removed: Vec<Point> = rest.drain(..count.min(rest.len())).collect();
        if removed.is_empty() {
            return Ok(removed);
        }
        for path in removed.iter().map(|point| directory.join(&point.file)) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::because(format!("cannot remove {}", path.display()), &error));
                }
                _ => {}
            }
        }
        let before = std::mem::replace(&mut self.manifest.points, rest);
        self.write().map_err(|error| {
            self.manifest.points = before;
            Failure::because(format!("cannot write {}", self.directory.join(NAME).display()), &error)
        })?;
        Ok(removed)
    }

    fn write(&self) -> io::Result<()> {
        let aside = self.directory.join(".backup.json.part");
        let text = serde_json::to_string_pretty(&self.manifest).map_err(io::Error::other)?;
        // One of a run that was killed: we have the lock.
        match std::fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let replaced = FileAccess::of_path(&self.directory.join(NAME))?;
        let mut file = create_beside(&aside, replaced.as_ref())?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        replaced.map_or(Ok(()), |replaced| replaced.give_to(&file))?;
        file.sync_all()?;
        std::fs::rename(&aside, self.directory.join(NAME))?;
        self.lock.sync_all()
    }
}

impl Manifest {
    fn new() -> Result<Self, Failure> {
        let mut bytes = [0; 8];
        SystemRandom::new().fill(&mut bytes).map_err(|_| Failure::new("cannot get random bytes"))?;
        let id = format!("{:016x}", u64::from_le_bytes(bytes));
        Ok(Self { cowhand_backup: VERSION, id, points: Vec::new() })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let length = path.metadata()?.len();
    if length > BYTES_MAX {
        return Err(io::Error::other(format!("it has {length} bytes; allowed: {BYTES_MAX}")));
    }
    std::fs::read_to_string(path)
}

/// Parses and checks the list in `text`. It may have been edited: file names must be in the directory, and
/// numbers must follow each other.
fn parsed(text: &str) -> Result<Manifest, String> {
    let manifest: Manifest = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if manifest.cowhand_backup != VERSION {
        return Err(format!("its form is {}; this program reads {VERSION}", manifest.cowhand_backup));
    }
    if manifest.id.len() != 16 || !manifest.id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("its id is {:?}; must be 16 hexadecimal digits", manifest.id));
    }
    let mut before = 0;
    for point in &manifest.points {
        if point.point <= before {
            return Err(format!("point {} follows point {before}", point.point));
        }
        if point.file != file_name(point.point, point.kind) {
            return Err(format!("the file of point {} is called {:?}", point.point, point.file));
        }
        before = point.point;
    }
    match manifest.points.first() {
        Some(first) if first.kind != Kind::Full => Err("its first point is no full one".to_owned()),
        _ => Ok(manifest),
    }
}

/// What the image of a point is called.
pub fn file_name(point: u32, kind: Kind) -> String {
    format!("{point:04}-{}.qcow2", kind.name())
}

/// Seconds since 1970.
pub fn now_sec() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(point: u32, kind: &str, file: &str) -> String {
        format!(
            r#"{{"cowhand-backup":1,"id":"0123456789abcdef","points":[{{"point":{point},"kind":"{kind}","file":"{file}","disk-bytes":1,"file-bytes":1,"sha256":"","time-sec":0}}]}}"#
        )
    }

    /// Points of earlier builds may lack zeroes: what is put over them would be restored wrong.
    #[test]
    fn no_increment_is_put_over_a_point_of_an_earlier_build() {
        let chain = |rules: &[Option<u32>]| {
            let points = (1..).zip(rules).map(|(point, rules)| {
                let kind = if point == 1 { Kind::Full } else { Kind::Incremental };
                let kind_name = kind.name();
                let rules = rules.map_or_else(String::new, |rules| format!(r#","copy-rules":{rules}"#));
                let file = file_name(point, kind);
                format!(
                    r#"{{"point":{point},"kind":"{kind_name}","file":"{file}","disk-bytes":1,"file-bytes":1,"sha256":"","time-sec":0{rules}}}"#
                )
            });
            let points = points.collect::<Vec<_>>().join(",");
            let text = format!(r#"{{"cowhand-backup":1,"id":"0123456789abcdef","points":[{points}]}}"#);
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join(NAME), text).unwrap();
            Store::open(directory.path(), false).unwrap().is_chain_trusted()
        };
        assert!(chain(&[Some(1), Some(1)]));
        for older in [&[None][..], &[Some(1), None], &[None, Some(1)], &[Some(0), Some(1)]] {
            assert!(!chain(older), "{older:?}");
        }
    }

    #[test]
    fn a_list_that_somebody_else_wrote_leads_nowhere_else() {
        assert!(parsed(&text(1, "full", "0001-full.qcow2")).is_ok());
        for (wrong, why) in [
            (text(1, "full", "../../etc/passwd"), "is called"),
            (text(1, "full", "0002-full.qcow2"), "is called"),
            (text(0, "full", "0000-full.qcow2"), "follows"),
            (text(1, "incremental", "0001-incremental.qcow2"), "no full one"),
            (text(1, "full", "0001-full.qcow2").replace("0123", "../a"), "hexadecimal"),
            (text(1, "full", "0001-full.qcow2").replace("\":1,\"id", "\":2,\"id"), "its form"),
            ("{}".to_owned(), "missing"),
        ] {
            let error = parsed(&wrong).expect_err("it is wrong");
            assert!(error.contains(why), "{error}");
        }
    }
}
