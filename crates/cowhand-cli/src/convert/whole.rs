//! Targets of formats that are made whole and in order: vpc, vmdk.

use std::path::Path;

use block::Block;
use graph::OpenRules;
use job::{Content, Copy, CopyOptions, Counters, Order};
use reactor::Reactor;
use tool::failure::Failure;

use super::args::Args;
use super::plan::Plan;
use super::target::Target;
use super::{Source, same_as, warn_of_unreadable};
use crate::copying::pipe::PipeTarget;
use crate::copying::watch::Watch;
use crate::copying::whole_image::WholeImage;
use crate::create::foreign;

/// The name of its own file in a vmdk image that is written to a pipe.
const NAME_IN_PIPE: &str = "disk.vmdk";

/// Copies `source` into a new image, which gets its name when it is whole.
///
/// # Errors
/// When the image cannot be made, or a signal ended the copy.
pub fn to_file(
    args: &Args,
    reactor: &Reactor,
    rules: &OpenRules,
    watch: &Watch,
    source: &Source<'_>,
    target: &Target,
    (plan, image): (&Plan, &formats::sink::NewImage),
) -> Result<job::Progress, Failure> {
    let named = args.names.last().map_or(Path::new(""), |name| Path::new(name));
    let sink = foreign::sink(image, named)?;
    let copied = reactor.run(async {
        let made = WholeImage::in_file(&target.options.filename, plan.size, sink).await?;
        let counters = Counters::default();
        let filling = async {
            let copied = copy(args, watch, source.disk, &made, (plan, &counters));
            let copied = source.passing.while_read(copied).await?;
            made.finish().await.map(|()| copied)
        };
        let copied = target.while_filled(&counters, filling).await?;
        target.filled().await.map(|()| copied)
    });
    let copied = copied.map_err(|failure| target.explain(failure, true))?;
    warn_of_unreadable(source.disk, &copied);
    if args.verify {
        let verified = reactor.run(same_as(args, rules, source.disk, target.options.clone()));
        verified.map_err(|failure| target.explain(failure, true))?;
    }
    Ok(copied)
}

/// Copies `source` into an image that goes through a pipe.
///
/// # Errors
/// When the format does not go through a pipe, or a signal ended the copy.
pub async fn to_pipe(
    args: &Args,
    watch: &Watch,
    source: &dyn Block,
    pipe: PipeTarget,
    (plan, image): (&Plan, &formats::sink::NewImage),
) -> Result<(), Failure> {
    let sink = foreign::sink(image, Path::new(NAME_IN_PIPE))?;
    let made = WholeImage::in_pipe(pipe, sink).await?;
    let copied = copy(args, watch, source, &made, (plan, &Counters::default())).await?;
    watch.check()?;
    made.finish().await?;
    warn_of_unreadable(source, &copied);
    Ok(())
}

async fn copy(
    args: &Args,
    watch: &Watch,
    source: &dyn Block,
    target: &WholeImage,
    (plan, counters): (&Plan, &Counters),
) -> Result<job::Progress, Failure> {
    let options = CopyOptions { order: Order::InOrder, ..plan.copy_options(args, target.unit_bytes()) };
    let copy = Copy {
        source,
        from: 0..source.size(),
        target,
        to: 0,
        scope: plan.scope,
        content: Content::Zeroes,
        options,
    };
    let copied = watch.run(&copy, counters).await;
    watch.check()?;
    copied.map_err(|error| Failure::because(format!("cannot convert {}", source.name()), &error))
}
