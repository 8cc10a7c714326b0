//! A new object of a store as the target.

use std::ffi::OsStr;
use std::sync::Arc;

use block::Block;
use catalog::object_store;
use graph::OpenRules;
use graph::drivers::elsewhere;
use graph::probe::Format;
use job::{Copy, CopyOptions, Counters, Order};
use qcow2::{CreateOptions, DataClusters, InOrder};
use reactor::Reactor;
use remote::s3::{Present, Service, Upload, UploadSize};
use tool::failure::{Failure, warn};

use super::args::Args;
use super::plan::Plan;
use super::{same_as, warn_of_unreadable};
use crate::copying::object::{ObjectTarget, Shape, hinted};
use crate::copying::watch::Watch;
use crate::drive::disk_options;
use crate::measure::add_data;

/// Less does not hold three parts.
const MEMORY_BYTES_MIN: u64 = 3 * remote::s3::PART_BYTES_MIN as u64;

/// The name of an object that is to be made.
pub fn object_name<'a>(args: &Args, target: &'a OsStr) -> Option<&'a str> {
    let name = target.to_str().filter(|_| !args.no_create)?;
    elsewhere(name.as_ref()).and_then(Service::of_scheme).map(|_| name)
}

/// Copies `source` into the object `name`. At any moment the object is the old one or the complete new one.
///
/// # Errors
/// When the object cannot be made, or a signal ended it.
pub fn run(
    args: &Args,
    reactor: &Reactor,
    rules: &OpenRules,
    watch: &Watch,
    source: &dyn Block,
    name: &str,
    plan: &Plan,
) -> Result<(), Failure> {
    check(args, name)?;
    reactor.run(async {
        let shape = shape(args, name, plan)?;
        let size = upload_size(args, source, name, plan).await?;
        let upload = watch.within_grace(begin(args, name, size)).await??;
        let target = ObjectTarget::new(name.to_owned(), upload, shape);
        let made = async {
            copy(args, watch, source, &target, plan).await?;
            watch.within_grace(target.finish()).await?
        };
        match made.await {
            Ok(()) if args.verify => verify(args, rules, source, name).await,
            Ok(()) => Ok(()),
            Err(failure) => Err(take_away(watch, &target, failure).await),
        }
    })
}

fn check(args: &Args, name: &str) -> Result<(), Failure> {
    let refused = |what: &str| Err(Failure::new(format!("cannot upload {name}: {what}")));
    if args.bitmaps {
        return refused("--bitmaps: an object is written from its first byte to its last, without bitmaps");
    }
    let format = args.target_format;
    if ![Format::Raw, Format::Qcow2].contains(&format) {
        return refused(&format!("a {format} image is not made in a store; allowed: raw and qcow2"));
    }
    Ok(())
}

fn because(name: &str, error: &dyn std::error::Error) -> Failure {
    Failure::because(format!("cannot upload {name}"), error)
}

fn shape(args: &Args, name: &str, plan: &Plan) -> Result<Shape, Failure> {
    if args.target_format == Format::Raw {
        return Ok(Shape::Raw(plan.size));
    }
    let image = InOrder::new(&image_options(plan)).map_err(|error| because(name, &error))?;
    let image = Box::new(image);
    Ok(if args.compress { Shape::Compressed(image) } else { Shape::Qcow2(image) })
}

fn image_options(plan: &Plan) -> CreateOptions {
    CreateOptions { size: plan.size, ..plan.image.options.clone() }
}

/// How large the parts are: by the map of the source, no data is read for it.
async fn upload_size(
    args: &Args,
    source: &dyn Block,
    name: &str,
    plan: &Plan,
) -> Result<UploadSize, Failure> {
    let object_bytes = match args.target_format {
        Format::Qcow2 => {
            // What is below adds nothing to the file.
            let options = CreateOptions { backing_file: None, backing_format: None, ..image_options(plan) };
            let mut clusters = DataClusters::new(options.cluster_size);
            if args.sparse == Some(0) {
                clusters.add(0, plan.size);
            } else {
                add_data(source, &mut clusters, u64::MAX).await.map_err(|error| because(name, &error))?;
            }
            let content = qcow2::Content::Copied { data_bytes: clusters.bytes() };
            options.measure(content).map_err(|error| because(name, &error))?.required
        }
        _ => plan.size,
    };
    UploadSize::fit(object_bytes, (args.memory_limit / 2).max(MEMORY_BYTES_MIN)).map_err(|needed| {
        let (limit, needed) = (args.memory_limit, needed.saturating_mul(2));
        Failure::new(format!(
            "cannot upload {name}: an object of up to {object_bytes} bytes has parts that need more memory: --memory-limit is {limit}; \
             allowed: {needed} and more"
        ))
    })
}

async fn begin(args: &Args, name: &str, size: UploadSize) -> Result<Upload, Failure> {
    let store = object_store(name).await;
    let store = store.unwrap_or_else(|| Err(std::io::ErrorKind::Unsupported.into()));
    let (store, key) = store.map_err(|error| because(name, &error))?;
    let present = if args.force { Present::Replace } else { Present::Keep };
    let begun = Upload::begin(Arc::new(store), &key, present, size).await;
    begun.map_err(|error| hinted(because(name, &error), &error))
}

async fn copy(
    args: &Args,
    watch: &Watch,
    source: &dyn Block,
    target: &ObjectTarget,
    plan: &Plan,
) -> Result<(), Failure> {
    let options = CopyOptions {
        order: Order::InOrder,
        flush_bytes: None,
        ..plan.copy_options(args, target.align_bytes())
    };
    let copy = Copy {
        source,
        from: 0..source.size(),
        target,
        to: 0,
        scope: plan.scope,
        content: plan.content,
        options,
    };
    let copied = watch.run(&copy, &Counters::default()).await;
    watch.check()?;
    let copied =
        copied.map_err(|error| Failure::because(format!("cannot convert {}", source.name()), &error))?;
    warn_of_unreadable(source, &copied);
    Ok(())
}

/// Takes away what was sent, and says so if that fails.
async fn take_away(watch: &Watch, target: &ObjectTarget, failure: Failure) -> Failure {
    let why = match watch.within_grace(target.abort()).await {
        Ok(Ok(())) => return failure,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the store does not answer".to_owned(),
    };
    let Some(id) = target.upload_id().await else { return failure };
    warn(&format!("{}: the upload {id:?} is still at the store: {why}", target.name()));
    failure.with_hint(
        "parts that were sent are still at the store: abort the upload there (docs/reference/object-stores.md)",
    )
}

async fn verify(args: &Args, rules: &OpenRules, source: &dyn Block, name: &str) -> Result<(), Failure> {
    let mut options = disk_options(&name.into(), |_| false)?;
    options.layer.format = Some(args.target_format);
    same_as(args, rules, source, options).await
}
