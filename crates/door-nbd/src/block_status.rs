//! The reply to a BLOCK_STATUS.

use std::rc::Rc;

use export::{Error, ErrorKind, Export, Pace};
use wire::nbd::{
    ALLOCATION_HOLE, ALLOCATION_ZERO, BITMAP_DIRTY, Context, ContextId, Descriptor, Dialect, Selected,
    block_status,
};

use crate::limits::STATUS_EXTENTS_MAX;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) dialect: Dialect,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    /// At least 1.
    pub(crate) len: u64,
    /// One extent of each context is enough.
    pub(crate) one: bool,
    /// Those of the connection; at least one.
    pub(crate) contexts: Rc<[Selected]>,
    /// Of those, the ones that are asked for; all if this is not said.
    pub(crate) only: Option<Vec<ContextId>>,
}

impl Question {
    fn chosen(&self) -> impl Iterator<Item = &Selected> {
        let is_chosen = |id| self.only.as_ref().is_none_or(|only| only.contains(&id));
        self.contexts.iter().filter(move |context| is_chosen(context.id))
    }
}

/// Extents that are looked up between two turns of others, and what they count in bytes: about as much time.
const LOOKS_PER_STEP: usize = 64;
const LOOKS_STEP_BYTES: u64 = 256 << 10;

/// Asks `disk` and gives the whole reply.
pub(crate) async fn answer(disk: &dyn Export, question: &Question, pace: &Pace) -> Result<Vec<u8>, Error> {
    let Question { dialect, cookie, offset, one, .. } = *question;
    let contexts = question.chosen().count();
    let extents_max = if one { 1 } else { (STATUS_EXTENTS_MAX / contexts.max(1)).max(1) };
    let mut reply = Vec::new();
    for (at, Selected { id, context }) in question.chosen().enumerate() {
        let descriptors = describe(disk, context, question, (extents_max, pace)).await?;
        let is_last = at + 1 == contexts;
        block_status(&mut reply, dialect, (cookie, offset), (*id, is_last), &descriptors);
    }
    Ok(reply)
}

/// Extents of one context from the question's offset on, neighbours that are alike joined.
async fn describe(
    disk: &dyn Export,
    context: &Context,
    question: &Question,
    (extents_max, pace): (usize, &Pace),
) -> Result<Vec<Descriptor>, Error> {
    let end = question.offset + question.len;
    let mut at = question.offset;
    let mut descriptors: Vec<Descriptor> = Vec::new();
    for looks in 0_usize.. {
        if at >= end {
            break;
        }
        if looks.is_multiple_of(LOOKS_PER_STEP) {
            pace.step(LOOKS_STEP_BYTES).await;
        }
        let (len, flags) = look(disk, context, at, end - at).await?;
        if len == 0 {
            tracing::error!(?context, at, "disk describes an extent of no bytes");
            return Err(ErrorKind::Io.into());
        }
        let len = len.min(end - at);
        let is_full = descriptors.len() == extents_max;
        match descriptors.last_mut() {
            Some(last) if last.flags == flags => last.len += len,
            _ if is_full => break,
            _ => descriptors.push(Descriptor { len, flags }),
        }
        at += len;
    }
    Ok(descriptors)
}

async fn look(disk: &dyn Export, context: &Context, offset: u64, len: u64) -> Result<(u64, u64), Error> {
    match context {
        Context::Allocation => {
            let extent = disk.block_status(offset, len).await?;
            let hole = if extent.hole { ALLOCATION_HOLE } else { 0 };
            let zero = if extent.zero { ALLOCATION_ZERO } else { 0 };
            Ok((extent.len, hole | zero))
        }
        Context::AllocationDepth => {
            let layer = disk.allocation_depth(offset, len).await?;
            Ok((layer.len, u64::from(layer.depth)))
        }
        Context::Bitmap(bitmap) => {
            let status = disk.bitmap_status(bitmap, offset, len).await?;
            Ok((status.len, if status.dirty { BITMAP_DIRTY } else { 0 }))
        }
    }
}
