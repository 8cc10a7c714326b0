//! Points are looked at again, and brought back.

use std::io::Write;
use std::path::Path;

use graph::OpenRules;
use graph::options::DiskOptions;
use graph::probe::Format;
use job::{Copy, CopyOptions, Counters, Scope};
use reactor::Reactor;
use tool::create::options::NewImage;
use tool::failure::Failure;

use super::manifest::{Point, Store};
use super::new_point::{check, sum};
use crate::copying::made::Made;
use crate::copying::watch::Watch;
use crate::copying::{self, Memory};

/// Looks at every point: its file is what was written, its metadata is sound, and the disk can be opened. All are looked at, also after one
/// was found wrong; gives how many were.
///
/// # Errors
/// When a signal ends it, or nothing can be said.
pub fn verify(
    store: &Store,
    rules: &OpenRules,
    watch: &Watch,
    mut reported: impl FnMut(&Point, Option<&Failure>) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let reactor = copying::reactor()?;
    let mut wrong = 0;
    for point in store.points() {
        let found = verify_one(store, point, rules, watch, &reactor);
        watch.check()?;
        wrong += usize::from(found.is_err());
        reported(point, found.as_ref().err())?;
    }
    Ok(wrong)
}

fn verify_one(
    store: &Store,
    point: &Point,
    rules: &OpenRules,
    watch: &Watch,
    reactor: &Reactor,
) -> Result<(), Failure> {
    check_sum(store, point, watch)?;
    check(&store.directory().join(&point.file), reactor)?;
    let options = options(store, point);
    let disk = reactor.run(copying::open(&options, rules, "open"))?;
    let size = disk.size();
    reactor.run(copying::finish(&disk, Ok(()), |error| copying::because("close", &options, error)))?;
    match size == point.disk_bytes {
        true => Ok(()),
        false => Err(Failure::new(format!("the disk has {size} bytes; it had {}", point.disk_bytes))),
    }
}

fn check_sum(store: &Store, point: &Point, watch: &Watch) -> Result<(), Failure> {
    let path = store.directory().join(&point.file);
    if !store.has_file(point) {
        let what = format!(
            "{} is not there; --forget N takes a run without its full point off the list",
            path.display()
        );
        return Err(Failure::new(what));
    }
    let (bytes, sha256) = sum(&path, watch)?;
    match (bytes, &sha256) == (point.file_bytes, &point.sha256) {
        true => Ok(()),
        false => Err(Failure::new(format!("{} is not what was written", path.display()))),
    }
}

fn options(store: &Store, point: &Point) -> DiskOptions {
    let mut options = DiskOptions::of_path(store.directory().join(&point.file));
    options.layer.format = Some(Format::Qcow2);
    options.layer.read_only = true;
    options
}

/// Makes an image of what the disk was at `point`. All files that it needs are looked at first.
///
/// # Errors
/// When one of them is not what was written, when the image cannot be made or a signal ends it: then `target` is as it was.
pub fn restore(
    store: &Store,
    point: &Point,
    target: &Path,
    format: Format,
    rules: &OpenRules,
    watch: &Watch,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    for needed in store.chain(point) {
        check_sum(store, needed, watch)?;
    }
    let reactor = copying::reactor()?;
    let image = NewImage::parse(&[], format)
        .map_err(|error| Failure::because(format!("cannot create {}", target.display()), &error))?;
    let made = Made::make(target, &image, point.disk_bytes)?;
    let source_options = options(store, point);
    let copied = reactor.run(async {
        let source = copying::open(&source_options, rules, "restore").await?;
        let disk = copying::open(&made.options(), rules, "write").await?;
        let copy = Copy {
            source: &*source,
            from: 0..source.size(),
            target: &*disk,
            to: 0,
            scope: Scope::Everything,
            content: made.content(),
            options: CopyOptions { memory_bytes: Memory::default().copy_bytes, ..CopyOptions::default() },
        };
        let counters = Counters::default();
        let filling = async {
            let copied = watch.run(&copy, &counters).await;
            copied.map(drop).map_err(|error| copying::because("restore", &source_options, &error))
        };
        let filled = made.while_filled(&counters, filling).await;
        let failed = |error: &dyn std::error::Error| copying::because("write", &made.options(), error);
        let filled = copying::finish(&disk, filled, failed).await;
        let failed = |error: &dyn std::error::Error| copying::because("close", &source_options, error);
        copying::finish(&source, filled, failed).await?;
        made.filled().await
    });
    copied.map_err(|failure| made.explain(failure))?;
    watch.check()?;
    made.keep()?;
    writeln!(out, "{}: point {} of {}", target.display(), point.point, store.directory().display())?;
    Ok(())
}
