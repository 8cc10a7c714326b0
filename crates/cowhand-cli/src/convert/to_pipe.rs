//! A pipe as the target.

use block::Block;
use job::{Content, Copy, CopyOptions, Counters, Order, Zeroes};
use tool::failure::Failure;

use super::args::Args;
use super::plan::Plan;
use super::{warn_of_unreadable, whole};
use crate::copying::pipe::PipeTarget;
use crate::copying::watch::Watch;

/// Copies `source` into a pipe: its bytes, or an image of a format whose file is written in order.
///
/// # Errors
/// When the format is not written in order, or a signal ended the copy.
pub async fn copy(
    args: &Args,
    watch: &Watch,
    source: &dyn Block,
    pipe: PipeTarget,
    plan: &Plan,
) -> Result<(), Failure> {
    if args.verify {
        return Err(Failure::new("--verify reads the target again, and what went into a pipe is gone"));
    }
    if let Some(image) = &plan.image.foreign {
        return whole::to_pipe(args, watch, source, pipe, (plan, image)).await;
    }
    pipe.check_format(args.target_format)?;
    let copy = Copy {
        source,
        from: 0..source.size(),
        target: &pipe,
        to: 0,
        scope: plan.scope,
        content: Content::Unknown,
        options: CopyOptions { order: Order::InOrder, zeroes: Zeroes::Write, ..plan.copy_options(args, 1) },
    };
    let copied = watch.run(&copy, &Counters::default()).await;
    let copied =
        copied.map_err(|error| Failure::because(format!("cannot convert {}", source.name()), &error))?;
    warn_of_unreadable(source, &copied);
    watch.check()
}
