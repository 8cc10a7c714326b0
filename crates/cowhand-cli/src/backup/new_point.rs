//! The image of a point on its way: made aside, checked and summed when it is whole, then named.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use graph::OnLoop;
use graph::options::DiskOptions;
use graph::probe::Format;
use qcow2::{CreateOptions, Repair};
use reactor::Reactor;
use ring::digest::{Context, SHA256};
use storage::{FileOptions, FileStorage};
use tool::failure::{Failure, warn};

use super::manifest::{Kind, Point, Store, file_name, now_sec};
use crate::copying::watch::Watch;
use storage::create_private;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// An image on its way.
#[derive(Debug)]
pub struct NewPoint {
    /// What it will be.
    point: u32,
    kind: Kind,
    disk_bytes: u64,
    time_sec: u64,
    /// Where it is now.
    path: PathBuf,
    place: PathBuf,
    /// It goes if it does not become whole.
    is_kept: bool,
}

impl NewPoint {
    /// Makes an empty image for the next point of `store`, which its maker alone reads and writes: who may read the disk is not known of a
    /// served one, and a backup outlives changes of its mode. What a run left that did not end is removed, and said.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(store: &Store, kind: Kind, disk_bytes: u64, reactor: &Reactor) -> Result<Self, Failure> {
        let point = store.next();
        for kind in [Kind::Full, Kind::Incremental] {
            let name = file_name(point, kind);
            for left in [format!(".{name}.part"), name] {
                remove_left(&store.directory().join(left))?;
            }
        }
        let name = file_name(point, kind);
        let path = store.directory().join(format!(".{name}.part"));
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot create {}", path.display()), error)
        };
        let below = store.points().last().filter(|_| kind == Kind::Incremental);
        let options = CreateOptions {
            size: disk_bytes,
            backing_file: below.map(|point| point.file.clone()),
            backing_format: below.map(|_| "qcow2".to_owned()),
            ..CreateOptions::default()
        };
        let file = path.to_string_lossy().into_owned();
        drop(create_private(&path).map_err(|error| failed(&error))?);
        let storage = FileStorage::open(&file, &FileOptions::default()).map_err(|error| failed(&error))?;
        let place = store.directory().join(&name);
        let new =
            Self { point, kind, disk_bytes, time_sec: now_sec(), path: path.clone(), place, is_kept: false };
        reactor.run(qcow2::create(&storage, None, &options)).map_err(|error| failed(&error))?;
        Ok(new)
    }

    /// Where the image is now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is filled and closed: checks it, makes it durable, and adds it to `store`.
    ///
    /// # Errors
    /// When it is damaged, or something cannot be written; it is then removed, and the store is as it was.
    pub fn keep(mut self, store: &mut Store, reactor: &Reactor, watch: &Watch) -> Result<Point, Failure> {
        check(&self.path, reactor)?;
        let failed =
            |error: &io::Error| Failure::because(format!("cannot finish {}", self.place.display()), error);
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(|error| failed(&error))?;
        let (file_bytes, sha256) = sum(&self.path, watch)?;
        std::fs::rename(&self.path, &self.place).map_err(|error| failed(&error))?;
        self.path.clone_from(&self.place);
        File::open(store.directory()).and_then(|file| file.sync_all()).map_err(|error| failed(&error))?;
        let point = Point {
            point: self.point,
            kind: self.kind,
            file: file_name(self.point, self.kind),
            disk_bytes: self.disk_bytes,
            file_bytes,
            sha256,
            time_sec: self.time_sec,
            copy_rules: Point::copy_rules_now(),
        };
        store.add(point.clone())?;
        self.is_kept = true;
        Ok(point)
    }
}

impl Drop for NewPoint {
    /// Removes what did not become whole. The reason for that is what the user has to know.
    fn drop(&mut self) {
        if !self.is_kept {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn remove_left(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Ok(()) => {
            warn(&format!("{} was left by a backup that did not end; it is removed", path.display()));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::because(format!("cannot remove {}", path.display()), &error)),
    }
}

/// Whether the metadata of an image is sound.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn check(path: &Path, reactor: &Reactor) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot check {}", path.display()), error);
    let mut options = DiskOptions::of_path(path);
    options.layer.format = Some(Format::Qcow2);
    options.layer.read_only = true;
    let image = reactor.run(graph::open_bare(&options)).map_err(|error| failed(&error))?;
    let host: Arc<dyn qcow2::Host> = Arc::new(OnLoop);
    let mut unheard = |_: qcow2::Progress<'_>| {};
    let checked = qcow2::check_in_parallel(&image.file, &host, Repair::None, &mut unheard);
    let found = reactor.run(checked).map_err(|error| failed(&error))?;
    let wrong = found.corruptions + found.check_errors;
    match wrong {
        0 => Ok(()),
        wrong => Err(Failure::new(format!("{} is damaged: {wrong} errors (cowhand check)", path.display()))),
    }
}

/// The length and the SHA-256 of a file.
///
/// # Errors
/// When it cannot be read, or a signal ends it.
pub fn sum(path: &Path, watch: &Watch) -> Result<(u64, String), Failure> {
    let failed = |error: &io::Error| Failure::because(format!("cannot read {}", path.display()), error);
    let mut file = File::open(path).map_err(|error| failed(&error))?;
    let length = file.metadata().map_err(|error| failed(&error))?.size();
    let (mut context, mut buffer, mut done) = (Context::new(&SHA256), vec![0; READ_BYTES], 0);
    let mut progress = watch.progress(length);
    loop {
        let count = file.read(&mut buffer).map_err(|error| failed(&error))?;
        if count == 0 {
            break;
        }
        context.update(buffer.get(..count).unwrap_or_default());
        done += count as u64;
        if watch.look(&mut progress, done).is_break() {
            progress.end();
            watch.check()?;
        }
    }
    progress.end();
    let digest = context.finish();
    Ok((done, digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()))
}
